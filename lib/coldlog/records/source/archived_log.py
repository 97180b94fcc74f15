"""Read from the tables what is known of a partition's log, without an engine.

These are its served segments, the positions of their batches, and the aborted transactions. `TableReader` reads only
the row groups that may hold the answer. All reads use one version of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.errors import ColdlogError
from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.lookups.served_index import WarehouseFiles, list_warehouse_files
from coldlog.lookups.transactions import is_cut_at_end, marker_offsets
from coldlog.model.states import IndexDepth, IndexStatus, RemoteLogSegmentState
from coldlog.records.aborted_transactions import AbortedTransactions
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS, leader_epochs, listed_segment
from coldlog.tables.delta.files.table_files import TableFiles, is_newest, list_table_files
from coldlog.tables.delta.files.table_reader import KeptParts, TableReader
from coldlog.tables.delta.manifest import Manifests, hold_to_manifest

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_GREATEST = (1 << 63) - 1
_SMALLEST = -_GREATEST - 1
_KEEP_BYTES = 64 << 20
_UNREAD = pa.array([IndexStatus.GONE.value, IndexStatus.QUARANTINED.value])
_PARTITION_COLUMNS = ("topic", "partition", "is_current", "topic_id")
_SEGMENT_COLUMNS = (
    "topic", "partition", "topic_id", "segment_id", "start_offset", "end_offset", "min_timestamp_ms",
    "announced_end_offset", "max_timestamp_ms", "size_bytes", "objects", "served_build_number", "served_from_offset",
    "served_to_offset", "served_open_from_offset", "open_from_offset", "served_holes", "served_index_depth",
    "index_status", "state", "segment_leader_epochs",
)  # fmt: skip
_BATCH_COLUMNS = (
    "segment_id", "build_number", "base_offset", "last_offset", "position", "size_bytes", "max_timestamp_ms",
    "min_timestamp_ms",
)  # fmt: skip
_INTERVAL_COLUMNS = (
    "segment_id", "build_number", "after_offset", "last_offset", "position", "size_bytes",
    "running_max_timestamp_ms",
)  # fmt: skip
_ABORTED_COLUMNS = (
    "topic", "partition", "topic_id", "segment_id", "build_number", "producer_id", "first_offset", "last_offset",
    "last_stable_offset",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSegment:
    """A segment, or a part of one with holes, and the offsets, inclusive, that it serves. None means unknown.

    `open_from_offset` is the first offset of the oldest transaction that may be open where the segment stops serving;
    None: there is none. `last_offset` is the last offset that the whole segment serves, with its holes, and
    `marker_offsets` are those, inclusive, at which a marker in it counts. `leader_epochs` are those
    of the whole segment; none if they are not known. The bytes are those of the log from
    `position` to before `end_position`; None: to its end. If the log has bytes outside, a hole is there.
    """

    segment: ListedSegment
    build_number: int
    from_offset: int
    to_offset: int
    last_offset: int
    end_offset: int
    size_bytes: int | None
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    open_from_offset: int | None = None
    marker_offsets: tuple[int, int] = (0, _GREATEST)
    leader_epochs: tuple[EpochStart, ...] = ()
    position: int = 0
    end_position: int | None = None
    has_batches: bool = True
    """False at sidecar depth: the tables have the positions of intervals of its log only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlaces:
    """Positions of the batches of one segment in the order of its log. An unknown `min_timestamp_ms` is the smallest
    int64.

    At sidecar depth an entry is an interval (`index.log_intervals`): the batches that end between its two offsets. Its
    bytes may begin and end with batches of its neighbours; `max_timestamp_ms` counts all batches up to its end.
    """

    base_offset: Int64s
    last_offset: Int64s
    position: Int64s
    size_bytes: Int64s
    max_timestamp_ms: Int64s
    min_timestamp_ms: Int64s

    def __len__(self) -> int:
        return len(self.position)

    @property
    def end(self) -> Int64s:
        """Return the position after each."""
        return self.position + self.size_bytes

    def slice(self, first: int, stop: int) -> BatchPlaces:
        """Return the batches from `first` to before `stop`, without a copy."""
        return BatchPlaces(
            base_offset=self.base_offset[first:stop],
            last_offset=self.last_offset[first:stop],
            position=self.position[first:stop],
            size_bytes=self.size_bytes[first:stop],
            max_timestamp_ms=self.max_timestamp_ms[first:stop],
            min_timestamp_ms=self.min_timestamp_ms[first:stop],
        )

    def where(self, is_taken: Flags) -> BatchPlaces:
        """Return the batches that are flagged."""
        return BatchPlaces(
            base_offset=self.base_offset[is_taken],
            last_offset=self.last_offset[is_taken],
            position=self.position[is_taken],
            size_bytes=self.size_bytes[is_taken],
            max_timestamp_ms=self.max_timestamp_ms[is_taken],
            min_timestamp_ms=self.min_timestamp_ms[is_taken],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """The files of the tables from which a reading is planned."""

    lookups: WarehouseFiles
    aborted: TableFiles


def list_source_files(uri: str, as_of_ms: int | None, manifests: Manifests | None = None) -> SourceFiles:
    """List the files as of now or of `as_of_ms`. Raise `UsageError` if there is no warehouse at the uri."""
    location, manifests = f"{uri.rstrip('/')}/{TXN_INDEX.name}", manifests or Manifests(uri)
    while True:
        lookups = list_warehouse_files(uri, as_of_ms=as_of_ms, manifests=manifests)
        aborted = list_table_files(
            location, TXN_INDEX, ("topic", "partition", "first_offset", "last_offset"), as_of_ms=as_of_ms
        )
        if is_newest(lookups.segments, SEGMENTS, as_of_ms=as_of_ms):
            number, is_past = lookups.publish_number, as_of_ms is not None
            (aborted,) = hold_to_manifest(manifests, [aborted], number, is_past=is_past)
            return SourceFiles(lookups=lookups, aborted=aborted)
        # A run published meanwhile: list all again.


class Incarnation(NamedTuple):
    """A topic-partition under one id of its topic."""

    topic: str
    partition: int
    is_current: bool
    topic_id: str


class ArchivedLogs:
    """The logs of all partitions in one version of the tables. Use it in one thread."""

    def __init__(self, files: SourceFiles) -> None:
        def whole(rows: pa.Table) -> tuple[pa.Table, int]:
            return rows, rows.nbytes

        lookups = files.lookups
        self._partitions = TableReader(
            lookups.partitions, PARTITION_METADATA, _PARTITION_COLUMNS, whole, kept=KeptParts(_KEEP_BYTES)
        )
        self._segments = TableReader(lookups.segments, SEGMENTS, _SEGMENT_COLUMNS, whole, kept=KeptParts(_KEEP_BYTES))
        self._batches = TableReader(lookups.batches, OFFSET_INDEX, _BATCH_COLUMNS, whole, kept=KeptParts(_KEEP_BYTES))
        self._intervals = TableReader(
            lookups.intervals, INTERVAL_INDEX, _INTERVAL_COLUMNS, whole, kept=KeptParts(_KEEP_BYTES)
        )
        self._aborted = TableReader(files.aborted, TXN_INDEX, _ABORTED_COLUMNS, whole, kept=KeptParts(_KEEP_BYTES))

    @property
    def rows_read(self) -> int:
        """Return how many rows were read from files so far; rows kept in memory do not count."""
        return sum(reader.counts.rows for reader in self._readers())

    def partitions(self) -> list[tuple[str, int]]:
        """Return every topic-partition that the archive knows, in order."""
        return sorted({(each.topic, each.partition) for each in self.incarnations() if each.is_current})

    def incarnations(self) -> list[Incarnation]:
        """Return every incarnation of every topic-partition, in no order."""
        found: list[Incarnation] = []
        for _, rows in self._partitions.iter_parts({}, "partition"):
            columns = (rows[name].to_pylist() for name in _PARTITION_COLUMNS)
            found += map(Incarnation._make, zip(*columns, strict=True))
        return found

    def served_segments(self, topic: str, partition: int, topic_id: str) -> list[ServedSegment]:
        """Return the served segments of one incarnation of a partition, by offset. One with holes is several."""
        found = []
        for rows in self._rows(self._segments, "start_offset", topic, partition, topic_id):
            served = rows.filter(rows["served_from_offset"].is_valid())
            found += [part for row in served.to_pylist() for part in _parts(_served_segment(row), row["served_holes"])]
        return sorted(found, key=lambda segment: segment.from_offset)

    def lost_segments(self, topic: str, partition: int, topic_id: str) -> list[tuple[int, int | None]]:
        """Return first and last offset of the segments that were archived and can no longer be read: in quarantine, or
        gone without a deletion. A segment that was never listed may still be uploaded. None: the end is unknown."""
        found = []
        for rows in self._rows(self._segments, "start_offset", topic, partition, topic_id):
            unread = rows.filter(pc.is_in(rows["index_status"], _UNREAD))  # of many segments, most were deleted
            unserved = unread.filter(pc.invert(unread["served_from_offset"].is_valid()))
            found += [_offsets_of(row) for row in unserved.to_pylist() if _is_lost(row)]
        return found

    def batches(self, served: ServedSegment, from_offset: int, to_offset: int) -> BatchPlaces:
        """Return the batches of a segment that may have records between the offsets, both inclusive; at sidecar depth
        the intervals. Raise `ColdlogError` if an interval is missing."""
        if served.has_batches:
            return _in_order(self._places(self._batches, served, "base_offset", from_offset, to_offset))
        found = self._places(self._intervals, served, "after_offset", from_offset, to_offset - 1)
        found["base_offset"] = found.pop("after_offset") + 1
        found["max_timestamp_ms"] = np.maximum(found.pop("running_max_timestamp_ms"), -1)
        found["min_timestamp_ms"] = np.full(len(found["position"]), _SMALLEST)
        intervals = _in_order(found)
        _require_all(intervals, served, from_offset, to_offset)
        return intervals

    def _places(
        self, reader: TableReader[pa.Table], served: ServedSegment, first: str, from_offset: int, to_first: int
    ) -> dict[str, Int64s]:
        """Return the columns of a segment's rows that end at or after `from_offset` and have at most `to_first` in the
        column `first`."""
        segment = served.segment
        near = {"topic": (segment.topic,) * 2, "partition": (segment.partition,) * 2}
        further = {"last_offset": (from_offset, _GREATEST), first: (_SMALLEST, to_first)}
        parts = []
        for _, rows in reader.iter_parts(near, first, further):
            is_same = pc.and_(
                pc.equal(rows["segment_id"], segment.segment_id), pc.equal(rows["build_number"], served.build_number)
            )
            is_near = pc.and_(pc.greater_equal(rows["last_offset"], from_offset), pc.less_equal(rows[first], to_first))
            parts.append(rows.filter(pc.and_(is_same, is_near)))
        columns = _BATCH_COLUMNS if reader is self._batches else _INTERVAL_COLUMNS
        return {
            name: np.concatenate([_numbers(part[name]) for part in parts] or [np.empty(0, dtype=np.int64)])
            for name in columns[2:]
        }

    def aborted(
        self, topic: str, partition: int, topic_id: str, served: Sequence[ServedSegment]
    ) -> AbortedTransactions:
        """Return the aborted transactions in the index of the partition's served segments. A marker behind the offsets
        that a segment serves is of a deposed leader's log; its successor may have committed the transaction."""
        counted = {(each.segment.segment_id, each.build_number): each.marker_offsets for each in served}
        found = sorted(
            {
                tuple(row[name] for name in _ABORTED_COLUMNS[5:])
                for rows in self._rows(self._aborted, "first_offset", topic, partition, topic_id)
                for row in rows.to_pylist()
                if (offsets := counted.get((row["segment_id"], row["build_number"]))) is not None
                and offsets[0] <= row["last_offset"] <= offsets[1]
            }
        )
        columns = np.array(found, dtype=np.int64).reshape(-1, len(_ABORTED_COLUMNS[5:]))
        return AbortedTransactions(**{name: columns[:, at].copy() for at, name in enumerate(_ABORTED_COLUMNS[5:])})

    def _rows(
        self, reader: TableReader[pa.Table], order_by: str, topic: str, partition: int, topic_id: str
    ) -> Iterator[pa.Table]:
        near = {"topic": (topic, topic), "partition": (partition, partition)}
        for _, rows in reader.iter_parts(near, order_by):
            is_same = pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["partition"], partition))
            yield rows.filter(pc.and_(is_same, pc.equal(rows["topic_id"], topic_id)))

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers():
            reader.close()

    def _readers(self) -> tuple[TableReader[pa.Table], ...]:
        return self._partitions, self._segments, self._batches, self._intervals, self._aborted


