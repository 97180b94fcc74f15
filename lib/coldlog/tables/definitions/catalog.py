"""List the tables of a warehouse."""

from __future__ import annotations

from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.list_offsets_expirations import LIST_OFFSETS_EXPIRATIONS
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.definitions.validation_results import VALIDATION_RESULTS

INDEX_TABLES: tuple[TableDefinition, ...] = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, INTERVAL_INDEX)
"""The tables that a build fills by segment; their rows count only when `segments` names their build number."""

ALL_TABLES: tuple[TableDefinition, ...] = (
    SEGMENTS,
    *INDEX_TABLES,
    PARTITION_METADATA,
    TXN_SEGMENTS,
    SEGMENT_EVENTS,
    QUARANTINE,
    DISCREPANCIES,
    LOG_START_OFFSETS,
    UNRECOGNIZED_OBJECTS,
    JOB_RUNS,
    LIST_OFFSETS_EXPIRATIONS,
    VALIDATION_RESULTS,
)
