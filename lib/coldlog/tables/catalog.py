"""catalog: which tables make a warehouse?"""

from __future__ import annotations

from coldlog.tables.definition import TableDefinition
from coldlog.tables.discrepancies import DISCREPANCIES
from coldlog.tables.job_runs import JOB_RUNS
from coldlog.tables.list_offsets_expirations import LIST_OFFSETS_EXPIRATIONS
from coldlog.tables.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.offset_index import OFFSET_INDEX
from coldlog.tables.partition_metadata import PARTITION_METADATA
from coldlog.tables.quarantine import QUARANTINE
from coldlog.tables.segment_events import SEGMENT_EVENTS
from coldlog.tables.segments import SEGMENTS
from coldlog.tables.time_index import TIME_INDEX
from coldlog.tables.txn_index import TXN_INDEX
from coldlog.tables.txn_segments import TXN_SEGMENTS
from coldlog.tables.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.validation_results import VALIDATION_RESULTS

INDEX_TABLES: tuple[TableDefinition, ...] = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
"""The tables that a build fills by segment, and that only count once `segments` says so."""

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
