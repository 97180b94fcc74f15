"""Decode the rows of the index tables and of `segments` to arrays, and find in them the rows of a segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.model.states import IndexDepth

Int64s = npt.NDArray[np.int64]
Ranges = list[tuple[int, int]]
"""Ranges of rows: the first one, and the end."""
_NO_RANGES: Ranges = []
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
    "segment_leader_epochs",
)  # fmt: skip
NO_SEGMENTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Served segments. `runs` has the rows of each topic, partition and topic id."""

    runs: dict[tuple[str, int, str], Ranges]
    columns: dict[str, Int64s]
    segment_ids: pa.StringArray

    def of(self, topic: str, partition: int, topic_id: str) -> Iterator[tuple[list[str], dict[str, Int64s]]]:
        """Yield ids and numbers (`SEGMENT_NUMBERS`) of the segments of an incarnation, in any order."""
        for start, stop in self.runs.get((topic, partition, topic_id), ()):
            numbers = {name: column[start:stop] for name, column in self.columns.items()}
            yield self.segment_ids[start:stop].to_pylist(), numbers


def decode_segments(rows: pa.Table) -> tuple[SegmentRows, int]:
    """Decode the served segments by topic, partition and topic id."""
    served = rows.filter(rows["served_from_offset"].is_valid()) if rows["served_from_offset"].null_count else rows
    depths = {
        f"is_at_{depth.value}_depth": pc.equal(served["served_index_depth"], depth.value)
        for depth in (IndexDepth.BATCH, IndexDepth.SIDECAR)
    }
    texts = {name: served[name].combine_chunks() for name in ("topic", "topic_id")}
    partitions = numbers_of(served["partition"])
    starts = _starts(_changes(*texts.values(), partitions), len(served))
    firsts = (text.take(pa.array(starts[:-1])).to_pylist() for text in texts.values())
    runs: dict[tuple[str, int, str], Ranges] = {}
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    for topic, topic_id, partition, run in zip(*firsts, partitions[starts[:-1]].tolist(), bounds, strict=True):
        runs.setdefault((topic, partition, topic_id), []).append(run)
    decoded = SegmentRows(
        runs=runs,
        columns={name: numbers_of(depths[name] if name in depths else served[name]) for name in SEGMENT_NUMBERS},
        segment_ids=served["segment_id"].combine_chunks(),
    )
    numbers = sum(column.nbytes for column in decoded.columns.values())
    return decoded, numbers + decoded.segment_ids.nbytes + 300 * len(runs)


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
    """Rows of an index table. In each run, the rows of one build of a segment, `offsets` and `keys` ascend.

    `starts` has the first row of each run and the end of the last one, `segment_ids` and `builds` those of each run.
    `places` has the runs of each partition.
    """

    keys: Int64s
    offsets: Int64s
    columns: dict[str, Int64s]
    starts: Int64s
    segment_ids: pa.StringArray
    builds: Int64s
    places: dict[tuple[str, int], Ranges]
    _asked: dict[tuple[str, int], dict[tuple[str, int], Ranges] | None] = field(default_factory=dict)
    """The partition that was asked for last, with its runs by their keys; None: it was asked for once."""

    def runs_of(self, key: _Run, *, is_only: bool = True) -> Ranges:
        """Return the ranges of rows with this topic, partition, segment id and build number. `is_only`: no other run of
        the partition is asked for with it."""
        topic, partition, segment_id, build = key
        place = topic, partition
        if place not in self._asked:
            self._asked.clear()
            self._asked[place] = None
            if is_only:
                return self._find_runs(place, segment_id, build)
        of_place = self._asked[place]
        if of_place is None:
            of_place = self._asked[place] = self._runs_of_place(place)
        return of_place.get((segment_id, build), _NO_RANGES)

    def _find_runs(self, place: tuple[str, int], segment_id: str, build: int) -> Ranges:
        found: Ranges = []
        for first, end in self.places.get(place, _NO_RANGES):
            is_same = pc.equal(self.segment_ids[first:end], segment_id).to_numpy(zero_copy_only=False)
            at = np.flatnonzero(is_same & (self.builds[first:end] == build)) + first
            found += zip(self.starts[at].tolist(), self.starts[at + 1].tolist(), strict=True)
        return found

    def _runs_of_place(self, place: tuple[str, int]) -> dict[tuple[str, int], Ranges]:
        found: dict[tuple[str, int], Ranges] = {}
        for first, end in self.places.get(place, _NO_RANGES):
            bounds = self.starts[first : end + 1].tolist()
            builds = self.builds[first:end].tolist()
            segment_ids = self.segment_ids.slice(first, end - first).to_pylist()
            for key, start, stop in zip(zip(segment_ids, builds, strict=True), bounds[:-1], bounds[1:], strict=True):
                found.setdefault(key, []).append((start, stop))
        return found


