"""Turn columns of the index into rows of the tables.

The rows are Arrow record batches without the columns that all rows of a segment share (see `encoded_rows`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coldlog.formats.kafka.compression import CODEC_NAMES
from coldlog.formats.kafka.txn_index import TxnIndex
from coldlog.index.log_intervals import NO_TIMESTAMP_MS, LogIntervals
from coldlog.index.segment_index import IndexChunk
from coldlog.indexing.builds.encoded_rows import payload_schema
from coldlog.tables.definitions.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.time_index import TIME_INDEX
from coldlog.tables.definitions.txn_index import TXN_INDEX

_OFFSET_INDEX_SCHEMA = payload_schema(OFFSET_INDEX)
_TIME_INDEX_SCHEMA = payload_schema(TIME_INDEX)
_TXN_INDEX_SCHEMA = payload_schema(TXN_INDEX)
_INTERVAL_INDEX_SCHEMA = payload_schema(INTERVAL_INDEX)
_CODECS = pa.array(CODEC_NAMES)
_TIMESTAMP_TYPES = pa.array(["CreateTime", "LogAppendTime"])


def offset_index_rows(chunk: IndexChunk) -> pa.RecordBatch:
    """Make one row per batch."""
    headers = chunk.headers
    columns: dict[str, object] = {
        "base_offset": headers.base_offset,
        "last_offset": headers.last_offset,
        "position": headers.position,
        "size_bytes": headers.size_bytes,
        "leader_epoch": headers.leader_epoch,
        "max_timestamp_ms": headers.max_timestamp_ms,
        "min_timestamp_ms": _nullable(chunk.smallest_ms, chunk.has_smallest),
        "previous_running_max_timestamp_ms": _nullable(chunk.previous_running_ms, chunk.has_previous_running),
        "running_max_timestamp_ms": _nullable(chunk.running_ms, chunk.has_running),
        "record_count": headers.record_count,
        "codec": _CODECS.take(pa.array(headers.codec)),
        "timestamp_type": _TIMESTAMP_TYPES.take(pa.array(headers.is_log_append_time.astype(np.int8))),
        "is_transactional": headers.is_transactional,
        "is_control": headers.is_control,
        "producer_id": headers.producer_id,
        "producer_epoch": headers.producer_epoch,
        "base_sequence": headers.base_sequence,
    }
    return _record_batch(_OFFSET_INDEX_SCHEMA, columns)


def time_index_rows(chunk: IndexChunk) -> pa.RecordBatch:
    """Make one row per stair."""
    stairs, headers = chunk.stairs, chunk.headers
    columns: dict[str, object] = {
        "batch_base_offset": headers.base_offset[stairs.batch],
        "offset": stairs.offset,
        "timestamp_ms": stairs.timestamp_ms,
        "previous_timestamp_ms": _nullable(stairs.previous_timestamp_ms, stairs.has_previous),
        "leader_epoch": headers.leader_epoch[stairs.batch],
    }
    return _record_batch(_TIME_INDEX_SCHEMA, columns)


def txn_index_rows(index: TxnIndex) -> pa.RecordBatch:
    """Make one row per aborted transaction."""
    columns: dict[str, object] = {
        "producer_id": index.producer_ids,
        "first_offset": index.first_offsets,
        "last_offset": index.last_offsets,
        "last_stable_offset": index.last_stable_offsets,
    }
    return _record_batch(_TXN_INDEX_SCHEMA, columns)


def interval_index_rows(intervals: LogIntervals) -> pa.RecordBatch:
    """Make one row per interval."""
    previous_ms = np.concatenate(([NO_TIMESTAMP_MS], intervals.running_max_ms[:-1]))
    columns: dict[str, object] = {
        "after_offset": intervals.after_offset,
        "last_offset": intervals.last_offset,
        "position": intervals.position,
        "size_bytes": intervals.size_bytes,
        "previous_running_max_timestamp_ms": _nullable(previous_ms, previous_ms != NO_TIMESTAMP_MS),
        "running_max_timestamp_ms": _nullable(intervals.running_max_ms, intervals.running_max_ms != NO_TIMESTAMP_MS),
    }
    return _record_batch(_INTERVAL_INDEX_SCHEMA, columns)


def _record_batch(schema: pa.Schema, columns: dict[str, object]) -> pa.RecordBatch:
    arrays = [
        columns[field.name] if isinstance(columns[field.name], pa.Array) else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _nullable(values: npt.NDArray[np.int64], is_known: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, pa.int64(), mask=~is_known)
