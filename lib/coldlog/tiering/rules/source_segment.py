"""Read and verify a closed segment of a log directory, and select what is copied to the archive.

The files are those that RLMCopyTask.copyLogSegment gives to a storage: the log and its indexes as they are, the
producer snapshot at the start of the next segment, and the partition's lineage up to the end of the segment (from the
beginning of the tier's log, not of the segment or of the broker's local log). The metadata: the end offset is one below
the next segment; the largest timestamp is the largest of the batch headers or, if that is negative, the time of the
file; the epochs are the lineage between both ends, the first one raised to the segment's start.

The whole log is read once before anything is copied, and its checksum is kept: later exactly those bytes must be
archived. Zeros after the entries of an index, which a killed broker leaves, are removed.

Refused (`ArchiveError`): a log with a bad batch or another size than listed, batches after the next segment's start,
indexes that cannot be read, batches whose epoch is not that of the lineage at their offset. Refused
(`NotCopiableError`): what Kafka does not tier either: a segment without an offset index, a time index or a producer
snapshot (brokers before 2.8), a log without leader epochs. Also a segment that is shorter than its index says, or whose
records end before the next segment begins: the mirror is incomplete, or the log was cut at the end of a batch, where no
checksum detects it. It would be announced with offsets that it does not have, and they would never be copied. Only logs
that were once compacted have such gaps legitimately (`allows_gaps`); Kafka does not tier compacted topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from coldlog.archive.layouts.layout import SMALL_FILE_LIMIT_BYTES, SegmentFileKind, SegmentObject
from coldlog.archive.layouts.log_directory import LocalSegment
from coldlog.archive.layouts.log_windows import LogWindow, iter_log_windows
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.archive.stores.object_writer import BytesContent, Content, StoredContent
from coldlog.errors import ArchiveError, ColdlogError, Reason, UsageError
from coldlog.formats.kafka.leader_epoch_checkpoint import (
    LeaderEpochCheckpoint,
    LeaderEpochEntry,
    write_leader_epoch_checkpoint,
)
from coldlog.formats.kafka.offset_index import read_offset_index, write_offset_index
from coldlog.formats.kafka.producer_snapshot import read_producer_snapshot
from coldlog.formats.kafka.time_index import read_time_index, write_time_index
from coldlog.formats.kafka.txn_index import read_txn_index
from coldlog.formats.limits import DecodeLimits
from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.model.ids import TopicIdPartition

_KIND_ORDER = (
    SegmentFileKind.LOG,
    SegmentFileKind.OFFSET_INDEX,
    SegmentFileKind.TIME_INDEX,
    SegmentFileKind.TXN_INDEX,
    SegmentFileKind.LEADER_EPOCH_CHECKPOINT,
    SegmentFileKind.PRODUCER_SNAPSHOT,
)
"""Kafka's order. When the last file is there, a listing shows a complete copy; the optional file is written earlier."""


