"""Find the files of a partition in a broker's log directory, and read the directory's checkpoints.

    <directory>/<topic>-<partition>/<base offset, 20 digits>.log .index .timeindex .txnindex     a segment
                                    <offset, 20 digits>.snapshot      producers before that offset
                                    leader-epoch-checkpoint           the lineage of the whole partition
    <directory>/log-start-offset-checkpoint, replication-offset-checkpoint

A segment ends where the next segment begins; so its producer snapshot is the one named by the next base offset. The
last segment is the active one: a broker may be writing to it, its indexes are preallocated with zeros and filled from
the front, and its log may end in zeros. A file that ends in `.deleted`, `.cleaned` or `.swap`, or an index without its
log, belongs to no segment. The partition is the part after the last dash of a directory's name, because a topic may
contain dashes and dots. Directories of deleted, stray and moving partitions end in a dot, 32 hexadecimal digits and
`-delete`, `-stray` or `-future`, and are not partitions.

A file may be removed after the listing. Reading it then is an `ArchiveError` (OBJECT_MISSING), as for any store.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from coldlog.archive.layouts.layout import SMALL_FILE_LIMIT_BYTES, SegmentFileKind, SegmentObject
from coldlog.archive.layouts.log_windows import LogFile
from coldlog.archive.layouts.sorted_entries import INT32_MAX, INT64_MAX, segment_object
from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.leader_epoch_checkpoint import LeaderEpochEntry, read_leader_epoch_checkpoint
from coldlog.formats.kafka.offset_checkpoint import OffsetCheckpoint, read_offset_checkpoint
from coldlog.formats.kafka.offset_index import OffsetIndex, read_offset_index
from coldlog.formats.kafka.producer_snapshot import ProducerSnapshot, read_producer_snapshot
from coldlog.formats.kafka.time_index import TimeIndex, read_time_index
from coldlog.formats.kafka.txn_index import TXN_INDEX_ENTRY, TxnIndex, read_txn_index

LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

_DIRECTORY = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
_FILE = re.compile(r"(?P<offset>[0-9]{20})(?P<suffix>\.(?:log|index|timeindex|txnindex|snapshot))")
# The last of 22 characters carries two bits.
_TOPIC_ID = re.compile(rb"^topic_id: ([a-zA-Z0-9_-]{21}[AQgw])$", re.MULTILINE)
_KINDS = {
    ".log": SegmentFileKind.LOG,
    ".index": SegmentFileKind.OFFSET_INDEX,
    ".timeindex": SegmentFileKind.TIME_INDEX,
    ".txnindex": SegmentFileKind.TXN_INDEX,
}
_PIECE_BYTES = 64 << 10
_LONGEST_ENTRY_BYTES = 24
"""A multiple of the entry sizes of both indexes, 8 and 12 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSegment:
    """A segment. `end_offset` is the next segment's base offset, None for the active segment. `objects` are the log and
    its side files in the order of SegmentFileKind; the leader epoch checkpoint belongs to the partition."""

    base_offset: int
    end_offset: int | None
    objects: tuple[SegmentObject, ...]

    @property
    def is_active(self) -> bool:
        """A broker may be writing to it."""
        return self.end_offset is None

    @property
    def log(self) -> LogFile:
        """The log, as listed."""
        listed = self.objects[0]
        return LogFile(
            name=listed.name,
            size_bytes=listed.size_bytes,
            base_offset=self.base_offset,
            is_active=self.is_active,
        )

    def find_object(self, kind: SegmentFileKind) -> SegmentObject | None:
        """The listed file of this kind."""
        return next((listed for listed in self.objects if listed.kind is kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPartition:
    """A partition's directory. Segments and snapshots ascend by offset; a snapshot describes the log before its
    offset."""

    name: str
    topic: str
    partition: int
    segments: tuple[LocalSegment, ...]
    snapshots: tuple[tuple[int, ObjectInfo], ...]
    leader_epoch_checkpoint: ObjectInfo | None
    metadata: ObjectInfo | None = None
    unknown: tuple[ObjectInfo, ...] = ()
    """All other files, and indexes without a log."""


def read_directory_name(name: str) -> tuple[str, int] | None:
    """Topic and partition; None for a directory that is not a partition's."""
    matched = _DIRECTORY.fullmatch(name)
    if matched is None or int(matched["partition"]) > INT32_MAX:
        return None
    return matched["topic"], int(matched["partition"])


def list_partitions(store: ObjectStore) -> list[tuple[str, int]]:
    """The partitions in the directory, by topic and number."""
    partitions = map(read_directory_name, store.list_directories(""))
    return sorted(partition for partition in partitions if partition is not None)


def find_partition(store: ObjectStore, topic: str, partition: int) -> LocalPartition | None:
    """The partition's current files; None if the directory has none, because Kafka writes some at once."""
    name = f"{topic}-{partition}"
    is_name = read_directory_name(name) == (topic, partition)
    return partition_of(name, list(store.iter_objects(name))) if is_name else None


def partition_of(name: str, listed: Collection[ObjectInfo]) -> LocalPartition | None:
    """The files listed in the directory `name`, at any depth; None if there are none, or it is not a partition's."""
    topic_partition = read_directory_name(name.rpartition("/")[2])
    if topic_partition is None or not listed:
        return None
    lineage = metadata = None
    by_offset: dict[int, dict[SegmentFileKind, ObjectInfo]] = {}
    snapshots: dict[int, ObjectInfo] = {}
    unknown: list[ObjectInfo] = []
    for info in listed:
        file_name = info.name.rpartition("/")[2]
        matched = _FILE.fullmatch(file_name)
        if file_name == LEADER_EPOCH_CHECKPOINT:
            lineage = info
        elif file_name == PARTITION_METADATA:
            metadata = info
        elif matched and int(matched["offset"]) <= INT64_MAX:
            offset, kind = int(matched["offset"]), _KINDS.get(matched["suffix"])
            if kind is None:
                snapshots[offset] = info
            else:
                by_offset.setdefault(offset, {})[kind] = info
        else:
            unknown.append(info)
    unknown += [info for found in by_offset.values() if SegmentFileKind.LOG not in found for info in found.values()]
    return LocalPartition(
        name=name,
        topic=topic_partition[0],
        partition=topic_partition[1],
        segments=tuple(_iter_segments(by_offset, snapshots)),
        snapshots=tuple(sorted(snapshots.items())),
        leader_epoch_checkpoint=lineage,
        metadata=metadata,
        unknown=tuple(sorted(unknown)),
    )


def read_checkpoint(store: ObjectStore, name: str) -> OffsetCheckpoint:
    """The content of one of the directory's checkpoints; empty if the file does not exist."""
    try:
        return read_offset_checkpoint(_read_whole(store, name, store.size_bytes(name)))
    except ArchiveError as failure:
        if failure.reason is Reason.OBJECT_MISSING:
            return {}
        raise failure if failure.object_name else failure.with_object_name(name) from failure


def read_lineage(store: ObjectStore, partition: LocalPartition) -> tuple[LeaderEpochEntry, ...]:
    """The partition's leader epochs, oldest first; none without a checkpoint."""
    info = partition.leader_epoch_checkpoint
    if info is None:
        return ()
    # Each change replaces the whole file, so its size may differ from the listed size.
    content = _read_whole(store, info.name, store.size_bytes(info.name))
    try:
        return read_leader_epoch_checkpoint(content).entries
    except ArchiveError as wrong:
        raise wrong.with_object_name(info.name) from wrong


def read_topic_id(store: ObjectStore, partition: LocalPartition) -> str | None:
    """The topic id as Kafka writes it; None if the file or the entry is missing."""
    if partition.metadata is None:
        return None
    matched = _TOPIC_ID.search(bytes(_read_whole(store, partition.metadata.name, partition.metadata.size_bytes)))
    return None if matched is None else matched[1].decode()


def read_snapshot(store: ObjectStore, info: ObjectInfo) -> ProducerSnapshot:
    """The producers of one snapshot."""
    try:
        return read_producer_snapshot(_read_whole(store, info.name, info.size_bytes))
    except ArchiveError as wrong:
        raise wrong.with_object_name(info.name) from wrong


def find_offset_index(store: ObjectStore, segment: LocalSegment) -> OffsetIndex | None:
    """The offset index; None if it is missing or damaged, because the log alone is always enough."""
    listed = segment.find_object(SegmentFileKind.OFFSET_INDEX)
    try:
        return None if listed is None else read_offset_index(_read_used(store, listed), base_offset=segment.base_offset)
    except ArchiveError:
        return None


def find_time_index(store: ObjectStore, segment: LocalSegment) -> TimeIndex | None:
    """The time index; None if it is missing or damaged."""
    listed = segment.find_object(SegmentFileKind.TIME_INDEX)
    try:
        return None if listed is None else read_time_index(_read_used(store, listed), base_offset=segment.base_offset)
    except ArchiveError:
        return None


def find_transaction_index(store: ObjectStore, segment: LocalSegment) -> TxnIndex | None:
    """The transactions that markers in the segment aborted; None: there are none. The last entry of an active segment
    may just be written; then it is of a marker after the high watermark."""
    listed = segment.find_object(SegmentFileKind.TXN_INDEX)
    if listed is None:
        return None
    content = _read_whole(store, listed.name, listed.size_bytes)
    cut_bytes = len(content) % TXN_INDEX_ENTRY.itemsize if segment.is_active else 0
    try:
        return read_txn_index(content[: len(content) - cut_bytes], base_offset=segment.base_offset)
    except ArchiveError as wrong:
        raise wrong.with_object_name(listed.name) from wrong


def _iter_segments(
    by_offset: dict[int, dict[SegmentFileKind, ObjectInfo]], snapshots: dict[int, ObjectInfo]
) -> Iterator[LocalSegment]:
    base_offsets = sorted(offset for offset, found in by_offset.items() if SegmentFileKind.LOG in found)
    for base_offset, end_offset in pairwise((*base_offsets, None)):
        if base_offset is None:
            return
        found = by_offset[base_offset]
        if end_offset in snapshots:
            found[SegmentFileKind.PRODUCER_SNAPSHOT] = snapshots[end_offset]
        objects = tuple(segment_object(kind, info) for kind in SegmentFileKind if (info := found.get(kind)) is not None)
        yield LocalSegment(base_offset=base_offset, end_offset=end_offset, objects=objects)


def _read_used(store: ObjectStore, listed: SegmentObject) -> memoryview:
    """The file without most of the zeros after its entries: the index of an active segment is preallocated to 10
    MiB."""
    length = _PIECE_BYTES // _LONGEST_ENTRY_BYTES * _LONGEST_ENTRY_BYTES
    while True:
        content = store.read_range(listed.name, 0, min(length, listed.size_bytes))
        if len(content) < length or length >= listed.size_bytes or not any(content[-_LONGEST_ENTRY_BYTES:]):
            return content
        length *= 8


def _read_whole(store: ObjectStore, name: str, size_bytes: int) -> memoryview:
    if size_bytes > SMALL_FILE_LIMIT_BYTES:
        message, expected = "file is too large to be read whole", f"at most {SMALL_FILE_LIMIT_BYTES} bytes"
        raise ArchiveError(
            Reason.OBJECT_UNREADABLE, message, object_name=name, expected=expected, found=f"{size_bytes} bytes"
        )
    return store.read_range(name, 0, size_bytes)