def _in_order(columns: dict[str, Int64s]) -> BatchPlaces:
    order = np.argsort(columns["position"], kind="stable")
    return BatchPlaces(**{name: column[order] for name, column in columns.items()})


def _require_all(intervals: BatchPlaces, served: ServedSegment, from_offset: int, to_offset: int) -> None:
    """Raise `ColdlogError` if the intervals do not cover the offsets that are sought: records would be passed over."""
    wanted = max(from_offset, served.segment.start_offset), min(to_offset, served.end_offset)
    if wanted[0] > wanted[1]:
        return
    base, last = intervals.base_offset.tolist(), intervals.last_offset.tolist()
    is_whole = bool(base) and base[0] <= wanted[0] and last[-1] >= wanted[1]
    if not is_whole or any(end + 1 != begin for end, begin in zip(last[:-1], base[1:], strict=True)):
        segment = served.segment
        raise ColdlogError(
            f"table {INTERVAL_INDEX.name} lacks intervals of segment {segment.segment_id} of {segment.topic}-"
            f"{segment.partition} between offsets {wanted[0]} and {wanted[1]}; run rebuild_tables"
        )


def undecided_offsets(segments: Sequence[ServedSegment]) -> list[tuple[int, int]]:
    """Return the offsets, inclusive, whose transactions may have ended in a gap after them: it is unknown whether they
    were aborted. `segments` are the served segments of a partition in order."""
    return [
        (before.open_from_offset, before.to_offset)
        for before, after in pairwise(segments)
        if after.from_offset > before.last_offset + 1
        and before.open_from_offset is not None
        and before.open_from_offset <= before.to_offset
    ]


