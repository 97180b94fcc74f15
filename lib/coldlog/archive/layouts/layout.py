"""layout: which objects make up a segment, and how are its files read from them?

The port between an object store and everything that reads segments. A layout knows how one system names its objects
(Kafka's LocalTieredStorage, a storage plugin, a mirror of log directories); its callers know segments and Kafka's own
six files. They never see an object's name but in messages, and never learn whether a file is an object of its own, a
range of one, or compressed chunks: `read_log_range` answers in positions of the original log.

Listing is in two steps, so that the second can be spread over many tasks: the partition directories, then the segments
of one directory. What a layout cannot read is a value (`UnrecognizedObject`), not an exception: one stray file must not
hide an archive, and nothing may be dropped in silence. All values here can be pickled, layouts too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition

# Kafka's defaults bound an index to 10 MiB; a snapshot of a million producers has 46 MB.
SMALL_FILE_LIMIT_BYTES = 64 * 1024 * 1024


class SegmentFileKind(StrEnum):
    """The files of a segment in Kafka's words; the `kind` of `segments.objects`."""

    LOG = "log"
    OFFSET_INDEX = "offset_index"
    TIME_INDEX = "time_index"
    TXN_INDEX = "txn_index"
    PRODUCER_SNAPSHOT = "producer_snapshot"
    LEADER_EPOCH_CHECKPOINT = "leader_epoch_checkpoint"


class BundleKind(StrEnum):
    """Objects that are no file of Kafka's: several files in one, and what says how to read the others."""

    INDEXES = "indexes"
    MANIFEST = "manifest"


ObjectKind = SegmentFileKind | BundleKind


def object_kind(text: str) -> ObjectKind:
    """The kind that a row of `segments.objects` names."""
    return _OBJECT_KINDS[text]


_OBJECT_KINDS: dict[str, ObjectKind] = {each.value: each for each in (*SegmentFileKind, *BundleKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDirectory:
    """Where the segments of one topic-partition lie; `topic_id` is empty where the layout knows none."""

    name: str
    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentObject:
    """One object of a segment as it was listed."""

    kind: ObjectKind
    name: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    """A segment as its names tell it: end offset, timestamps and epochs are in its bytes.

    `topic_id` and `segment_id` are empty where the layout knows none. `objects` are in the order of SegmentFileKind,
    then BundleKind; `missing_kinds` are those that a complete upload must have and this one has not.
    """

    topic: str
    topic_id: str
    partition: int
    start_offset: int
    segment_id: str
    objects: tuple[SegmentObject, ...]
    missing_kinds: tuple[ObjectKind, ...]

    @property
    def remote_log_segment_id(self) -> RemoteLogSegmentId:
        """The id that Kafka's metadata knows it by."""
        topic_id_partition = TopicIdPartition(topic=self.topic, partition=self.partition, topic_id=self.topic_id)
        return RemoteLogSegmentId(topic_id_partition=topic_id_partition, segment_id=self.segment_id)

    def find_object(self, kind: ObjectKind) -> SegmentObject | None:
        """The listed object of that kind."""
        return next((listed for listed in self.objects if listed.kind is kind), None)

    def object_name_of(self, kind: SegmentFileKind) -> str:
        """The object that holds a file, for messages: its own, or the one that small files share; empty: none."""
        shared = None if kind is SegmentFileKind.LOG else self.find_object(BundleKind.INDEXES)
        holder = self.find_object(kind) or shared
        return holder.name if holder else ""

    @property
    def listed_log_size_bytes(self) -> int | None:
        """The size of the original log, as far as a listing tells: None without a log, and where a manifest says it."""
        log = self.find_object(SegmentFileKind.LOG)
        is_told_elsewhere = self.find_object(BundleKind.MANIFEST) or BundleKind.MANIFEST in self.missing_kinds
        return None if log is None or is_told_elsewhere else log.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecognizedObject:
    """Something in the archive that is no part of a segment. `name` can always be encoded in UTF-8 (bytes that are
    not, are shown as escapes); `size_bytes` is 0 for a directory, whose content is not looked at."""

    name: str
    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryListing:
    """Partition directories, sorted by name, and what lies beside them."""

    directories: tuple[PartitionDirectory, ...]
    unrecognized: tuple[UnrecognizedObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentListing:
    """Segments of one directory, sorted by start offset and segment id, and what lies beside them."""

    segments: tuple[ListedSegment, ...]
    unrecognized: tuple[UnrecognizedObject, ...]


class ArchiveLayout(Protocol):
    """Segments of one archive.

    Errors of every method: those of the ObjectStore. Errors of reading: `ArchiveError`, naming the object, for what is
    wrong with one segment.
    """

    @property
    def name(self) -> str:
        """The name that settings use for this layout."""

    @property
    def uri(self) -> str:
        """The archive as the user wrote it; for messages."""

    @property
    def is_mirror(self) -> bool:
        """The files are those of a log that goes on, copied one by one: one may be replaced under its name or have
        been left out, the last log of a partition may be cut or grow, and the leader epoch checkpoint is the
        partition's. False where an object is written once and belongs to one upload."""

    def list_partition_directories(self) -> DirectoryListing:
        """The topic-partitions, without looking into them."""

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """The segments of one directory; none if the directory has gone since it was listed."""

    def has_file(self, segment: ListedSegment, kind: SegmentFileKind) -> bool:
        """The segment came with that file, be it empty."""

    def log_size_bytes(self, segment: ListedSegment) -> int:
        """The size of the original log when the segment was listed."""

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """Bytes of the original log, `length` at most; fewer only at the log's end. `until`: as an ObjectStore's, in
        positions of the original log."""

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """A whole file other than the log, SMALL_FILE_LIMIT_BYTES at most; `OBJECT_MISSING` if it has none."""
