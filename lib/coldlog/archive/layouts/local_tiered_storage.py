"""List and read segments in the directory tree of Kafka's LocalTieredStorage.

The tree below `rsm.config.dir` (org.apache.kafka.server.log.remote.storage.LocalTieredStorage):

    kafka-tiered-storage/                                      the root here
        <topic>-<partition>-<topic id>/
            <start offset, 20 digits>-<segment id><suffix>     one for each file of the segment

Both ids are Kafka's Uuid text of 22 characters and may contain or begin with `-`; topics may contain `-` and end in
digits. So names are parsed from the right. Each file is one object, byte for byte. `.txnindex` exists only if the
segment has an aborted transaction; every finished copy has the other five.

Listed as unrecognized: names that Kafka does not write (partitions with leading zeros or beyond int32, offsets beyond
int64, ids whose last character does not result from 16 bytes, other suffixes, temporary files), files beside the
partition directories, directories below them, and a segment id that also has a lower start offset: an id is the key of
a segment and identifies one upload.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from coldlog.archive.layouts.layout import (
    ArchiveLayout,
    DirectoryListing,
    LayoutOptions,
    ListedSegment,
    NoArchiveError,
    ObjectKind,
    PartitionDirectory,
    SegmentFileKind,
    SegmentKey,
    SegmentListing,
    SegmentObject,
)
from coldlog.archive.layouts.plain_objects import get_listed, read_small_object, require_small_kind
from coldlog.archive.layouts.sorted_entries import (
    INT32_MAX,
    UUID_PATTERN,
    segment_of,
    sort_level,
    sort_partition,
    unrecognized_object,
)
from coldlog.archive.stores.object_store import ObjectStore, RootedStore
from coldlog.archive.stores.stored_file import StoredFile
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition

LOCAL_TIERED_STORAGE = "local_tiered_storage"
ROOT_DIRECTORY = "kafka-tiered-storage"
SUFFIXES = {
    SegmentFileKind.LOG: ".log",
    SegmentFileKind.OFFSET_INDEX: ".index",
    SegmentFileKind.TIME_INDEX: ".timeindex",
    SegmentFileKind.TXN_INDEX: ".txnindex",
    SegmentFileKind.PRODUCER_SNAPSHOT: ".snapshot",
    SegmentFileKind.LEADER_EPOCH_CHECKPOINT: ".leader_epoch_checkpoint",
}
REQUIRED_KINDS = tuple(kind for kind in SegmentFileKind if kind is not SegmentFileKind.TXN_INDEX)

_KINDS: dict[str, ObjectKind] = {suffix: kind for kind, suffix in SUFFIXES.items()}
_DIRECTORY = re.compile(
    rf"(?P<topic>[A-Za-z0-9._-]{{1,249}})-(?P<partition>0|[1-9][0-9]{{0,9}})-(?P<topic_id>{UUID_PATTERN})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTieredStorageLayout:
    """An ArchiveLayout over a store whose root is the directory `kafka-tiered-storage`."""

    name: ClassVar[str] = LOCAL_TIERED_STORAGE
    is_mirror: ClassVar[bool] = False
    """Every upload has its own id."""

    store: ObjectStore

    @property
    def uri(self) -> str:
        """The archive as the user wrote it."""
        return self.store.uri

    def list_partition_directories(self) -> DirectoryListing:
        """List the root once."""
        level, form = self.store.list_level(""), "no <topic>-<partition>-<topic id>"
        directories, unrecognized = sort_level(level, find_partition_directory, form=form)
        return DirectoryListing(directories=tuple(directories), unrecognized=tuple(unrecognized))

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """List the directory once."""
        return self._list(directory, None)

    def list_named(self, directory: PartitionDirectory, beginnings: Collection[str]) -> SegmentListing:
        """List the objects whose names begin so."""
        return self._list(directory, beginnings)

    def _list(self, directory: PartitionDirectory, beginnings: Collection[str] | None) -> SegmentListing:
        objects, unrecognized = sort_partition(self.store, directory.name, _KINDS, beginnings)
        kept, repeated = _split_repeated_ids(objects)
        segments = tuple(segment_of(directory, key, objects[key], REQUIRED_KINDS) for key in kept)
        for key in repeated:
            why = f"segment id {key[1]} belongs to a lower start offset"
            unrecognized += [unrecognized_object(listed, why) for listed in objects[key]]
        return SegmentListing(segments=segments, unrecognized=tuple(unrecognized))

    def has_file(self, segment: ListedSegment, kind: SegmentFileKind) -> bool:
        """The listing contains the file."""
        return segment.find_object(kind) is not None

    def log_size_bytes(self, segment: ListedSegment) -> int:
        """The listed size."""
        return _get_object(segment, SegmentFileKind.LOG).size_bytes

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """Bytes of the `.log` object, unchanged."""
        return self.store.read_range(_get_object(segment, SegmentFileKind.LOG).name, position, length, until)

    def open_log(self, segment: ListedSegment) -> StoredFile | None:
        """The file of the `.log` object, if the store has files."""
        return self.store.open_file(_get_object(segment, SegmentFileKind.LOG).name)

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """The whole object. Refuses an object whose size changed after the listing: it may be half written."""
        require_small_kind(kind)
        return read_small_object(self.store, _get_object(segment, kind))


def find_partition_directory(name: str) -> PartitionDirectory | None:
    """The topic-partition of a directory's name; None if Kafka does not write such a name."""
    match = _DIRECTORY.fullmatch(name)
    if match is None or int(match["partition"]) > INT32_MAX or match["topic"] in (".", ".."):
        return None
    return PartitionDirectory(
        name=name, topic=match["topic"], topic_id=match["topic_id"], partition=int(match["partition"])
    )