def without_offsets(segments: Sequence[ServedSegment], lost: Sequence[tuple[int, int]]) -> list[ServedSegment]:
    """Return the segments without these offsets. Each of the lost ranges ends where a segment ends."""
    shortened = []
    for segment in segments:
        last = segment.to_offset
        first = min((begin for begin, end in lost if begin <= last <= end), default=last + 1)
        if first > segment.from_offset:
            shortened.append(replace(segment, to_offset=first - 1))
    return shortened


def _is_lost(row: Mapping[str, object]) -> bool:
    if row["index_status"] == IndexStatus.GONE.value:
        return row["state"] == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name and bool(row["objects"])
    return row["index_status"] == IndexStatus.QUARANTINED.value


def _offsets_of(row: Mapping[str, int | None]) -> tuple[int, int | None]:
    first, last = row["start_offset"], row["end_offset"]
    assert first is not None
    return first, row["announced_end_offset"] if last is None else last


def _served_segment(row: Mapping[str, object]) -> ServedSegment:
    known = ("end_offset", "size_bytes", "min_timestamp_ms", "max_timestamp_ms")
    numbers = {name: row[name] for name in known}
    open_from_offset = row["served_open_from_offset"]
    if open_from_offset is None and not is_cut_at_end(row):
        open_from_offset = row["open_from_offset"]
    return ServedSegment(
        segment=listed_segment(row),
        build_number=row["served_build_number"],  # type: ignore[arg-type]  # the columns' types are those of the table
        from_offset=row["served_from_offset"],  # type: ignore[arg-type]  # the columns' types are those of the table
        to_offset=row["served_to_offset"],  # type: ignore[arg-type]
        last_offset=row["served_to_offset"],  # type: ignore[arg-type]
        open_from_offset=open_from_offset,  # type: ignore[arg-type]
        marker_offsets=marker_offsets(row),
        leader_epochs=leader_epochs(row),
        has_batches=row["served_index_depth"] != IndexDepth.SIDECAR.value,
        **numbers,  # type: ignore[arg-type]
    )


