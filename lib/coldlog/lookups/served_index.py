"""Read from the tables what lookups need of one partition, without an engine.

It uses the same tables and the same three levels as the SQL functions (segment, then batch or stair), over
`TableReader`: a question reads only the row groups that may hold its answer. An index is for one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.lookups.index_rows import (
    BATCH_COLUMNS,
    INTERVAL_COLUMNS,
    NO_SEGMENTS,
    OBJECT_COLUMNS,
    SEGMENT_COLUMNS,
    SEGMENT_NUMBERS,
    STAIR_COLUMNS,
    IndexRows,
    Int64s,
    SegmentRows,
    decode_batches,
    decode_intervals,
    decode_segments,
    decode_stairs,
)
from coldlog.lookups.partition_facts import (
    PARTITION_COLUMNS,
    PartitionFacts,
    PartitionRows,
    decode_incarnations,
    decode_partitions,
)
from coldlog.lookups.sought_stairs import FoundStairs, SegmentPlace, ServedSegments, SoughtStairs, StairRun
from coldlog.model.incarnations import topic_of_incarnation
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import NoTableError, TableFiles, is_newest, list_table_files, no_files
from coldlog.tables.delta.files.table_reader import IsNeeded, KeptParts, TableReader, Within
from coldlog.tables.delta.locations import plain_location
from coldlog.tables.delta.manifest import Manifests, hold_to_manifest

_END = np.iinfo(np.int64).max
_KEPT_BYTES = 160 << 20
"""Decoded row groups of all tables. A reader of 10 million segments takes half a gigabyte with them."""
_KEPT_SEGMENTS = 100_000
"""Each takes about 200 bytes, beside the row groups that are kept."""


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

    def __init__(
        self, files: WarehouseFiles, *, broker_compatible: bool = False, older_incarnations: bool = False
    ) -> None:
        self.broker_compatible = broker_compatible
        self._older_incarnations = older_incarnations
        self.files = files
        kept = KeptParts(_KEPT_BYTES)
        self._partitions = TableReader(
            files.partitions, PARTITION_METADATA, PARTITION_COLUMNS, decode_partitions, kept=kept
        )
        self._incarnations = TableReader(
            files.partitions, PARTITION_METADATA, PARTITION_COLUMNS, decode_incarnations, kept=kept
        )
        self._segments = TableReader(files.segments, SEGMENTS, SEGMENT_COLUMNS, decode_segments, kept=kept)
        self._segment_rows = TableReader(
            files.segments, SEGMENTS, OBJECT_COLUMNS, lambda rows: (rows, rows.nbytes), kept=kept
        )
        self._stairs = TableReader(files.stairs, TIME_INDEX, STAIR_COLUMNS, decode_stairs, kept=kept)
        self._batches = TableReader(files.batches, OFFSET_INDEX, BATCH_COLUMNS, decode_batches, kept=kept)
        self._intervals = TableReader(files.intervals, INTERVAL_INDEX, INTERVAL_COLUMNS, decode_intervals, kept=kept)
        self._kept: dict[tuple[str, int], tuple[PartitionFacts, ServedSegments] | None] = {}
        self._kept_segments = 0

    @property
    def rows_read(self) -> int:
        """Return how many rows were read from files so far; rows kept in memory do not count."""
        return sum(reader.counts.rows for reader in self._readers())

    def partition(self, topic: str, partition: int) -> tuple[PartitionFacts, ServedSegments] | None:
        """Return what is known of the current incarnation of a topic's partition; None if it is unknown. Opened with
        `older_incarnations`, it knows those by their names too."""
        place = (topic, partition)
        if place in self._kept:
            return self._kept[place]
        if self._older_incarnations:
            topic, facts = self.find_incarnation(topic, partition)
        else:
            facts = self.find_facts(topic, partition)
        found = None if facts is None else (facts, self._find_segments(topic, partition, facts.topic_id))
        self._kept_segments += 1 if found is None else 1 + len(found[1].segment_ids)
        if self._kept_segments > _KEPT_SEGMENTS:
            self._kept.clear()
            self._kept_segments = 0
        self._kept[place] = found
        return found

    def list_partitions(self, topic: str) -> list[int]:
        """Return the numbers of the partitions of the topic's current incarnation."""
        near = {"topic": (topic, topic)}
        parts = self._partitions.iter_parts(near, "partition")
        return sorted(number for _, rows in parts for number in rows.partitions_of(topic))

    def find_facts(self, topic: str, partition: int) -> PartitionFacts | None:
        """Return only the row of partition_metadata of a partition's current incarnation."""
        for _, rows in self._partitions.iter_parts(_partition_range(topic, partition), "partition"):
            at = rows.find(topic, partition)
            if at is not None:
                return rows.facts(at)
        return None

    def find_incarnation(self, name: str, partition: int) -> tuple[str, PartitionFacts | None]:
        """Return the topic and the row of a partition, by the name of its topic or of an incarnation of the topic."""
        facts, topic = self.find_facts(name, partition), topic_of_incarnation(name)
        if facts is not None or topic is None or self.list_partitions(name):
            return name, facts
        parts = self._incarnations.iter_parts(_partition_range(topic, partition), "partition")
        places = ((rows, rows.find(name, partition)) for _, rows in parts)
        found = [rows.facts(at) for rows, at in places if at is not None]
        return topic, found[0] if len(found) == 1 else None

    def find_stairs(
        self, segments: ServedSegments, runs: Sequence[tuple[int, int, int]], timestamps_ms: Int64s
    ) -> FoundStairs:
        """Find for each timestamp the first record of its segment at or after it.

        A run is (number of a segment, first, last + 1) of `timestamps_ms`, which ascend within the run; runs ascend by
        segment. Only row groups that may hold an answer are read.
        """
        sought = SoughtStairs(segments, runs, timestamps_ms)
        near = _partition_range(segments.topic, segments.partition)
        for known, part in self._stairs.iter_parts(near, "offset", sought.further, sought.may_be_in):
            sought.look_into(known, part)
        return sought.found

    def iter_partition_rows(self, near: Within, is_needed: IsNeeded) -> Iterator[PartitionRows]:
        """Iterate over the rows of partition_metadata in the parts of the table that are needed."""
        return (rows for _, rows in self._partitions.iter_parts(near, "partition", is_needed=is_needed))

    def iter_segment_rows(self, near: Within, is_needed: IsNeeded) -> Iterator[SegmentRows]:
        """As `iter_partition_rows`, with served segments."""
        return (rows for _, rows in self._segments.iter_parts(near, "start_offset", is_needed=is_needed))

    def iter_stairs(self, near: Within, is_needed: IsNeeded) -> Iterator[IndexRows]:
        """As `iter_partition_rows`, with stairs."""
        return (rows for _, rows in self._stairs.iter_parts(near, "offset", is_needed=is_needed))

    @property
    def running_max_column(self) -> str:
        """The column of `segments` by which a segment is chosen for a time."""
        return "broker_running_max_timestamp_ms" if self.broker_compatible else "running_max_timestamp_ms"

    def find_run(self, segments: ServedSegments, number: int, timestamp_ms: int) -> StairRun | None:
        """Return the run of stairs in which `find_stairs` finds the answer of the segment with this number; None if
        there is no answer, or other parts of the table may have stairs between those of the run."""
        sought, best = SoughtStairs(segments, [(number, 0, 1)], np.array([timestamp_ms])), None
        near = _partition_range(segments.topic, segments.partition)
        for known, part in self._stairs.iter_parts(near, "offset", sought.further, sought.may_be_in):
            sought.look_into(known, part)
            for start, stop in part.runs_of(sought.key(0)):
                at = start + int(np.searchsorted(part.keys[start:stop], timestamp_ms))
                if at < stop and part.offsets[at] == sought.found.offsets[0]:
                    epochs = part.columns["leader_epoch"]
                    best = StairRun(part.offsets[start:stop], part.keys[start:stop], epochs[start:stop])
        if best is None:
            return None
        between = {"offset": (int(best.offsets[0]), int(best.offsets[-1]))}
        return best if self._stairs.count_parts(near, between) == 1 else None

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
        tables = (self._partitions, self._incarnations, self._segments, self._segment_rows)
        return (*tables, self._stairs, self._batches, self._intervals)

    def _find_segments(self, topic: str, partition: int, topic_id: str) -> ServedSegments:
        near = _partition_range(topic, partition)
        parts = self._segments.iter_parts(near, "start_offset")
        found = [run for _, part in parts for run in part.of(topic, partition, topic_id)]
        segment_ids = [segment_id for of_part, _ in found for segment_id in of_part]
        columns = {
            name: np.concatenate([numbers[name] for _, numbers in found] or [NO_SEGMENTS]) for name in SEGMENT_NUMBERS
        }
        order = np.argsort(columns["served_from_offset"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        segment_ids = [segment_ids[at] for at in order.tolist()]
        return ServedSegments(
            topic=topic,
            partition=partition,
            segment_ids=tuple(segment_ids),
            build_numbers=columns["served_build_number"],
            from_offsets=columns["served_from_offset"],
            end_offsets=columns["end_offset"],
            to_offsets=columns["served_to_offset"],
            running_max_ms=columns[self.running_max_column],
            exact_running_max_ms=columns["running_max_timestamp_ms"],
            is_at_batch_depth=columns["is_at_batch_depth"].astype(np.bool_),
            is_at_sidecar_depth=columns["is_at_sidecar_depth"].astype(np.bool_),
        )


def _partition_range(topic: str, partition: int) -> dict[str, tuple[object, object]]:
    return {"topic": (topic, topic), "partition": (partition, partition)}


def _find_row(
    reader: TableReader[IndexRows], offset: str, segment: SegmentPlace, timestamp_ms: int
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
        for start, stop in part.runs_of(key):
            at = start + int(np.searchsorted(part.keys[start:stop], timestamp_ms))
            if at < stop and (best is None or part.offsets[at] < best[offset]):
                columns = {name: int(column[at]) for name, column in part.columns.items()}
                best = {offset: int(part.offsets[at]), **columns}
    return best