def open_layout(store: RootedStore, _: LayoutOptions) -> ArchiveLayout:
    """Open the tree in `store` or below it; `UsageError` if there is none."""
    if store.has_directory(ROOT_DIRECTORY):
        return LocalTieredStorageLayout(store=store.below(ROOT_DIRECTORY))
    is_tree = store.root.rpartition("/")[2] == ROOT_DIRECTORY or any(
        find_partition_directory(name) for name in store.iter_directories("")
    )
    if not is_tree:
        raise NoArchiveError(
            f"no {LOCAL_TIERED_STORAGE} archive at {store.uri}: it has neither {ROOT_DIRECTORY} nor a directory "
            "named <topic>-<partition>-<topic id>; correct archive.uri, or archive.layout"
        )
    return LocalTieredStorageLayout(store=store)


def name_directory(partition: TopicIdPartition) -> str:
    """The directory of a partition's segments."""
    return f"{partition.topic}-{partition.partition}-{partition.topic_id}"


def name_object(segment_id: RemoteLogSegmentId, start_offset: int, kind: SegmentFileKind) -> str:
    """The object that holds a file of a segment."""
    return f"{_stem(segment_id, start_offset)}{SUFFIXES[kind]}"


def list_segment_objects(store: ObjectStore, segment_id: RemoteLogSegmentId, start_offset: int) -> list[str]:
    """Every object of a segment, finished or temporary; one listing of its names."""
    directory, _, name = _stem(segment_id, start_offset).rpartition("/")
    return [info.name for info in store.list_level(directory, [f"{name}."])[1]]


def _stem(segment_id: RemoteLogSegmentId, start_offset: int) -> str:
    return f"{name_directory(segment_id.topic_id_partition)}/{start_offset:020d}-{segment_id.segment_id}"


def _split_repeated_ids(keys: Iterable[SegmentKey]) -> tuple[list[SegmentKey], list[SegmentKey]]:
    """Keys in order, and apart from them the keys whose segment id also has a lower start offset."""
    kept: dict[str, SegmentKey] = {}
    repeated = []
    for key in sorted(keys):
        if kept.setdefault(key[1], key) is not key:
            repeated.append(key)
    return list(kept.values()), repeated


def _get_object(segment: ListedSegment, kind: SegmentFileKind) -> SegmentObject:
    return get_listed(segment, kind, lambda: name_object(segment.remote_log_segment_id, segment.start_offset, kind))
