"""Turn parts of the index of segments into rows of the tables.

A part has columns of one segment. Arrow takes some microseconds a column to make an array, so rows are made of many
parts at a time: the windows of a large segment, or many small segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coldlog.formats.kafka.compression import CODEC_NAMES
from coldlog.formats.kafka.txn_index import TxnIndex
from coldlog.index.joined_chunks import join_chunks
from coldlog.index.log_intervals import NO_TIMESTAMP_MS, LogIntervals
from coldlog.index.segment_index import IndexChunk
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX

IndexPart = IndexChunk | TxnIndex | LogIntervals
"""A part of the index of one segment."""
_Part = TypeVar("_Part")
COMMON_COLUMNS = ("topic", "partition", "topic_id", "segment_id", "build_number")
"""What all rows of a segment share."""


def own_schema(table: TableDefinition) -> pa.Schema:
    """The columns in the rows of parts: all except the common columns."""
    return pa.schema([field for field in table.arrow_schema if field.name not in COMMON_COLUMNS])


def count_rows(part: IndexPart) -> int:
    """Count the rows that a part gives to all tables."""
    match part:
        case IndexChunk():
            return len(part.headers) + len(part.stairs.offset)
        case TxnIndex():
            return part.entry_count
        case LogIntervals():
            return len(part)


def iter_rows(parts: Sequence[IndexPart]) -> Iterator[tuple[TableDefinition, npt.NDArray[np.int64], pa.RecordBatch]]:
    """Yield the rows of each table that has some, and which part each row is of."""
    chunks, of_chunks = _parts_of(parts, IndexChunk)
    aborts, of_aborts = _parts_of(parts, TxnIndex)
    intervals, of_intervals = _parts_of(parts, LogIntervals)
    batches = np.repeat(of_chunks, [len(each.headers) for each in chunks])
    stairs = np.repeat(of_chunks, [len(each.stairs.offset) for each in chunks])
    if len(batches):
        joined = join_chunks(chunks)
        yield OFFSET_INDEX, batches, _offset_index_rows(joined)
        if len(stairs):
            yield TIME_INDEX, stairs, _time_index_rows(joined)
    if aborts:
        yield TXN_INDEX, np.repeat(of_aborts, [each.entry_count for each in aborts]), _txn_index_rows(aborts)
    if intervals:
        yield INTERVAL_INDEX, np.repeat(of_intervals, list(map(len, intervals))), _interval_index_rows(intervals)


def _parts_of(parts: Sequence[IndexPart], kind: type[_Part]) -> tuple[list[_Part], list[int]]:
    """The parts of this kind, and their places."""
    places = [at for at, each in enumerate(parts) if isinstance(each, kind)]
    return [each for each in parts if isinstance(each, kind)], places


_OFFSET_INDEX_SCHEMA = own_schema(OFFSET_INDEX)
_TIME_INDEX_SCHEMA = own_schema(TIME_INDEX)
_TXN_INDEX_SCHEMA = own_schema(TXN_INDEX)
_INTERVAL_INDEX_SCHEMA = own_schema(INTERVAL_INDEX)
_CODECS = pa.array(CODEC_NAMES)
_TIMESTAMP_TYPES = pa.array(["CreateTime", "LogAppendTime"])


def _offset_index_rows(chunk: IndexChunk) -> pa.RecordBatch:
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


def _time_index_rows(chunk: IndexChunk) -> pa.RecordBatch:
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


def _txn_index_rows(parts: Sequence[TxnIndex]) -> pa.RecordBatch:
    """Make one row per aborted transaction."""
    columns: dict[str, object] = {
        "producer_id": _joined([each.producer_ids for each in parts]),
        "first_offset": _joined([each.first_offsets for each in parts]),
        "last_offset": _joined([each.last_offsets for each in parts]),
        "last_stable_offset": _joined([each.last_stable_offsets for each in parts]),
    }
    return _record_batch(_TXN_INDEX_SCHEMA, columns)


def _interval_index_rows(parts: Sequence[LogIntervals]) -> pa.RecordBatch:
    """Make one row per interval."""
    previous_ms = _joined([np.concatenate(([NO_TIMESTAMP_MS], each.running_max_ms[:-1])) for each in parts])
    running_ms = _joined([each.running_max_ms for each in parts])
    columns: dict[str, object] = {
        "after_offset": _joined([each.after_offset for each in parts]),
        "last_offset": _joined([each.last_offset for each in parts]),
        "position": _joined([each.position for each in parts]),
        "size_bytes": _joined([each.size_bytes for each in parts]),
        "previous_running_max_timestamp_ms": _nullable(previous_ms, previous_ms != NO_TIMESTAMP_MS),
        "running_max_timestamp_ms": _nullable(running_ms, running_ms != NO_TIMESTAMP_MS),
    }
    return _record_batch(_INTERVAL_INDEX_SCHEMA, columns)


def _joined(columns: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _record_batch(schema: pa.Schema, columns: dict[str, object]) -> pa.RecordBatch:
    arrays = [
        columns[field.name] if isinstance(columns[field.name], pa.Array) else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _nullable(values: npt.NDArray[np.int64], is_known: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, pa.int64(), mask=~is_known)
