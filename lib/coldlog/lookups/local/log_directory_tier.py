"""Answer from the files of a broker's log directory what is not archived yet.

The directory is one of the broker's `log.dirs`, or a copy of it. The broker is not asked. Every question lists the
partition's directory again.

- The log start is the higher of two offsets: the entry of `log-start-offset-checkpoint`, and the start of the lineage
  of leaders. A broker writes the checkpoint once a minute, for tiered partitions and for those whose log start is after
  the first segment's base (LogManager.checkpointLogStartOffsetsInDir). It writes the lineage as soon as the log start
  moves (LeaderEpochFileCache.truncateFromStart). If there is no entry, a broker that starts begins a tiered log at 0
  and any other at its first segment (LogLoader.load). No file says whether the log is tiered, but the lineage of a
  tiered log reaches back to its log start. Without a lineage the first segment's base counts.
- The high watermark is that of `replication-offset-checkpoint`, up to five seconds old, or without an entry the log's
  end. It is not below the first segment: a broker deletes only segments below it.
- The last stable offset is the first offset of the oldest transaction without a marker below the high watermark. It is
  computed from the newest producer snapshot at or below the high watermark, and the batches after it. A damaged
  snapshot, for example one that is just being written, is skipped for an older one, as in Kafka.
- A complete segment is skipped if the last entry of its time index is lower than the timestamp, as in Kafka. If it has
  no such index, or one that was never closed, it is read. The offset index says where a search begins in a segment: at
  the position of the last entry whose offset is not above the one searched for. The entry is used only if a batch
  begins there that ends at the entry's offset or below (a follower's entry may name the end of a fetched set, see
  formats.kafka.offset_index). Otherwise the search begins at the segment's first batch. Only batches that may have the
  answer are decoded. Control records and records of aborted transactions count. A broker searches only one segment, the
  first whose largest timestamp promises the answer; with `broker_compatible` this tier does the same.
- The largest timestamp is that of all segments in the directory, as in Kafka: records below the log start count too.

Segments are rolled, cut and deleted while they are read. If a question finds damage or a missing file, it is asked once
more from a new listing. If the file is missing again, or a log has become shorter, it raises `RetriableError`; for
damage `ArchiveError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from coldlog.archive.layouts.log_directory import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LocalPartition,
    LocalSegment,
    find_offset_index,
    find_partition,
    find_time_index,
    find_transaction_index,
    list_partitions,
    read_checkpoint,
    read_lineage,
    read_snapshot,
    read_topic_id,
)
from coldlog.archive.layouts.log_windows import LogWindow, iter_log_windows
from coldlog.archive.stores.local_store import LocalStore
from coldlog.errors import ArchiveError, Reason, RetriableError
from coldlog.formats.kafka.leader_epoch_checkpoint import LeaderEpochEntry
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.kafka.time_index import TimeIndex
from coldlog.formats.limits import DecodeLimits
from coldlog.index.open_transactions import OpenTransactions
from coldlog.index.stairs import RunningMaximum
from coldlog.lookups.local.local_batches import LocalBatches, cut_batches
from coldlog.lookups.local.local_tier import FoundOffset, LocalLogState
from coldlog.lookups.search.window_search import find_first_in_window, iter_stairs

_CHANGED = frozenset({Reason.OBJECT_MISSING, Reason.LOG_SIZE_DIFFERS})
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_WINDOW_BYTES = 4 << 20

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogEnd:
    """The end of a log, and the first offset of its oldest transaction without an end below the high watermark."""

    log_end_offset: int
    first_open_offset: int | None


@dataclass(frozen=True, slots=True)
class LogDirectoryTier:
    """A LocalTier of one log directory."""

    directory: str
    limits: DecodeLimits
    window_bytes: int = _WINDOW_BYTES
    _store: LocalStore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_store", LocalStore(root=self.directory, uri=self.directory))

    @property
    def covers_archive(self) -> bool:
        """False: only segments in the directory are searched."""
        return False

    def until(self, deadline: float | None) -> LogDirectoryTier:
        """Return the tier itself: no broker is asked."""
        del deadline
        return self

    def partitions(self) -> list[tuple[str, int]]:
        """Return the partitions in the directory."""
        return list_partitions(self._store)

    def read_state(self, topic: str, partition: int) -> LocalLogState | None:
        """Read the state from the files as they are now."""
        return self._ask(topic, partition, self._read_state)

    def find_offset(
        self, topic: str, partition: int, timestamp_ms: int, from_offset: int, *, broker_compatible: bool = False
    ) -> FoundOffset | None:
        """Read the segments that may have the answer, in order.

        `broker_compatible`: as UnifiedLog.searchOffsetInLocalLog, read only the first segment whose largest timestamp
        is not below `timestamp_ms`. For a segment without timestamps this is the time of its file.
        """

        def find(found: LocalPartition) -> FoundOffset | None:
            if broker_compatible:
                reaching = (one for one in found.segments if self._largest_of_broker_ms(one) >= timestamp_ms)
                segment = next(reaching, None)
                return None if segment is None else self._find_in_segment(segment, timestamp_ms, from_offset)
            candidates = (
                self._find_in_segment(segment, timestamp_ms, from_offset)
                for segment in found.segments
                if segment.end_offset is None or segment.end_offset > from_offset
            )
            return next((offset for offset in candidates if offset is not None), None)

        return self._ask(topic, partition, find)

    def find_max_timestamp(self, topic: str, partition: int) -> FoundOffset | None:
        """Read the active segment, and those whose time index promises the largest timestamp."""
        return self._ask(topic, partition, self._find_max_timestamp)

    def leader_epoch_at(self, topic: str, partition: int, offset: int) -> int:
        """Look up the epoch in the lineage of the partition's leaders."""
        found = self._ask(topic, partition, lambda found: read_lineage(self._store, found))
        return max((entry.leader_epoch for entry in found or () if entry.start_offset <= offset), default=-1)

    def read_batches(
        self, topic: str, partition: int, offset: int, max_bytes: int, *, is_committed: bool = False
    ) -> LocalBatches | None:
        """Return whole batches from the first that ends at or after `offset` on, at most `max_bytes` but at least one.

        None if the directory begins after the offset, or has no such batch. Decided or not, they are returned.
        """
        del is_committed

        def read(found: LocalPartition) -> LocalBatches | None:
            if not found.segments or found.segments[0].base_offset > offset:
                return None
            segments = [one for one in found.segments if one.end_offset is None or one.end_offset > offset]
            for number, segment in enumerate(segments):
                for window in self._iter_windows(segment, offset):
                    first = int(np.searchsorted(window.headers.last_offset, offset))
                    if first < len(window.headers):
                        indexes = (find_transaction_index(self._store, one) for one in segments[number:])
                        known = tuple(one for one in indexes if one is not None)
                        return cut_batches(window, first, max_bytes, known, read_topic_id(self._store, found))
            return None

        return self._ask(topic, partition, read)

    def list_places(self, topic: str, partition: int, offset: int) -> list[tuple[int, int]]:
        """Return offsets, and how many bytes of logs are before their batches, from the segment with `offset` on.

        They ascend: the first of each segment, those of its offset index, and one after all.
        """

        def read(found: LocalPartition) -> list[tuple[int, int]]:
            places, before = [], 0
            for segment in found.segments:
                if segment.end_offset is None or segment.end_offset > offset:
                    index = find_offset_index(self._store, segment)
                    known = [] if index is None else zip(index.offsets.tolist(), index.positions.tolist(), strict=True)
                    places += [(at, before + position) for at, position in [(segment.base_offset, 0), *known]]
                    before += segment.log.size_bytes
            return [*places, (_INT64_MAX, before)]

        return self._ask(topic, partition, read) or []

    def close(self) -> None:
        """Do nothing: a file is open only while it is read."""

    close_all = close

    def _ask(self, topic: str, partition: int, question: Callable[[LocalPartition], _Answer | None]) -> _Answer | None:
        try:
            found = find_partition(self._store, topic, partition)
            return None if found is None else question(found)
        except ArchiveError:
            # The file may just have been rolled, cut or deleted: ask again from a new listing.
            found = find_partition(self._store, topic, partition)
        try:
            return None if found is None else question(found)
        except ArchiveError as wrong:
            if wrong.reason in _CHANGED:
                raise RetriableError(f"{topic}-{partition} changed while it was read ({wrong}); try again") from wrong
            raise

    def _read_state(self, found: LocalPartition) -> LocalLogState:
        place, lineage = (found.topic, found.partition), read_lineage(self._store, found)
        log_start = _log_start_offset(
            found, lineage, read_checkpoint(self._store, LOG_START_OFFSET_CHECKPOINT).get(place)
        )
        local_log_start = max(log_start, found.segments[0].base_offset if found.segments else log_start)
        checkpointed = read_checkpoint(self._store, HIGH_WATERMARK_CHECKPOINT).get(place)
        decided_before = _INT64_MAX if checkpointed is None else max(checkpointed, local_log_start)
        end = self._read_end(found, decided_before)
        high_watermark = min(decided_before, max(end.log_end_offset, local_log_start))
        first_open = high_watermark if end.first_open_offset is None else end.first_open_offset
        return LocalLogState(
            log_start_offset=log_start,
            local_log_start_offset=local_log_start,
            high_watermark=high_watermark,
            last_stable_offset=max(min(first_open, high_watermark), log_start),
            leader_epoch=lineage[-1].leader_epoch if lineage else -1,
            topic_id=read_topic_id(self._store, found),
        )

    def _read_end(self, found: LocalPartition, decided_before: int) -> _LogEnd:
        """Read the log's end. `decided_before` is the high watermark if known; batches after it decide nothing."""
        if not found.segments:
            return _LogEnd(log_end_offset=0, first_open_offset=None)
        for offset, first_offsets in self._iter_known(found, decided_before):
            end = self._fold(found, offset, OpenTransactions(first_offsets=first_offsets), decided_before)
            # A snapshot after the log's end is about batches that were cut off.
            if offset <= end.log_end_offset:
                return end
        return self._fold(found, found.segments[0].base_offset, OpenTransactions(), decided_before)

    def _iter_known(self, found: LocalPartition, decided_before: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield the offsets at which the open transactions are known, the highest first."""
        for offset, info in reversed(found.snapshots):
            if found.segments[0].base_offset <= offset <= decided_before:
                try:
                    snapshot = read_snapshot(self._store, info)
                except ArchiveError:
                    continue
                is_open = (entry for entry in snapshot.entries if entry.has_open_transaction)
                yield offset, {entry.producer_id: entry.current_txn_first_offset for entry in is_open}

    def _fold(
        self, found: LocalPartition, from_offset: int, transactions: OpenTransactions, decided_before: int
    ) -> _LogEnd:
        log_end = found.segments[-1].base_offset
        for segment in found.segments:
            if segment.end_offset is not None and segment.end_offset <= from_offset:
                continue
            for window in self._iter_windows(segment, from_offset):
                headers = window.headers
                first = int(np.searchsorted(headers.base_offset, from_offset))
                last = int(np.searchsorted(headers.base_offset, decided_before))
                transactions.add(headers.slice(first, max(first, last)))
                log_end = max(log_end, int(headers.last_offset[-1]) + 1)
        return _LogEnd(log_end_offset=log_end, first_open_offset=min(transactions.first_offsets.values(), default=None))

    def _find_in_segment(self, segment: LocalSegment, timestamp_ms: int, from_offset: int) -> FoundOffset | None:
        time_index = find_time_index(self._store, segment)
        largest_ms = _promised_ms(segment, time_index)
        if largest_ms is not None and largest_ms < timestamp_ms:
            return None
        if time_index is None or timestamp_ms <= 0:
            return self._search(segment, from_offset, timestamp_ms, from_offset)
        # All timestamps up to this offset are lower.
        lower_until = time_index.offset_at_or_before(timestamp_ms - 1)
        return self._search(segment, max(from_offset, lower_until), timestamp_ms, from_offset)

    def _search(
        self, segment: LocalSegment, begin_offset: int, timestamp_ms: int, from_offset: int
    ) -> FoundOffset | None:
        """Return the first record that is late enough, from the batch with `begin_offset` on."""
        sections = SectionReader(limits=self.limits)
        for window in self._iter_windows(segment, begin_offset):
            with _named(segment):
                found = find_first_in_window(
                    window.content,
                    window.headers,
                    window.position,
                    timestamp_ms=timestamp_ms,
                    from_offset=from_offset,
                    sections=sections,
                )
            if found is not None:
                return found
        return None

    def _find_max_timestamp(self, found: LocalPartition) -> FoundOffset | None:
        bounds = [(self._largest_header_ms(segment), segment) for segment in found.segments]
        best: FoundOffset | None = None
        for bound_ms, segment in sorted(bounds, key=lambda bound: (-bound[0], bound[1].base_offset)):
            if best is None or (bound_ms, -segment.base_offset) > (best.timestamp_ms, -best.offset):
                latest = self._find_max_in_segment(segment, bound_ms)
                if latest is not None and (best is None or _rank(latest) > _rank(best)):
                    best = latest
        return best

    def _largest_header_ms(self, segment: LocalSegment) -> int:
        """Return an upper bound of the timestamps of the segment's records."""
        time_index = find_time_index(self._store, segment)
        promised_ms = _promised_ms(segment, time_index)
        if promised_ms is not None:
            return promised_ms
        last = int(time_index.offsets[-1]) if time_index is not None and time_index.entry_count else 0
        return max(
            (int(window.headers.max_timestamp_ms.max()) for window in self._iter_windows(segment, last)),
            default=_INT64_MIN,
        )

    def _largest_of_broker_ms(self, segment: LocalSegment) -> int:
        largest_ms = self._largest_header_ms(segment)
        return largest_ms if largest_ms >= 0 else segment.objects[0].modified_ms

    def _find_max_in_segment(self, segment: LocalSegment, bound_ms: int) -> FoundOffset | None:
        found = self._find_in_segment(segment, bound_ms, segment.base_offset)
        if found is not None:
            return found
        # Compaction removed the latest records and left the batch headers unchanged.
        sections, running = SectionReader(limits=self.limits), RunningMaximum(counted_from_offset=segment.base_offset)
        for window in self._iter_windows(segment, segment.base_offset):
            headers = window.headers
            for batch in np.flatnonzero(headers.record_count > 0).tolist():
                if not running.is_known or headers.max_timestamp_ms[batch] > running.timestamp_ms:
                    one = headers.slice(batch, batch + 1)
                    with _named(segment):
                        stairs = list(iter_stairs(window.content, one, window.position, sections, running))
                    found = stairs[-1] if stairs else found
        return found

    def _iter_windows(self, segment: LocalSegment, offset: int) -> Iterator[LogWindow]:
        """Yield the batches from the one with `offset` on, and maybe some before it."""
        place = self._find_position(segment, offset)
        if place is not None:
            windows = self._read_windows(segment, place[0])
            try:
                first = next(windows, None)
            except ArchiveError:
                first = None
            if first is not None and int(first.headers.last_offset[0]) <= place[1]:
                yield first
                yield from windows
                return
        yield from self._read_windows(segment, 0)

    def _find_position(self, segment: LocalSegment, offset: int) -> tuple[int, int] | None:
        """Return position and offset of the last entry of the offset index that is not above `offset`."""
        if offset <= segment.base_offset:
            return None
        index = find_offset_index(self._store, segment)
        slot = -1 if index is None else int(np.searchsorted(index.offsets, offset, side="right")) - 1
        return None if index is None or slot < 0 else (int(index.positions[slot]), int(index.offsets[slot]))

    def _read_windows(self, segment: LocalSegment, position: int) -> Iterator[LogWindow]:
        return iter_log_windows(
            self._store, segment.log, from_position=position, limits=self.limits, window_bytes=self.window_bytes
        )


def _log_start_offset(found: LocalPartition, lineage: tuple[LeaderEpochEntry, ...], checkpointed: int | None) -> int:
    begin = lineage[0].start_offset if lineage else found.segments[0].base_offset if found.segments else 0
    return begin if checkpointed is None else max(begin if lineage else 0, checkpointed)


def _promised_ms(segment: LocalSegment, time_index: TimeIndex | None) -> int | None:
    """Return the largest timestamp that a complete segment's closed time index promises."""
    if segment.is_active or time_index is None or time_index.padding_bytes or not time_index.entry_count:
        return None
    return int(time_index.timestamps_ms[-1])


@contextmanager
def _named(segment: LocalSegment) -> Iterator[None]:
    """Add the name of the log to an error."""
    try:
        yield
    except ArchiveError as wrong:
        raise wrong.with_object_name(segment.log.name) from wrong


def _rank(found: FoundOffset) -> tuple[int, int]:
    return found.timestamp_ms, -found.offset
