"""Read from the tables what fetches need of a partition, and keep it in memory.

All threads of a process share one version of the tables. The rows of a partition are read once and kept: its ends, its
served segments, its aborted transactions (for readers of committed records), and the batch positions of the segments
that were used last. What is kept is returned without a read, and without waiting for the reads of other threads. A
thread that must not wait gets nothing else (`without_waiting`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.stores.without_waiting import check_may_wait
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.served_index import ServedIndex
from coldlog.model.fetch import PartitionEnds
from coldlog.records.aborted_transactions import AbortedTransactions
from coldlog.records.source.archived_log import (
    ArchivedLogs,
    BatchPlaces,
    Incarnation,
    Int64s,
    ServedSegment,
    SourceFiles,
    list_source_files,
    undecided_offsets,
)
from coldlog.records.source.data_loss import LostEnd, find_lost_end
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.delta.files.table_files import TableFiles, list_table_files
from coldlog.tables.delta.files.table_reader import KeptParts, TableReader
from coldlog.tables.delta.manifest import Manifests, hold_to_manifest

_KEPT_SEGMENTS = 200_000
"""Each takes one or two KiB."""
_KEPT_BATCHES = 1_000_000
"""Each takes 48 bytes."""
_QUARANTINE_COLUMNS = (
    "topic", "partition", "topic_id", "segment_id", "start_offset", "message", "object_name", "position", "expected",
    "found",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """One incarnation of a partition. `from_offsets` are those of its served segments, ascending. `undecided` are
    offsets, inclusive, whose transactions may have been aborted in a gap after them."""

    topic: str
    partition: int
    topic_id: str
    ends: PartitionEnds
    segments: tuple[ServedSegment, ...]
    from_offsets: Int64s
    undecided: tuple[tuple[int, int], ...]
    lineage: tuple[tuple[int, int], ...]
    """Leader epochs and their first offsets, ascending."""
    log_end_offset: int | None = None
    """Where the log ends, with the offsets at its end that no segment serves; None: it is not known."""
    lost_end: LostEnd | None = None
    """Offsets after its end that the archive had and has lost."""

    def find_number(self, offset: int) -> int:
        """Return the number of the last segment that begins at or before the offset; -1: there is none."""
        return int(np.searchsorted(self.from_offsets, offset, side="right")) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedSegment:
    """A segment that could not be indexed, and the reason."""

    segment_id: str
    start_offset: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFiles:
    """The files of the tables. Can be pickled."""

    logs: SourceFiles
    quarantine: TableFiles

    @property
    def states(self) -> tuple[str, ...]:
        """Return the id and the version of each table from which fetches and lookups are planned. While they are the
        same, what was read can be kept."""
        lookups = self.logs.lookups
        of_lookups = (lookups.partitions, lookups.segments, lookups.batches, lookups.stairs, lookups.intervals)
        return tuple(files.state for files in (*of_lookups, self.logs.aborted, self.quarantine))


def list_fetch_files(uri: str, as_of_ms: int | None = None) -> FetchFiles:
    """List the files as of now or of `as_of_ms`. Raise `UsageError` if there is no warehouse at the uri."""
    manifests = Manifests(uri)
    logs = list_source_files(uri, as_of_ms, manifests)
    location = f"{uri.rstrip('/')}/{QUARANTINE.name}"
    quarantine = list_table_files(location, QUARANTINE, ("topic", "partition"), as_of_ms=as_of_ms)
    number, is_past = logs.lookups.publish_number, as_of_ms is not None
    (quarantine,) = hold_to_manifest(manifests, [quarantine], number, is_past=is_past)
    return FetchFiles(logs=logs, quarantine=quarantine)


_BatchesPlace = tuple[str, int, str, int, int]
"""Topic, partition, segment id, build number, first position."""


class ArchiveTables:
    """Answers from one version of the tables. If a file cannot be read, it raises `RetriableError`."""

    def __init__(self, files: FetchFiles) -> None:
        def whole(rows: pa.Table) -> tuple[pa.Table, int]:
            return rows, rows.nbytes

        self.states = files.states
        self._index = ServedIndex(files.logs.lookups)
        self._logs = ArchivedLogs(files.logs)
        self._quarantine = TableReader(
            files.quarantine, QUARANTINE, _QUARANTINE_COLUMNS, whole, kept=KeptParts(1 << 20)
        )
        self._partitions: dict[tuple[str, int], ArchivedPartition | None] = {}
        self._kept_segments = 0
        self._aborted: dict[tuple[str, int, str], AbortedTransactions] = {}
        self._quarantined: dict[tuple[str, int, str], list[QuarantinedSegment]] = {}
        self._batches: OrderedDict[_BatchesPlace, BatchPlaces] = OrderedDict()
        self._kept_batches = 0
        self._read_lock = threading.Lock()
        """Held while files are read, as long as their store takes."""
        self._cache_lock = threading.Lock()

    @property
    def rows_read(self) -> int:
        """Return how many rows were read from storage so far; rows kept in memory do not count."""
        return self._index.rows_read + self._logs.rows_read + self._quarantine.counts.rows

    def incarnations(self) -> list[Incarnation]:
        """Return every incarnation of every topic-partition that the archive knows."""
        with self._reading():
            return self._logs.incarnations()

    def partition(self, topic: str, partition: int) -> ArchivedPartition | None:
        """Return what is known of a partition; None if it is unknown. An older incarnation has a name of its own
        (`model.incarnations`)."""
        place, kept = (topic, partition), self._partitions
        if place in kept:
            return kept[place]
        with self._reading():
            topic, facts = self._index.find_incarnation(topic, partition)
            found = None if facts is None else self._archived(topic, partition, facts)
            self._kept_segments += 1 if found is None else 1 + len(found.segments)
            if self._kept_segments > _KEPT_SEGMENTS:
                # Replace, do not clear: other threads may still read the old dictionaries.
                self._partitions, self._aborted, self._quarantined, self._kept_segments = {}, {}, {}, 0
            self._partitions[place] = found
            return found

    def aborted(self, archived: ArchivedPartition) -> AbortedTransactions:
        """Return the aborted transactions of a partition."""
        place = (archived.topic, archived.partition, archived.topic_id)
        found = self._aborted.get(place)
        if found is None:
            with self._reading():
                found = self._logs.aborted(archived.topic, archived.partition, archived.topic_id, archived.segments)
                self._aborted[place] = found
        return found

    def batches(self, served: ServedSegment) -> BatchPlaces:
        """Return all batches that may have offsets which the segment serves."""
        segment = served.segment
        place = (segment.topic, segment.partition, segment.segment_id, served.build_number, served.position)
        found = self._kept(place)
        if found is None:
            with self._reading():
                found = self._kept(place)
                if found is None:
                    found = self._logs.batches(served, served.from_offset, served.to_offset)
                    self._keep(place, found)
        return found

    def find_quarantined(
        self, archived: ArchivedPartition, from_offset: int, to_offset: int
    ) -> QuarantinedSegment | None:
        """Return the last quarantined segment that begins between the offsets, both inclusive."""
        place = (archived.topic, archived.partition, archived.topic_id)
        found = self._quarantined.get(place)
        if found is None:
            with self._reading():
                found = self._quarantined[place] = self._quarantined_of(*place)
                self._kept_segments += 1 + len(found)
        between = [segment for segment in found if from_offset <= segment.start_offset <= to_offset]
        return max(between, key=lambda segment: (segment.start_offset, segment.segment_id), default=None)

    def _quarantined_of(self, topic: str, partition: int, topic_id: str) -> list[QuarantinedSegment]:
        near = {"topic": (topic, topic), "partition": (partition, partition)}
        found: list[QuarantinedSegment] = []
        for _, rows in self._quarantine.iter_parts(near, "partition"):
            is_same = pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["partition"], partition))
            is_same = pc.and_(is_same, pc.equal(rows["topic_id"], topic_id))
            found += [_quarantined(row) for row in rows.filter(is_same).to_pylist()]
        return found

    def close(self) -> None:
        """Close the files; a later question opens them again."""
        with self._read_lock:
            self._index.close()
            self._logs.close()
            self._quarantine.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Let this thread alone read files."""
        check_may_wait()
        with self._read_lock:
            yield

    def _kept(self, place: _BatchesPlace) -> BatchPlaces | None:
        with self._cache_lock:
            found = self._batches.get(place)
            if found is not None:
                self._batches.move_to_end(place)
            return found

    def _keep(self, place: _BatchesPlace, found: BatchPlaces) -> None:
        with self._cache_lock:
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
            from_offsets=np.array([segment.from_offset for segment in segments], dtype=np.int64),
            undecided=tuple(undecided_offsets(segments)),
            lineage=facts.lineage,
            log_end_offset=facts.log_end_offset,
            lost_end=find_lost_end(self._logs, (topic, partition), facts),
        )


def partition_ends(facts: PartitionFacts) -> PartitionEnds:
    """Return where the log of a row of partition_metadata begins and ends."""
    first = facts.first_offset
    end = max(first, facts.local_start_offset)
    stable = end if facts.stable_offset is None else min(end, max(first, facts.stable_offset))
    return PartitionEnds(log_start_offset=first, end_offset=end, last_stable_offset=stable, topic_id=facts.topic_id)


def _quarantined(row: dict[str, object]) -> QuarantinedSegment:
    at = f" at byte {row['position']}" if isinstance(row["position"], int) and row["position"] >= 0 else ""
    facts = f": expected {row['expected']}, found {row['found']}" if row["expected"] or row["found"] else ""
    return QuarantinedSegment(
        segment_id=str(row["segment_id"]),
        start_offset=int(str(row["start_offset"])),
        why=f"{row['message']} in {row['object_name']}{at}{facts}",
    )