class NotCopiableError(ColdlogError):
    """The segment does not have what a copy needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A verified segment to copy; `end_offset` is inclusive. `files` are in the order in which they are put."""

    partition: TopicIdPartition
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    leader_epochs: tuple[EpochStart, ...]
    txn_index_empty: bool
    log_crc: int
    files: Mapping[SegmentFileKind, Content]

    @property
    def size_bytes(self) -> int:
        """Return the size of the log alone, as Kafka counts segments."""
        return self.files[SegmentFileKind.LOG].size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReader:
    """Reads segments of one partition in a log directory. `lineage` is its leader epoch checkpoint, unchanged;
    `archived_lineage` includes what the archive knows about older leaders."""

    store: ObjectStore
    partition: TopicIdPartition
    lineage: Sequence[LeaderEpochEntry]
    archived_lineage: Sequence[EpochStart]
    limits: DecodeLimits
    window_bytes: int
    allows_gaps: bool = False

    def read(self, segment: LocalSegment) -> SourceSegment:
        """Read and verify the segment. The bytes of the log are read again when they are put."""
        if segment.end_offset is None:
            raise UsageError(f"{segment.log.name} is the active segment of its log and is not copied")
        _require_files(segment)
        epochs = self._segment_epochs(segment, segment.end_offset)
        facts = self._verify_log(segment, segment.end_offset)
        files = {SegmentFileKind.LOG: self._log_content(segment), **dict(self._iter_small_files(segment))}
        _require_indexed_batches(segment, files[SegmentFileKind.OFFSET_INDEX], facts.next_offset)
        if not self.allows_gaps:
            _require_last_records(segment, facts.next_offset)
        return SourceSegment(
            partition=self.partition,
            start_offset=segment.base_offset,
            end_offset=segment.end_offset - 1,
            max_timestamp_ms=facts.max_timestamp_ms if facts.max_timestamp_ms >= 0 else segment.objects[0].modified_ms,
            leader_epochs=epochs,
            txn_index_empty=not files.get(SegmentFileKind.TXN_INDEX, BytesContent(b"")).size_bytes,
            log_crc=facts.crc,
            files={kind: files[kind] for kind in _KIND_ORDER if kind in files},
        )

    def _segment_epochs(self, segment: LocalSegment, end_offset: int) -> tuple[EpochStart, ...]:
        """As LeaderEpochFileCache.epochEntriesInRange."""
        before_end = [entry for entry in self.lineage if entry.start_offset < end_offset]
        at_start = [entry.leader_epoch for entry in before_end if entry.start_offset <= segment.base_offset][-1:]
        later = [(e.leader_epoch, e.start_offset) for e in before_end if e.start_offset > segment.base_offset]
        epochs = (*((epoch, segment.base_offset) for epoch in at_start), *later)
        if not epochs:
            raise NotCopiableError(f"the log of {segment.log.name} has no leader epochs; Kafka does not tier such logs")
        return epochs

    def _verify_log(self, segment: LocalSegment, end_offset: int) -> _LogFacts:
        facts, log = _LogFacts(), segment.log
        for window in iter_log_windows(
            self.store, log, from_position=0, limits=self.limits, window_bytes=self.window_bytes
        ):
            self._require_epochs(window, log.name)
            if int(window.headers.last_offset[-1]) >= end_offset:
                raise ArchiveError(
                    Reason.OFFSETS_NOT_ASCENDING,
                    "log reaches into the next segment",
                    object_name=log.name,
                    position=int(window.headers.position[-1]),
                    expected=f"offsets below {end_offset}",
                    found=f"{int(window.headers.last_offset[-1])}",
                )
            facts = facts.with_window(window)
        return facts

    def _require_epochs(self, window: LogWindow, name: str) -> None:
        """Compare batches' epochs with the checkpoint. Batches without an epoch or before the first entry pass."""
        headers = window.headers
        starts = np.array([entry.start_offset for entry in self.lineage], dtype=np.int64)
        epochs = np.array([entry.leader_epoch for entry in self.lineage], dtype=np.int64)
        slots = np.searchsorted(starts, headers.base_offset, side="right") - 1
        is_wrong = (headers.leader_epoch >= 0) & (slots >= 0) & (epochs[slots] != headers.leader_epoch)
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise ArchiveError(
                Reason.LEADER_EPOCH_CHECKPOINT_INVALID,
                "the leader epoch of a batch is not that of the log's checkpoint",
                object_name=name,
                position=int(headers.position[first]),
                expected=f"epoch {int(epochs[slots[first]])} at offset {int(headers.base_offset[first])}",
                found=f"epoch {int(headers.leader_epoch[first])}",
            )

    def _log_content(self, segment: LocalSegment) -> Content:
        log = segment.log
        return StoredContent(store=self.store, name=log.name, size_bytes=log.size_bytes, piece_bytes=self.window_bytes)

    def _iter_small_files(self, segment: LocalSegment) -> Iterator[tuple[SegmentFileKind, Content]]:
        base = segment.base_offset
        for listed in segment.objects[1:]:
            content = self._read_whole(listed)
            try:
                yield SegmentFileKind(listed.kind), BytesContent(_verified(SegmentFileKind(listed.kind), content, base))
            except ArchiveError as wrong:
                raise wrong.with_object_name(listed.name) from wrong
        cut = tuple(
            LeaderEpochEntry(leader_epoch=epoch, start_offset=start_offset)
            for epoch, start_offset in self.archived_lineage
            if start_offset < (segment.end_offset or 0)
        )
        checkpoint = write_leader_epoch_checkpoint(LeaderEpochCheckpoint(entries=cut))
        yield SegmentFileKind.LEADER_EPOCH_CHECKPOINT, BytesContent(checkpoint)

    def _read_whole(self, listed: SegmentObject) -> memoryview:
        if listed.size_bytes > SMALL_FILE_LIMIT_BYTES:
            found = f"{listed.size_bytes} bytes"
            expected = f"{SMALL_FILE_LIMIT_BYTES} bytes at most"
            message = "file is too large for its kind"
            raise ArchiveError(
                Reason.OBJECT_UNREADABLE, message, object_name=listed.name, expected=expected, found=found
            )
        return self.store.read_range(listed.name, 0, listed.size_bytes)


