"""Decode the rows of the index tables and of `segments` to arrays, and find in them the rows of a segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.model.states import IndexDepth

Int64s = npt.NDArray[np.int64]
NOTHING = np.iinfo(np.int64).min
"""Marks a missing timestamp in an array; every record's timestamp is larger."""
SEGMENT_COLUMNS = (
    "topic", "partition", "topic_id", "segment_id", "served_build_number", "served_index_depth", "end_offset",
    "served_from_offset", "served_to_offset", "running_max_timestamp_ms", "broker_running_max_timestamp_ms",
)  # fmt: skip
SEGMENT_NUMBERS = (
    "served_build_number", "end_offset", "served_from_offset", "served_to_offset", "running_max_timestamp_ms",
    "broker_running_max_timestamp_ms", "is_at_batch_depth", "is_at_sidecar_depth",
)  # fmt: skip
OBJECT_COLUMNS = (
    "topic", "partition", "topic_id", "segment_id", "start_offset", "objects", "size_bytes", "served_build_number",
)  # fmt: skip
NO_SEGMENTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SegmentRows:
    runs: dict[tuple[str, int, str], tuple[int, int]]
    columns: dict[str, Int64s]
    segment_ids: list[str]


def decode_segments(rows: pa.Table) -> tuple[SegmentRows, int]:
    """Decode the served segments by topic, partition and topic id, in the order of their offsets."""
    served = rows.filter(rows["served_from_offset"].is_valid())
    order = ("topic", "partition", "topic_id", "served_from_offset")
    served = served.sort_by([(name, "ascending") for name in order])
    for depth in (IndexDepth.BATCH, IndexDepth.SIDECAR):
        is_at_depth = pc.equal(served["served_index_depth"], depth.value).cast(pa.int64())
        served = served.append_column(f"is_at_{depth.value}_depth", is_at_depth)
    keys = [served[name].to_pylist() for name in ("topic", "partition", "topic_id")]
    codes = [served[name].dictionary_encode().combine_chunks() for name in ("topic", "topic_id")]
    places = _numbers(served["partition"]), *(code.indices.to_numpy(zero_copy_only=False) for code in codes)
    decoded = SegmentRows(
        runs={(keys[0][at], keys[1][at], keys[2][at]): (at, stop) for at, stop in _iter_runs(*places)},
        columns={name: _numbers(served[name]) for name in SEGMENT_NUMBERS},
        segment_ids=served["segment_id"].to_pylist(),
    )
    return decoded, served.nbytes * 4


# A segment id belongs to one upload, unless the directory of a partition was copied.
_RUN_COLUMNS = ("topic", "partition", "segment_id", "build_number")
STAIR_COLUMNS = (*_RUN_COLUMNS, "offset", "timestamp_ms", "leader_epoch")
BATCH_COLUMNS = (*_RUN_COLUMNS, "base_offset", "running_max_timestamp_ms", "position", "size_bytes")
INTERVAL_COLUMNS = (
    *_RUN_COLUMNS, "after_offset", "last_offset", "running_max_timestamp_ms", "position", "size_bytes"
)  # fmt: skip
_Run = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRows:
    """Rows of an index table. `runs` has, by `_RUN_COLUMNS`, the ranges in which `offsets` and `keys` ascend."""

    runs: dict[_Run, list[tuple[int, int]]]
    keys: Int64s
    offsets: Int64s
    columns: dict[str, Int64s]


def decode_stairs(rows: pa.Table) -> tuple[IndexRows, int]:
    return _decode_index(rows, "timestamp_ms", "offset", ("leader_epoch",))


def decode_batches(rows: pa.Table) -> tuple[IndexRows, int]:
    return _decode_index(rows, "running_max_timestamp_ms", "base_offset", ("position", "size_bytes"))


def decode_intervals(rows: pa.Table) -> tuple[IndexRows, int]:
    columns = ("last_offset", "position", "size_bytes")
    return _decode_index(rows, "running_max_timestamp_ms", "after_offset", columns)


def _decode_index(rows: pa.Table, key: str, offset: str, others: tuple[str, ...]) -> tuple[IndexRows, int]:
    topics, segments = (rows[name].combine_chunks().dictionary_encode() for name in ("topic", "segment_id"))
    columns = {name: _numbers(rows[name]) for name in ("partition", "build_number", key, offset, *others)}
    columns |= {"topic": topics.indices.to_numpy(), "segment_id": segments.indices.to_numpy()}
    is_same = np.ones(max(0, len(columns[offset]) - 1), dtype=np.bool_)
    for name in _RUN_COLUMNS:
        is_same &= columns[name][1:] == columns[name][:-1]
    if np.any(is_same & (columns[offset][1:] <= columns[offset][:-1])):
        # Rewritten files need not keep the rows of a segment in order.
        order = np.lexsort((columns[offset], *(columns[name] for name in reversed(_RUN_COLUMNS))))
        columns = {name: column[order] for name, column in columns.items()}
    topic_names, segment_ids = topics.dictionary.to_pylist(), segments.dictionary.to_pylist()
    runs: dict[_Run, list[tuple[int, int]]] = {}
    for start, stop in _iter_runs(*(columns[name] for name in _RUN_COLUMNS)):
        topic, partition, segment, build = (int(columns[name][start]) for name in _RUN_COLUMNS)
        runs.setdefault((topic_names[topic], partition, segment_ids[segment], build), []).append((start, stop))
    decoded = IndexRows(
        runs=runs, keys=columns[key], offsets=columns[offset], columns={name: columns[name] for name in others}
    )
    return decoded, 8 * len(decoded.keys) * (2 + len(others)) + 200 * len(runs)


def _iter_runs(*columns: npt.NDArray[np.generic]) -> Iterator[tuple[int, int]]:
    """Yield the ranges in which no column changes."""
    count = len(columns[0])
    if count == 0:
        return
    is_new = np.zeros(count - 1, dtype=np.bool_)
    for column in columns:
        is_new |= column[1:] != column[:-1]
    starts = [0, *(np.flatnonzero(is_new) + 1).tolist()]
    yield from zip(starts, [*starts[1:], count], strict=True)


def _numbers(column: pa.ChunkedArray) -> Int64s:
    """Convert a column to numbers, NULL to NOTHING."""
    filled = pc.fill_null(column.cast(pa.int64()), NOTHING)
    numbers: Int64s = filled.to_numpy()
    return numbers
