"""Define what every archive layout offers: segments, and the files of each segment.

This is the port between an object store and all code that reads segments. A layout knows how one system names its
objects (Kafka's LocalTieredStorage, a storage plugin, a mirror of log directories). Its callers know segments and
Kafka's six files. They see object names only in messages. They do not know whether a file is an object, a range of an
object, or compressed chunks: `read_log_range` uses positions of the original log.

Listing has two steps, so that many tasks can share the second: first the partition directories, then the segments of
one directory. An object that a layout does not recognize is a value (`UnrecognizedObject`), not an exception: one stray
file must not hide an archive, and nothing may be dropped silently. All values here, and layouts, can be pickled.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from coldlog.archive.stores.stored_file import StoredFile
from coldlog.errors import UsageError
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition

# Kafka's defaults bound an index to 10 MiB; a snapshot of a million producers has 46 MB.
SMALL_FILE_LIMIT_BYTES = 64 * 1024 * 1024


class NoArchiveError(UsageError):
    """The place does not hold an archive of this layout; another place or layout was meant."""


class SegmentFileKind(StrEnum):
    """The files of a segment, named as Kafka names them; the `kind` of `segments.objects`."""

    LOG = "log"
    OFFSET_INDEX = "offset_index"
    TIME_INDEX = "time_index"
    TXN_INDEX = "txn_index"
    PRODUCER_SNAPSHOT = "producer_snapshot"
    LEADER_EPOCH_CHECKPOINT = "leader_epoch_checkpoint"


class BundleKind(StrEnum):
    """Objects that are not files of Kafka: several files in one object, and the manifest that says how to read them."""

    INDEXES = "indexes"
    MANIFEST = "manifest"


ObjectKind = SegmentFileKind | BundleKind
SegmentKey = tuple[int, str]
"""Start offset and segment id."""


def object_kind(text: str) -> ObjectKind:
    """The kind with the name in a row of `segments.objects`."""
    return _OBJECT_KINDS[text]


_OBJECT_KINDS: dict[str, ObjectKind] = {kind.value: kind for kind in (*SegmentFileKind, *BundleKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDirectory:
    """The directory of one topic-partition's segments; `topic_id` is empty if the layout does not know it."""

    name: str
    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentObject:
    """One object of a segment, as listed."""

    kind: ObjectKind
    name: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment:
    """What object names say about a segment; end offset, timestamps and epochs are in its bytes.

    `topic_id` and `segment_id` are empty if the layout does not know them. `objects` are in the order of
    SegmentFileKind, then BundleKind. `missing_kinds` are required for a complete upload and missing in this one.
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
        """The segment's id in Kafka's metadata."""
        topic_id_partition = TopicIdPartition(topic=self.topic, partition=self.partition, topic_id=self.topic_id)
        return RemoteLogSegmentId(topic_id_partition=topic_id_partition, segment_id=self.segment_id)

    def find_object(self, kind: ObjectKind) -> SegmentObject | None:
        """The listed object of this kind."""
        for listed in self.objects:
            if listed.kind is kind:
                return listed
        return None

    def object_name_of(self, kind: SegmentFileKind) -> str:
        """The object that holds a file, for messages: its own object or the one that small files share; empty if
        none."""
        shared = None if kind is SegmentFileKind.LOG else self.find_object(BundleKind.INDEXES)
        holder = self.find_object(kind) or shared
        return holder.name if holder else ""

    @property
    def listed_log_size_bytes(self) -> int | None:
        """The size of the original log, from the listing; None if there is no log, or if only a manifest has the
        size."""
        log = self.find_object(SegmentFileKind.LOG)
        has_manifest = self.find_object(BundleKind.MANIFEST) or BundleKind.MANIFEST in self.missing_kinds
        return None if log is None or has_manifest else log.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecognizedObject:
    """Something in the archive that is not part of a segment. `name` can always be encoded in UTF-8 (other bytes are
    shown as escapes). `size_bytes` is 0 for a directory; its content is not listed."""

    name: str
    size_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryListing:
    """Partition directories, sorted by name, and unrecognized objects beside them."""

    directories: tuple[PartitionDirectory, ...]
    unrecognized: tuple[UnrecognizedObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentListing:
    """Segments of one directory, sorted by start offset and segment id, and unrecognized objects beside them."""

    segments: tuple[ListedSegment, ...]
    unrecognized: tuple[UnrecognizedObject, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """What some layouts need in addition to their uri; see the settings of the same names."""

    above_partitions: str = ""
    key_prefix: str = ""


class ArchiveLayout(Protocol):
    """Segments of one archive.

    Every method raises the errors of the ObjectStore. The reading methods also raise `ArchiveError`, with the object's
    name, for damage in one segment.
    """

    @property
    def name(self) -> str:
        """The name of this layout in settings."""

    @property
    def uri(self) -> str:
        """The archive as the user wrote it; for messages."""

    @property
    def is_mirror(self) -> bool:
        """The files are copied one by one from a log that is still written. So a file may be replaced under its name or
        be missing, the last log of a partition may be cut or grow, and the leader epoch checkpoint belongs to the
        partition. False if an object is written once and belongs to one upload."""

    def list_partition_directories(self) -> DirectoryListing:
        """The topic-partitions; their directories are not listed."""

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """The segments of one directory; none if the directory was removed after it was listed."""

    def has_file(self, segment: ListedSegment, kind: SegmentFileKind) -> bool:
        """The segment has this file; it may be empty."""

    def log_size_bytes(self, segment: ListedSegment) -> int:
        """The size of the original log at the time of the listing."""

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """At most `length` bytes of the original log; fewer only at the log's end. `until` is as for an ObjectStore, as
        a position in the original log."""

    def open_log(self, segment: ListedSegment) -> StoredFile | None:
        """The original log as an open file of this machine; None if it is none, or may be read in another way only.
        Errors are those of `read_log_range`."""

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """A whole file other than the log, at most SMALL_FILE_LIMIT_BYTES; `OBJECT_MISSING` if the segment has none."""


@runtime_checkable
class ListsByName(Protocol):
    """A layout whose objects have the names of their segments, so that it can list some segments alone.

    A name is `<start offset, 20 digits>-<segment id>.` and what the layout adds (`name_of`)."""

    def list_named(self, directory: PartitionDirectory, beginnings: Collection[str]) -> SegmentListing:
        """What `list_segments` says of the objects whose names begin with one of these. No beginning begins another. It
        costs one request for each beginning, and one for each further page."""


def name_of(key: SegmentKey) -> str:
    """Return how the names of a segment's objects begin. No other names begin so."""
    return f"{key[0]:020d}-{key[1]}."