def decode_stairs(rows: pa.Table) -> tuple[IndexRows, int]:
    return _decode_index(rows, "timestamp_ms", "offset", ("leader_epoch",))


def decode_batches(rows: pa.Table) -> tuple[IndexRows, int]:
    return _decode_index(rows, "running_max_timestamp_ms", "base_offset", ("position", "size_bytes"))


def decode_intervals(rows: pa.Table) -> tuple[IndexRows, int]:
    columns = ("last_offset", "position", "size_bytes")
    return _decode_index(rows, "running_max_timestamp_ms", "after_offset", columns)


def _decode_index(rows: pa.Table, key: str, offset: str, others: tuple[str, ...]) -> tuple[IndexRows, int]:
    texts = {name: rows[name].combine_chunks() for name in ("topic", "segment_id")}
    columns = {name: numbers_of(rows[name]) for name in ("partition", "build_number", key, offset, *others)}
    is_place_new, is_new = _changed_places(texts, columns)
    if np.any(~is_new & (columns[offset][1:] <= columns[offset][:-1])):
        # Rewritten files need not keep the rows of a segment in order.
        codes = {name: text.dictionary_encode().indices.to_numpy() for name, text in texts.items()}
        order = np.lexsort((columns[offset], *({**columns, **codes}[name] for name in reversed(_RUN_COLUMNS))))
        texts = {name: text.take(pa.array(order)) for name, text in texts.items()}
        columns = {name: column[order] for name, column in columns.items()}
        is_place_new, is_new = _changed_places(texts, columns)
    starts, of_places = _starts(is_new, len(rows)), _starts(is_place_new, len(rows))
    bounds = np.searchsorted(starts, of_places).tolist()
    topics = texts["topic"].take(pa.array(of_places[:-1])).to_pylist()
    partitions = columns["partition"][of_places[:-1]].tolist()
    places: dict[tuple[str, int], Ranges] = {}
    for topic, partition, first, end in zip(topics, partitions, bounds[:-1], bounds[1:], strict=True):
        places.setdefault((topic, partition), []).append((first, end))
    decoded = IndexRows(
        keys=columns[key],
        offsets=columns[offset],
        columns={name: columns[name] for name in others},
        starts=starts,
        segment_ids=texts["segment_id"].take(pa.array(starts[:-1])),
        builds=columns["build_number"][starts[:-1]],
        places=places,
    )
    numbers = 8 * len(decoded.keys) * (2 + len(others)) + 16 * len(starts)
    return decoded, numbers + decoded.segment_ids.nbytes + 300 * len(places)


def _changed_places(
    texts: dict[str, pa.StringArray], columns: dict[str, Int64s]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether topic or partition change from each row to the next one, and whether any of `_RUN_COLUMNS` does."""
    is_place_new = _changes(texts["topic"], columns["partition"])
    return is_place_new, is_place_new | _changes(texts["segment_id"], columns["build_number"])


def _changes(*columns: npt.NDArray[np.generic] | pa.Array) -> npt.NDArray[np.bool_]:
    """Whether any of the columns changes, from each row to the next one."""
    found = np.zeros(max(0, len(columns[0]) - 1), dtype=np.bool_)
    for column in columns:
        if isinstance(column, pa.Array):
            found |= pc.not_equal(column[1:], column[: len(found)]).to_numpy(zero_copy_only=False)
        else:
            found |= column[1:] != column[:-1]
    return found


def _starts(changes: npt.NDArray[np.bool_], count: int) -> Int64s:
    """Return where the ranges without a change begin in `count` rows, and the end of the last one."""
    inner = np.flatnonzero(changes) + 1
    return np.concatenate(([0], inner, [count])) if count else np.zeros(1, dtype=np.int64)


def numbers_of(column: pa.ChunkedArray) -> Int64s:
    """Convert a column to numbers, NULL to NOTHING."""
    whole = column.cast(pa.int64())
    numbers: Int64s = (pc.fill_null(whole, NOTHING) if whole.null_count else whole).to_numpy()
    return numbers
