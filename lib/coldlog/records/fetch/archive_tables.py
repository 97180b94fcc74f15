"""archive_tables: what do the tables say of the partitions that are fetched from?

One version of the tables, for all threads of a process. Of a partition that is asked for the rows are read once and
kept: its ends, its served segments, its aborted transactions when a reader of committed records comes, and where the
batches of the segments lie that were read last. What is kept is told without a read, and waits for nobody's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.lookups.served_index import PartitionFacts, ServedIndex
from coldlog.model.fetch import PartitionEnds
from coldlog.records.source.archived_log import (
    AbortedTransactions,
    ArchivedLogs,
    BatchPlaces,
    Int64s,
    ServedSegment,
    SourceFiles,
    list_source_files,
    undecided_offsets,
)
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.delta.table_files import TableFiles, list_table_files
from coldlog.tables.delta.table_reader import TableReader

_KEPT_SEGMENTS = 200_000
"""Of a KiB or two each."""
_KEPT_BATCHES = 1_000_000
"""Of 48 bytes each."""
_QUARANTINE_COLUMNS = (
    "topic", "partition", "topic_id", "segment_id", "start_offset", "message", "object_name", "position", "expected",
    "found",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """A partition's current incarnation; `from_offsets` are those of its served segments, which ascend; `undecided`
    are offsets, inclusive, whose transactions may have been aborted in a gap behind them."""

    topic: str
    partition: int
    topic_id: str
    ends: PartitionEnds
    segments: tuple[ServedSegment, ...]
    from_offsets: Int64s
    undecided: tuple[tuple[int, int], ...]

    def find_number(self, offset: int) -> int:
        """The number of the last segment that begins at or before the offset; -1: none does."""
        return int(np.searchsorted(self.from_offsets, offset, side="right")) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedSegment:
    """A segment that could not be indexed, and why."""

    segment_id: str
    start_offset: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFiles:
    """The files of the tables; can be pickled."""

    logs: SourceFiles
    quarantine: TableFiles

    @property
    def version(self) -> tuple[int, ...]:
        """Of the tables that a fetch is planned by."""
        lookups = self.logs.lookups
        return lookups.partitions.version, lookups.segments.version, lookups.batches.version, self.quarantine.version


def list_fetch_files(uri: str) -> FetchFiles:
    """What the warehouse holds now; a place that holds none is a `UsageError`."""
    quarantine = list_table_files(f"{uri.rstrip('/')}/{QUARANTINE.name}", QUARANTINE, ("topic", "partition"))
    return FetchFiles(logs=list_source_files(uri, None), quarantine=quarantine)


class ArchiveTables:
    """Answers from one version of the tables. A file that cannot be read is a `RetriableError`."""

    def __init__(self, files: FetchFiles) -> None:
        def whole(rows: pa.Table) -> tuple[pa.Table, int]:
            return rows, rows.nbytes

        self.version = files.version
        self._index = ServedIndex(files.logs.lookups)
        self._logs = ArchivedLogs(files.logs)
        self._quarantine = TableReader(files.quarantine, QUARANTINE, _QUARANTINE_COLUMNS, whole, keep_bytes=1 << 20)
        self._partitions: dict[tuple[str, int], ArchivedPartition | None] = {}
        self._kept_segments = 0
        self._aborted: dict[tuple[str, int], AbortedTransactions] = {}
        self._batches: OrderedDict[tuple[str, int, str, int], BatchPlaces] = OrderedDict()
        self._kept_batches = 0
        self._lock = threading.Lock()
        """Of who reads files; held as long as their store takes."""
        self._keeping = threading.Lock()

    @property
    def rows_read(self) -> int:
        """Rows of tables read from storage so far; what was kept does not count."""
        return self._index.rows_read + self._logs.rows_read + self._quarantine.counts.rows

    def partition(self, topic: str, partition: int) -> ArchivedPartition | None:
        """What is known of a partition; None: nothing."""
        place, kept = (topic, partition), self._partitions
        if place in kept:
            return kept[place]
        with self._lock:
            facts = self._index.find_facts(topic, partition)
            found = None if facts is None else self._archived(topic, partition, facts)
            self._kept_segments += 1 if found is None else 1 + len(found.segments)
            if self._kept_segments > _KEPT_SEGMENTS:
                # Anew, so that others still read the one that they found.
                self._partitions, self._aborted, self._kept_segments = {}, {}, 0
            self._partitions[place] = found
            return found

    def aborted(self, own: ArchivedPartition) -> AbortedTransactions:
        """The aborted transactions of a partition."""
        place = (own.topic, own.partition)
        found = self._aborted.get(place)
        if found is None:
            with self._lock:
                found = self._logs.aborted(own.topic, own.partition, own.topic_id, own.segments)
                self._aborted[place] = found
        return found

    def batches(self, served: ServedSegment) -> BatchPlaces:
        """All batches that the offsets which a segment serves may lie in."""
        segment = served.segment
        place = (segment.topic, segment.partition, segment.segment_id, served.build_number)
        found = self._kept(place)
        if found is None:
            with self._lock:
                found = self._kept(place)
                if found is None:
                    found = self._logs.batches(served, served.from_offset, served.to_offset)
                    self._keep(place, found)
        return found

    def find_quarantined(self, own: ArchivedPartition, from_offset: int, to_offset: int) -> QuarantinedSegment | None:
        """Of the quarantined segments that begin between the offsets, both inclusive, the last."""
        near = {"topic": (own.topic, own.topic), "partition": (own.partition, own.partition)}
        found: list[QuarantinedSegment] = []
        with self._lock:
            for _, rows in self._quarantine.iter_parts(near, "partition"):
                is_it = pc.and_(pc.equal(rows["topic"], own.topic), pc.equal(rows["partition"], own.partition))
                is_it = pc.and_(is_it, pc.equal(rows["topic_id"], own.topic_id))
                found += [_quarantined(row) for row in rows.filter(is_it).to_pylist()]
        between = [each for each in found if from_offset <= each.start_offset <= to_offset]
        return max(between, key=lambda each: (each.start_offset, each.segment_id), default=None)

    def close(self) -> None:
        """Closes the files; who still asks opens them again."""
        with self._lock:
            self._index.close()
            self._logs.close()
            self._quarantine.close()

    def _kept(self, place: tuple[str, int, str, int]) -> BatchPlaces | None:
        with self._keeping:
            found = self._batches.get(place)
            if found is not None:
                self._batches.move_to_end(place)
            return found

    def _keep(self, place: tuple[str, int, str, int], found: BatchPlaces) -> None:
        with self._keeping:
            self._batches[place] = found
            self._kept_batches += len(found)
            while self._kept_batches > _KEPT_BATCHES and len(self._batches) > 1:
                self._kept_batches -= len(self._batches.popitem(last=False)[1])

    def _archived(self, topic: str, partition: int, facts: PartitionFacts) -> ArchivedPartition:
        segments = tuple(self._logs.served_segments(topic, partition, facts.topic_id))
        return ArchivedPartition(
            topic=topic,
            partition=partition,
            topic_id=facts.topic_id,
            ends=partition_ends(facts),
            segments=segments,
            from_offsets=np.array([each.from_offset for each in segments], dtype=np.int64),
            undecided=tuple(undecided_offsets(segments)),
        )


def partition_ends(facts: PartitionFacts) -> PartitionEnds:
    """Where a log whose row of partition_metadata this is begins and ends."""
    first = facts.first_offset
    end = max(first, facts.local_start_offset)
    stable = end if facts.stable_offset is None else min(end, max(first, facts.stable_offset))
    return PartitionEnds(log_start_offset=first, end_offset=end, last_stable_offset=stable)


def _quarantined(row: dict[str, object]) -> QuarantinedSegment:
    at = f" at byte {row['position']}" if isinstance(row["position"], int) and row["position"] >= 0 else ""
    facts = f": expected {row['expected']}, found {row['found']}" if row["expected"] or row["found"] else ""
    return QuarantinedSegment(
        segment_id=str(row["segment_id"]),
        start_offset=int(str(row["start_offset"])),
        why=f"{row['message']} in {row['object_name']}{at}{facts}",
    )
