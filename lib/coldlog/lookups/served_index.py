"""Read from the tables what lookups need of one partition, without an engine.

It uses the same tables and the same three levels as the SQL functions (segment, then batch or stair), over
`TableReader`: a question reads only the row groups that may hold its answer. An index is for one thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.index.partition_plan import LogStartSource
from coldlog.index.unserved_ranges import UnservedRange
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.time_index import TIME_INDEX
from coldlog.tables.delta.locations import plain_location
from coldlog.tables.delta.manifest import Manifests, hold_to_manifest
from coldlog.tables.delta.table_files import NoTableError, TableFiles, is_newest, list_table_files, no_files
from coldlog.tables.delta.table_reader import PartRange, TableReader

Int64s = npt.NDArray[np.int64]
NOTHING = np.iinfo(np.int64).min
"""Marks a missing timestamp in an array; every record's timestamp is larger."""
_END = np.iinfo(np.int64).max
_KEPT_SEGMENTS = 1_000_000
"""Each takes about 100 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseFiles:
    """The files of the tables that lookups read. Can be pickled."""

    partitions: TableFiles
    segments: TableFiles
    batches: TableFiles
    stairs: TableFiles
    intervals: TableFiles

    @property
    def publish_number(self) -> int:
        """Return the number of the newest publish that is in these files; 0 if there is none."""
        return max(self.partitions.publish_number, self.segments.publish_number)


def list_warehouse_files(
    uri: str, *, as_of_ms: int | None = None, manifests: Manifests | None = None
) -> WarehouseFiles:
    """List the files of the warehouse as of now or of `as_of_ms`. The index tables match the listed `segments`."""

    warehouse = plain_location(uri).rstrip("/")

    def place(table: TableDefinition) -> str:
        return f"{warehouse}/{table.name}"

    def listed(table: TableDefinition) -> TableFiles:
        # Delta keeps statistics of these columns for each file.
        schema = table.arrow_schema
        columns = [
            name
            for name in table.skipping_columns
            if pa.types.is_integer(kind := schema.field(name).type) or pa.types.is_string(kind)
        ]
        return list_table_files(place(table), table, columns, as_of_ms=as_of_ms)

    def listed_intervals() -> TableFiles:
        try:
            return listed(INTERVAL_INDEX)
        except NoTableError:  # a release before this table wrote the warehouse; a manifest names a table that is lost
            return no_files(place(INTERVAL_INDEX), INTERVAL_INDEX)

    while True:
        # A bucket takes some requests for each table.
        with ThreadPoolExecutor(3) as at_once:
            segments, partitions = at_once.map(listed, (SEGMENTS, PARTITION_METADATA))
            listing = at_once.submit(listed_intervals)
            batches, stairs = at_once.map(listed, (OFFSET_INDEX, TIME_INDEX))
            intervals = listing.result()
        first = ((segments, SEGMENTS), (partitions, PARTITION_METADATA))
        if all(is_newest(files, table, as_of_ms=as_of_ms) for files, table in first):
            listed_files = (segments, partitions, batches, stairs, intervals)
            segments, partitions, batches, stairs, intervals = hold_to_manifest(
                manifests or Manifests(warehouse), listed_files, is_past=as_of_ms is not None
            )
            return WarehouseFiles(
                partitions=partitions, segments=segments, batches=batches, stairs=stairs, intervals=intervals
            )
        # A run published meanwhile: the rows that the older `segments` names may be deleted.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """A row of partition_metadata; None means NULL."""

    topic_id: str
    log_start_offset: int | None
    earliest_offset: int | None
    latest_tiered_offset: int | None
    max_timestamp_ms: int | None
    max_timestamp_offset: int | None
    stable_offset: int | None
    lineage: tuple[tuple[int, int], ...]
    unserved_ranges: tuple[UnservedRange, ...] | None = None
    is_log_start_known: bool = True
    """False: the log starts at `log_start_offset` or later."""

    @property
    def first_offset(self) -> int:
        """Return where the log begins, as far as the archive knows."""
        known = self.log_start_offset if self.log_start_offset is not None else self.earliest_offset
        return 0 if known is None else known

    @property
    def local_start_offset(self) -> int:
        """Return where the search of segments that are not archived begins."""
        return self.first_offset if self.latest_tiered_offset is None else self.latest_tiered_offset + 1

    @property
    def leader_epoch(self) -> int | None:
        """Return the newest leader epoch that is known."""
        return self.lineage[-1][0] if self.lineage else None

    def leader_epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the leader that wrote `offset`."""
        return next((epoch for epoch, start in reversed(self.lineage) if start <= offset), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSegments:
    """The segments that answer for one partition, in the order of their offsets.

    `running_max_ms` never decreases. The first segment where it is at least T has the answer to T, or the answer that a
    broker gives (`broker_compatible`). `exact_running_max_ms` is always computed from the records.
    """

    segment_ids: tuple[str, ...]
    build_numbers: Int64s
    from_offsets: Int64s
    end_offsets: Int64s
    to_offsets: Int64s
    running_max_ms: Int64s
    exact_running_max_ms: Int64s
    is_at_batch_depth: npt.NDArray[np.bool_]
    is_at_sidecar_depth: npt.NDArray[np.bool_]

    def is_read(self, number: int) -> bool:
        """Whether a lookup reads the archive of the segment with this number."""
        return bool(self.is_at_batch_depth[number] or self.is_at_sidecar_depth[number])

    def place(self, topic: str, partition: int, number: int) -> SegmentPlace:
        """Return one of the segments."""
        return SegmentPlace(
            topic=topic,
            partition=partition,
            segment_id=self.segment_ids[number],
            build_number=int(self.build_numbers[number]),
            from_offset=int(self.from_offsets[number]),
            end_offset=int(self.end_offsets[number]),
            to_offset=int(self.to_offsets[number]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """A segment that answers for a partition, and the key of its index rows."""

    topic: str
    partition: int
    segment_id: str
    build_number: int
    from_offset: int
    end_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class FoundStairs:
    """Answers to several timestamps. Where there is no answer, `offsets` and `leader_epochs` are -1, `timestamps_ms`
    NOTHING."""

    offsets: Int64s
    timestamps_ms: Int64s
    leader_epochs: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBatch:
    """Position and size, in the log, of a batch that has an answer."""

    base_offset: int
    position: int
    size_bytes: int
    counted_from_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInterval:
    """A part of a log that has an answer, by its headers: the batches that end after `after_offset` and at or before
    `last_offset`, in `size_bytes` of the log from `position` on. The segment answers for `from_offset` to `to_offset`,
    inclusive, and ends with `end_offset`."""

    after_offset: int
    last_offset: int
    position: int
    size_bytes: int
    from_offset: int
    to_offset: int
    end_offset: int


class ServedIndex:
    """Reads partitions, their served segments, and the stairs or batches of these segments."""

    def __init__(self, files: WarehouseFiles, *, broker_compatible: bool = False) -> None:
        self.broker_compatible = broker_compatible
        self.files = files
        self._partitions = TableReader(files.partitions, PARTITION_METADATA, _PARTITION_COLUMNS, _decode_partitions)
        self._segments = TableReader(files.segments, SEGMENTS, _SEGMENT_COLUMNS, _decode_segments)
        self._segment_rows = TableReader(files.segments, SEGMENTS, _OBJECT_COLUMNS, lambda rows: (rows, rows.nbytes))
        self._stairs = TableReader(files.stairs, TIME_INDEX, _STAIR_COLUMNS, _decode_stairs)
        self._batches = TableReader(files.batches, OFFSET_INDEX, _BATCH_COLUMNS, _decode_batches)
        self._intervals = TableReader(files.intervals, INTERVAL_INDEX, _INTERVAL_COLUMNS, _decode_intervals)
        self._kept: dict[tuple[str, int], tuple[PartitionFacts, ServedSegments] | None] = {}
        self._kept_segments = 0

    @property
    def rows_read(self) -> int:
        """Return how many rows were read from files so far; rows kept in memory do not count."""
        return sum(reader.counts.rows for reader in self._readers())

    def partition(self, topic: str, partition: int) -> tuple[PartitionFacts, ServedSegments] | None:
        """Return what is known of the current incarnation of a topic's partition; None if it is unknown."""
        place = (topic, partition)
        if place in self._kept:
            return self._kept[place]
        facts = self.find_facts(topic, partition)
        found = None if facts is None else (facts, self._find_segments(place, facts.topic_id))
        self._kept_segments += 1 if found is None else 1 + len(found[1].segment_ids)
        if self._kept_segments > _KEPT_SEGMENTS:
            self._kept.clear()
            self._kept_segments = 0
        self._kept[place] = found
        return found

    def list_partitions(self, topic: str) -> list[int]:
        """Return the numbers of the partitions of the topic's current incarnation."""
        near = {"topic": (topic, topic)}
        places = (place for _, rows in self._partitions.iter_parts(near, "partition") for place in rows.places)
        return sorted(partition for name, partition in places if name == topic)

    def find_facts(self, topic: str, partition: int) -> PartitionFacts | None:
        """Return only the partition's row of partition_metadata."""
        place = (topic, partition)
        for _, rows in self._partitions.iter_parts(_partition_range(*place), "partition"):
            at = rows.places.get(place)
            if at is not None:
                return rows.facts(at)
        return None

    def find_stairs(
        self,
        place: tuple[str, int],
        segments: ServedSegments,
        runs: Sequence[tuple[int, int, int]],
        timestamps_ms: Int64s,
    ) -> FoundStairs:
        """Find for each timestamp the first record of its segment at or after it.

        A run is (number of a segment, first, last + 1) of `timestamps_ms`, which ascend within the run; runs ascend by
        segment. Only row groups that may hold an answer are read.
        """
        sought = _SoughtStairs(place, segments, runs, timestamps_ms)
        near = _partition_range(*place)
        for known, part in self._stairs.iter_parts(near, "offset", sought.further, sought.may_be_in):
            sought.look_into(known, part)
        return sought.found

    def find_batch(self, segment: SegmentPlace, timestamp_ms: int) -> FoundBatch | None:
        """Find the first batch of the segment whose running maximum is at or after the timestamp."""
        found = _find_row(self._batches, "base_offset", segment, timestamp_ms)
        if found is None:
            return None
        return FoundBatch(
            base_offset=found["base_offset"],
            position=found["position"],
            size_bytes=found["size_bytes"],
            counted_from_offset=segment.from_offset,
        )

    def find_interval(self, segment: SegmentPlace, timestamp_ms: int) -> FoundInterval | None:
        """Find the first interval of the segment whose running maximum is at or after the timestamp."""
        found = _find_row(self._intervals, "after_offset", segment, timestamp_ms)
        if found is None:
            return None
        return FoundInterval(
            **found, from_offset=segment.from_offset, to_offset=segment.to_offset, end_offset=segment.end_offset
        )

    def find_segment_row(self, segment: SegmentPlace) -> dict[str, object]:
        """Return the segment's row of `segments`, with the columns needed to read its log."""
        within = _partition_range(segment.topic, segment.partition)
        for _, rows in self._segment_rows.iter_parts(within, "start_offset"):
            is_same = pc.and_(pc.equal(rows["topic"], segment.topic), pc.equal(rows["partition"], segment.partition))
            chosen = rows.filter(pc.and_(is_same, pc.equal(rows["segment_id"], segment.segment_id)))
            if chosen.num_rows:
                row: dict[str, object] = chosen.to_pylist()[0]
                return row
        raise AssertionError(f"segment {segment.segment_id} was listed in this version of the table")

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers():
            reader.close()

    def _readers(self) -> tuple[TableReader[Any], ...]:
        tables = (self._partitions, self._segments, self._segment_rows)
        return (*tables, self._stairs, self._batches, self._intervals)

    def _find_segments(self, place: tuple[str, int], topic_id: str) -> ServedSegments:
        parts = [part for _, part in self._segments.iter_parts(_partition_range(*place), "start_offset")]
        runs = [(part, *part.runs[(*place, topic_id)]) for part in parts if (*place, topic_id) in part.runs]
        segment_ids = [segment_id for part, start, stop in runs for segment_id in part.segment_ids[start:stop]]
        if len(runs) == 1:
            ((part, start, stop),) = runs
            columns = {name: part.columns[name][start:stop] for name in _SEGMENT_NUMBERS}
        else:
            columns = {
                name: np.concatenate([part.columns[name][start:stop] for part, start, stop in runs] or [_NO_SEGMENTS])
                for name in _SEGMENT_NUMBERS
            }
            order = np.argsort(columns["served_from_offset"], kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
            segment_ids = [segment_ids[at] for at in order.tolist()]
        reached = "broker_running_max_timestamp_ms" if self.broker_compatible else "running_max_timestamp_ms"
        return ServedSegments(
            segment_ids=tuple(segment_ids),
            build_numbers=columns["served_build_number"],
            from_offsets=columns["served_from_offset"],
            end_offsets=columns["end_offset"],
            to_offsets=columns["served_to_offset"],
            running_max_ms=columns[reached],
            exact_running_max_ms=columns["running_max_timestamp_ms"],
            is_at_batch_depth=columns["is_at_batch_depth"].astype(np.bool_),
            is_at_sidecar_depth=columns["is_at_sidecar_depth"].astype(np.bool_),
        )


def _partition_range(topic: str, partition: int) -> dict[str, tuple[object, object]]:
    return {"topic": (topic, topic), "partition": (partition, partition)}


def _find_row(
    reader: TableReader[_IndexRows], offset: str, segment: SegmentPlace, timestamp_ms: int
) -> dict[str, int] | None:
    """Find the segment's first row, by `offset`, whose running maximum is at or after the timestamp."""
    best: dict[str, int] | None = None
    near = _partition_range(segment.topic, segment.partition)
    offsets = segment.from_offset, segment.end_offset
    further = {"last_offset": offsets, "running_max_timestamp_ms": (timestamp_ms, _END)}
    key = (segment.topic, segment.partition, segment.segment_id, segment.build_number)
    for known, part in reader.iter_parts(near, offset, further):
        if best is not None and known.least(offset) > best[offset]:
            break
        for start, stop in part.runs.get(key, ()):
            at = start + int(np.searchsorted(part.keys[start:stop], timestamp_ms))
            if at < stop and (best is None or part.offsets[at] < best[offset]):
                columns = {name: int(column[at]) for name, column in part.columns.items()}
                best = {offset: int(part.offsets[at]), **columns}
    return best


class _SoughtStairs:
    """Timestamps to find in the stairs of segments, and the answers found so far."""

    def __init__(
        self,
        place: tuple[str, int],
        segments: ServedSegments,
        runs: Sequence[tuple[int, int, int]],
        timestamps_ms: Int64s,
    ) -> None:
        self.found = _no_stairs(len(timestamps_ms))
        self._runs = runs
        self._timestamps_ms = timestamps_ms
        self._numbers = [number for number, _, _ in runs]
        self._keys = [
            (*place, segments.segment_ids[at], build)
            for at, build in zip(self._numbers, segments.build_numbers[self._numbers].tolist(), strict=True)
        ]
        self._from_offsets = segments.from_offsets[self._numbers].tolist()
        # Another upload may replace the end of this one: its end may then be after the ends of later segments.
        self._end_offsets = np.maximum.accumulate(segments.end_offsets[self._numbers]).tolist()
        self._least_ms = timestamps_ms[[first for _, first, _ in runs]].tolist()
        self._is_begun = [False] * len(runs)
        self.further = {
            "offset": (self._from_offsets[0], self._end_offsets[-1]),
            "timestamp_ms": (min(self._least_ms), _END),
        }

    def may_be_in(self, part: PartRange) -> bool:
        """True if the part may have an answer for a run, or a lower one than found so far."""
        least_offset, latest_ms = part.least("offset"), part.greatest("timestamp_ms")
        return any(
            self._least_ms[at] <= latest_ms and self._may_be_better(at, least_offset)
            for at in self._runs_within(least_offset, part.greatest("offset"))
        )

    def look_into(self, known: PartRange, part: _IndexRows) -> None:
        """Take the answers of the part that are lower than those found so far."""
        for at in self._runs_within(known.least("offset"), known.greatest("offset")):
            for start, stop in part.runs.get(self._keys[at], ()):
                self._take_lower(at, part, start, stop)

    def _runs_within(self, least_offset: int, greatest_offset: int) -> range:
        """Return the runs whose segments may have stairs between these offsets."""
        return range(bisect_left(self._end_offsets, least_offset), bisect_right(self._from_offsets, greatest_offset))

    def _may_be_better(self, at: int, least_offset: int) -> bool:
        if not self._is_begun[at]:
            return True
        _, first, last = self._runs[at]
        offsets = self.found.offsets[first:last]
        return bool(offsets.min() < 0 or least_offset <= offsets.max())

    def _take_lower(self, at: int, part: _IndexRows, start: int, stop: int) -> None:
        _, first, last = self._runs[at]
        places = np.searchsorted(part.keys[start:stop], self._timestamps_ms[first:last])
        if places[-1] == stop - start:
            # Timestamps ascend: the last ones are later than all stairs of this part.
            last = first + int(np.searchsorted(places, stop - start))
            places = places[: last - first]
        places += start
        where, offsets, found = np.arange(first, last), part.offsets[places], self.found
        if self._is_begun[at]:
            is_better = (found.offsets[where] < 0) | (offsets < found.offsets[where])
            where, places, offsets = where[is_better], places[is_better], offsets[is_better]
        found.offsets[where] = offsets
        found.timestamps_ms[where] = part.keys[places]
        found.leader_epochs[where] = part.columns["leader_epoch"][places]
        self._is_begun[at] = True


def _no_stairs(count: int) -> FoundStairs:
    return FoundStairs(*(np.full(count, nothing, dtype=np.int64) for nothing in (-1, NOTHING, -1)))


def _numbers(column: pa.ChunkedArray) -> Int64s:
    """Convert a column to numbers, NULL to NOTHING."""
    filled = pc.fill_null(column.cast(pa.int64()), NOTHING)
    numbers: Int64s = filled.to_numpy()
    return numbers


_PARTITION_COLUMNS = (
    "topic", "partition", "topic_id", "is_current", "log_start_source", "log_start_offset", "earliest_offset",
    "latest_tiered_offset", "max_timestamp_ms", "max_timestamp_offset", "stable_offset", "leader_epoch_lineage",
    "unserved_ranges",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _PartitionRows:
    places: dict[tuple[str, int], int]
    columns: dict[str, list[int | None]]
    topic_ids: list[str]
    lineage_bounds: list[int]
    lineages: list[tuple[int, int]]
    unserved_ranges: list[tuple[UnservedRange, ...] | None]
    log_start_sources: list[str | None]

    def facts(self, at: int) -> PartitionFacts:
        lineage = tuple(self.lineages[self.lineage_bounds[at] : self.lineage_bounds[at + 1]])
        numbers = {name: column[at] for name, column in self.columns.items()}
        return PartitionFacts(
            topic_id=self.topic_ids[at],
            lineage=lineage,
            unserved_ranges=self.unserved_ranges[at],
            is_log_start_known=self.log_start_sources[at] != LogStartSource.CHECKPOINT_LOST,
            **numbers,
        )


def _decode_partitions(rows: pa.Table) -> tuple[_PartitionRows, int]:
    current = rows.filter(rows["is_current"]).combine_chunks()
    places = zip(current["topic"].to_pylist(), current["partition"].to_pylist(), strict=True)
    lineages = current["leader_epoch_lineage"]
    lengths = pc.fill_null(pc.list_value_length(lineages), 0).to_numpy()
    entries = pc.list_flatten(lineages).to_pylist()
    decoded = _PartitionRows(
        places={place: at for at, place in enumerate(places)},
        columns={name: current[name].to_pylist() for name in _PARTITION_COLUMNS[5:-2]},
        topic_ids=current["topic_id"].to_pylist(),
        lineage_bounds=[0, *np.cumsum(lengths).tolist()],
        lineages=[(entry["leader_epoch"], entry["start_offset"]) for entry in entries],
        unserved_ranges=_decode_unserved(current),
        log_start_sources=current["log_start_source"].to_pylist(),
    )
    return decoded, current.nbytes * 4


def _decode_unserved(rows: pa.Table) -> list[tuple[UnservedRange, ...] | None]:
    """Decode the ranges; None if a release without them wrote the row."""
    stored = rows["unserved_ranges"].to_pylist()
    return [None if ranges is None else tuple(UnservedRange(**each) for each in ranges) for ranges in stored]


_SEGMENT_COLUMNS = (
    "topic", "partition", "topic_id", "segment_id", "served_build_number", "served_index_depth", "end_offset",
    "served_from_offset", "served_to_offset", "running_max_timestamp_ms", "broker_running_max_timestamp_ms",
)  # fmt: skip
_SEGMENT_NUMBERS = (
    "served_build_number", "end_offset", "served_from_offset", "served_to_offset", "running_max_timestamp_ms",
    "broker_running_max_timestamp_ms", "is_at_batch_depth", "is_at_sidecar_depth",
)  # fmt: skip
_OBJECT_COLUMNS = ("topic", "partition", "topic_id", "segment_id", "start_offset", "objects", "size_bytes")
_NO_SEGMENTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _SegmentRows:
    runs: dict[tuple[str, int, str], tuple[int, int]]
    columns: dict[str, Int64s]
    segment_ids: list[str]


def _decode_segments(rows: pa.Table) -> tuple[_SegmentRows, int]:
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
    decoded = _SegmentRows(
        runs={(keys[0][at], keys[1][at], keys[2][at]): (at, stop) for at, stop in _iter_runs(*places)},
        columns={name: _numbers(served[name]) for name in _SEGMENT_NUMBERS},
        segment_ids=served["segment_id"].to_pylist(),
    )
    return decoded, served.nbytes * 4


# A segment id belongs to one upload, unless the directory of a partition was copied.
_RUN_COLUMNS = ("topic", "partition", "segment_id", "build_number")
_STAIR_COLUMNS = (*_RUN_COLUMNS, "offset", "timestamp_ms", "leader_epoch")
_BATCH_COLUMNS = (*_RUN_COLUMNS, "base_offset", "running_max_timestamp_ms", "position", "size_bytes")
_INTERVAL_COLUMNS = (
    *_RUN_COLUMNS, "after_offset", "last_offset", "running_max_timestamp_ms", "position", "size_bytes"
)  # fmt: skip
_Run = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexRows:
    """Rows of an index table. `runs` has, by `_RUN_COLUMNS`, the ranges in which `offsets` and `keys` ascend."""

    runs: dict[_Run, list[tuple[int, int]]]
    keys: Int64s
    offsets: Int64s
    columns: dict[str, Int64s]


def _decode_stairs(rows: pa.Table) -> tuple[_IndexRows, int]:
    return _decode_index(rows, "timestamp_ms", "offset", ("leader_epoch",))


def _decode_batches(rows: pa.Table) -> tuple[_IndexRows, int]:
    return _decode_index(rows, "running_max_timestamp_ms", "base_offset", ("position", "size_bytes"))


def _decode_intervals(rows: pa.Table) -> tuple[_IndexRows, int]:
    columns = ("last_offset", "position", "size_bytes")
    return _decode_index(rows, "running_max_timestamp_ms", "after_offset", columns)


def _decode_index(rows: pa.Table, key: str, offset: str, others: tuple[str, ...]) -> tuple[_IndexRows, int]:
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
    decoded = _IndexRows(
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