def _parts(served: ServedSegment, holes: Sequence[Mapping[str, int | None]] | None) -> list[ServedSegment]:
    """Divide a segment at its holes. Which transactions were aborted in a hole is in the segment's transaction index,
    so only after the last part something is undecided.

    A part is never read as a whole log, so its size is not known.
    """
    parts = list(_between_holes(served, holes)) if holes else [served]
    return [replace(part, open_from_offset=None) for part in parts[:-1]] + parts[-1:]


def _between_holes(served: ServedSegment, holes: Sequence[Mapping[str, int | None]]) -> Iterator[ServedSegment]:
    rest = replace(served, size_bytes=None)
    for hole in holes:
        first, last, begin, end = (hole[name] for name in ("from_offset", "to_offset", "position", "end_position"))
        assert first is not None
        if begin != rest.position and rest.from_offset < first:
            yield replace(rest, to_offset=min(rest.to_offset, first - 1), end_position=begin)
        if last is None or last >= rest.to_offset:
            return
        rest = replace(rest, from_offset=max(rest.from_offset, last + 1), position=end or 0)
    yield rest


def _numbers(column: pa.ChunkedArray) -> Int64s:
    numbers: Int64s = pc.fill_null(column.cast(pa.int64()), _SMALLEST).to_numpy()
    return numbers