def _require_files(segment: LocalSegment) -> None:
    """Check the listed files before anything is read."""
    for kind in (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX, SegmentFileKind.PRODUCER_SNAPSHOT):
        if segment.find_object(kind) is None:
            raise NotCopiableError(f"the segment of {segment.log.name} has no {kind.value}; Kafka does not tier it")
    if not segment.log.size_bytes:
        raise NotCopiableError(f"{segment.log.name} is empty; there is nothing to copy")


def _require_indexed_batches(segment: LocalSegment, index: Content, next_offset: int) -> None:
    """Check that the last index entry is the end of a batch in the log. In a follower's index it may be the end of a
    batch after the one at its position (see formats.kafka.offset_index)."""
    entries = read_offset_index(memoryview(b"".join(index.iter_pieces())), base_offset=segment.base_offset)
    if not entries.entry_count:
        return
    offset, position = int(entries.offsets[-1]), int(entries.positions[-1])
    if offset >= next_offset or position >= segment.log.size_bytes:
        raise NotCopiableError(
            f"{segment.log.name} ends at {segment.log.size_bytes} bytes with offset {next_offset - 1}, its index names "
            f"offset {offset} from byte {position} on: the log was cut or its mirror is incomplete. Mirror it whole"
        )


def _require_last_records(segment: LocalSegment, next_offset: int) -> None:
    last_offset = (segment.end_offset or 0) - 1
    if next_offset > last_offset:
        return
    missing = (
        f"offset {last_offset} is" if next_offset == last_offset else f"offsets {next_offset} to {last_offset} are"
    )
    raise NotCopiableError(
        f"{segment.log.name} ends with offset {next_offset - 1}, but the next segment begins at {segment.end_offset}: "
        f"{missing} missing, so the log was cut or its mirror is incomplete. Mirror it whole, or "
        "set copy.allow_gaps=true if the topic was once compacted"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogFacts:
    """Facts of the batches read so far; `next_offset` is one after the last record."""

    max_timestamp_ms: int = -1
    next_offset: int = 0
    crc: int = 0

    def with_window(self, window: LogWindow) -> _LogFacts:
        """Add the batches of one more window. It may end with part of a batch that the next window has too."""
        end = int(window.headers.position[-1]) + int(window.headers.size_bytes[-1]) - window.position
        largest = int(window.headers.max_timestamp_ms.max())
        return _LogFacts(
            max_timestamp_ms=max(self.max_timestamp_ms, largest),
            next_offset=int(window.headers.last_offset[-1]) + 1,
            crc=crc32c(window.content[:end], self.crc),
        )


def _verified(kind: SegmentFileKind, content: memoryview, base_offset: int) -> bytes:
    """Return the bytes to archive of a small file: as it is, or an index without its padding."""
    match kind:
        case SegmentFileKind.OFFSET_INDEX:
            offset_index = read_offset_index(content, base_offset=base_offset)
            return write_offset_index(offset_index) if offset_index.padding_bytes else bytes(content)
        case SegmentFileKind.TIME_INDEX:
            time_index = read_time_index(content, base_offset=base_offset)
            return write_time_index(time_index) if time_index.padding_bytes else bytes(content)
        case SegmentFileKind.TXN_INDEX:
            read_txn_index(content, base_offset=base_offset)
        case SegmentFileKind.PRODUCER_SNAPSHOT:
            read_producer_snapshot(content)
    return bytes(content)
