"""log_directories_layout: which segments lie in a mirror of brokers' log directories?

    <above>/<topic>-<partition>/<base offset, 20 digits>.log .index .timeindex .txnindex .snapshot
                                leader-epoch-checkpoint, partition.metadata

as `log_directory` tells them apart. `<above>` is empty, or names of directories by the pattern `above_partitions`,
`*` for any name (`*` in a part stands for any characters, `?` for one). Only the log is required; what can be had
without the others is said in docs/reference/layouts.md.

That is also what Pinterest's segment uploader writes (github.com/pinterest/tiered-storage at 1.0.5-SNAPSHOT:
S3StorageServiceEndpoint.Builder, MultiThreadedS3FileUploader, DirectoryTreeWatcher, WatermarkFileHandler,
TopicPartitionMetadata):

    <base prefix>/[<hash bits>/]<cluster>/<topic>-<partition>/<base offset>.log .index .timeindex, offset.wm, _metadata

The hash bits are the first so many bits of an MD5 of cluster, topic and partition, as 0 and 1; with them
`above_partitions` is `*/<cluster>`. Only segments that were rolled are uploaded, the three files in any order; no
.txnindex, .snapshot, checkpoint or partition.metadata. `offset.wm` names the last base offset that was uploaded,
`_metadata` has times of files in JSON; both are known and not read, for neither says what the logs do not.

Such a mirror has no ids. A segment's is made from where it lies: Kafka's text of the first 16 bytes of the SHA-256 of
`<directory>/<base offset, 20 digits>/<topic id>`. It stands for the place, not for the content: a file that is replaced
there (compacted, grown, cut and written on) is the same segment, changed. The topic id is that of `partition.metadata`,
empty where there is none; a topic that was made anew has other segments, even at the same offsets. Where the file is
there and cannot be read, no id can be made: listing the directory is an `ArchiveError`. The same partition in two
directories (two brokers' mirrors) has two segments at the same offset, as two uploads would.

The last log of a partition is the one that a broker writes to, or was. While it has no byte, its segment is listed
without its log; otherwise it counts as far as it is whole (operations.segment_build).

The checkpoint is the partition's and replaced as it grows, so it is no object of a segment (a new leader must not make
all segments look changed), and every segment has the same. A snapshot belongs to the segment that ends where it
stands; another one is known and used by nobody. `.deleted`, `.cleaned`, `.swap`, an index without its log, directories
that are no partition's (`-delete`, `-stray`, `-future`) and all other files are listed as unrecognized.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from coldlog.archive.layouts.layout import (
    SMALL_FILE_LIMIT_BYTES,
    DirectoryListing,
    ListedSegment,
    PartitionDirectory,
    SegmentFileKind,
    SegmentListing,
    UnrecognizedObject,
)
from coldlog.archive.layouts.log_directory import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LocalPartition,
    LocalSegment,
    find_partition_in,
    read_directory_name,
    read_topic_id,
)
from coldlog.archive.layouts.plain_objects import (
    get_listed,
    read_small_object,
    require_small_kind,
    split_level,
    unrecognized_directory,
    unrecognized_object,
)
from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore
from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.model.ids import uuid_text

LOG_DIRECTORIES = "log_directories"
UPLOADER_FILES = frozenset({"offset.wm", "_metadata"})
BROKER_FILES = frozenset(
    {
        LOG_START_OFFSET_CHECKPOINT,
        HIGH_WATERMARK_CHECKPOINT,
        "recovery-point-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "meta.properties",
        "bootstrap.checkpoint",
        ".lock",
        ".kafka_cleanshutdown",
    }
)
_SUFFIXES = {
    SegmentFileKind.LOG: ".log",
    SegmentFileKind.OFFSET_INDEX: ".index",
    SegmentFileKind.TIME_INDEX: ".timeindex",
    SegmentFileKind.TXN_INDEX: ".txnindex",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoriesLayout:
    """An ArchiveLayout over a store that holds partition directories `above_partitions` below its root."""

    store: ObjectStore
    above_partitions: str = ""

    def __post_init__(self) -> None:
        if any(part in ("", ".", "..") for part in self._patterns):
            raise UsageError(
                f"not the names of directories: {self.above_partitions!r}; names or patterns with / between, as in "
                "*/cluster, are expected, and nothing where the partitions lie at the root"
            )

    @property
    def name(self) -> str:
        """The name in settings."""
        return LOG_DIRECTORIES

    @property
    def uri(self) -> str:
        """The archive as the user wrote it."""
        return self.store.uri

    @property
    def is_mirror(self) -> bool:
        """Yes."""
        return True

    def holds_partitions(self) -> bool:
        """There is one partition directory at least; looks no further than to the first."""
        names = (name for above in self._iter_above([]) for name in self.store.list_directories(above))
        return any(read_directory_name(name.rpartition("/")[2]) for name in names)

    def list_partition_directories(self) -> DirectoryListing:
        """One look at each directory above the partitions; a level of the pattern without `*` and `?` costs none."""
        unrecognized: list[UnrecognizedObject] = []
        directories: list[PartitionDirectory] = []
        for above in self._iter_above(unrecognized):
            names, strays = split_level(self.store.list_directories(above), self.store.iter_objects(above))
            for name in names:
                place = read_directory_name(name.rpartition("/")[2])
                if place is None:
                    unrecognized.append(unrecognized_directory(name, "no <topic>-<partition>"))
                else:
                    directories.append(PartitionDirectory(name=name, topic=place[0], topic_id="", partition=place[1]))
            unrecognized += _unrecognized_files(strays)
        directories.sort(key=lambda directory: directory.name)
        return DirectoryListing(directories=tuple(directories), unrecognized=tuple(unrecognized))

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """One look at the directory, and one at its `partition.metadata`; `ArchiveError` where that cannot be read."""
        unrecognized = [
            unrecognized_directory(name, "a directory below a partition")
            for name in self.store.list_directories(directory.name)
        ]
        found = find_partition_in(self.store, directory.name)
        if found is None:
            return SegmentListing(segments=(), unrecognized=tuple(unrecognized))
        unrecognized += [
            unrecognized_object(info, "no file of a segment that has a log")
            for info in found.unknown
            if info.name.rpartition("/")[2] not in UPLOADER_FILES
        ]
        # Not as if there were none, be it gone since the listing: all segments would get other ids.
        topic_id = read_topic_id(self.store, found) or ""
        segments = tuple(_listed_segment(found, segment, topic_id) for segment in found.segments)
        return SegmentListing(segments=segments, unrecognized=tuple(unrecognized))

    def has_file(self, segment: ListedSegment, kind: SegmentFileKind) -> bool:
        """The listing had it; a look at the store for the checkpoint."""
        if kind is not SegmentFileKind.LEADER_EPOCH_CHECKPOINT:
            return segment.find_object(kind) is not None
        try:
            self.store.size_bytes(_checkpoint_name(segment))
        except ArchiveError as wrong:
            if wrong.reason is Reason.OBJECT_MISSING:
                return False
            raise
        return True

    def log_size_bytes(self, segment: ListedSegment) -> int:
        """The size as listed."""
        return get_listed(segment, SegmentFileKind.LOG, _name_of(segment, SegmentFileKind.LOG)).size_bytes

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """Bytes of the `.log` object as they are."""
        listed = get_listed(segment, SegmentFileKind.LOG, _name_of(segment, SegmentFileKind.LOG))
        return self.store.read_range(listed.name, position, length, until)

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """The whole object; the checkpoint as it is now, since it is replaced as a whole whenever it changes."""
        require_small_kind(kind)
        if kind is not SegmentFileKind.LEADER_EPOCH_CHECKPOINT:
            return read_small_object(self.store, get_listed(segment, kind, _name_of(segment, kind)))
        name = _checkpoint_name(segment)
        content = self.store.read_range(name, 0, SMALL_FILE_LIMIT_BYTES + 1)
        if content.nbytes > SMALL_FILE_LIMIT_BYTES:
            message, expected = "object is too large for its kind", f"at most {SMALL_FILE_LIMIT_BYTES} bytes"
            raise ArchiveError(Reason.OBJECT_UNREADABLE, message, object_name=name, expected=expected, found="more")
        return content

    @property
    def _patterns(self) -> list[str]:
        return self.above_partitions.split("/") if self.above_partitions else []

    def _iter_above(self, unrecognized: list[UnrecognizedObject], above: str = "", level: int = 0) -> Iterator[str]:
        """The directories that may hold partition directories, as far as names tell."""
        if level == len(self._patterns):
            yield above
            return
        pattern = self._patterns[level]
        if not any(character in pattern for character in "*?["):
            yield from self._iter_above(unrecognized, f"{above}/{pattern}" if above else pattern, level + 1)
            return
        names, strays = split_level(self.store.list_directories(above), self.store.iter_objects(above))
        for name in names:
            if fnmatchcase(name.rpartition("/")[2], pattern):
                yield from self._iter_above(unrecognized, name, level + 1)
            else:
                unrecognized.append(unrecognized_directory(name, f"not named as {pattern}"))
        unrecognized += _unrecognized_files(strays)


def _unrecognized_files(strays: Iterable[ObjectInfo]) -> Iterator[UnrecognizedObject]:
    for info in strays:
        if info.name.rpartition("/")[2] not in BROKER_FILES:
            yield unrecognized_object(info, "a file beside the partitions")


def _listed_segment(found: LocalPartition, segment: LocalSegment, topic_id: str) -> ListedSegment:
    is_unwritten = segment.is_active and segment.log.size_bytes == 0
    place = f"{found.name}/{segment.base_offset:020d}/{topic_id}"
    return ListedSegment(
        topic=found.topic,
        topic_id=topic_id,
        partition=found.partition,
        start_offset=segment.base_offset,
        segment_id=uuid_text(hashlib.sha256(place.encode("utf-8", "surrogateescape")).digest()[:16]),
        objects=segment.objects,
        missing_kinds=(SegmentFileKind.LOG,) if is_unwritten else (),
    )


def _directory_of(segment: ListedSegment) -> str:
    listed = segment.find_object(SegmentFileKind.LOG)
    return f"{segment.topic}-{segment.partition}" if listed is None else listed.name.rpartition("/")[0]


def _checkpoint_name(segment: ListedSegment) -> str:
    return f"{_directory_of(segment)}/{LEADER_EPOCH_CHECKPOINT}"


def _name_of(segment: ListedSegment, kind: SegmentFileKind) -> str:
    """Where a missing file would be; a snapshot stands at the segment's end, which names do not tell."""
    stem = f"{segment.start_offset:020d}{_SUFFIXES[kind]}" if kind in _SUFFIXES else "<end offset>.snapshot"
    return f"{_directory_of(segment)}/{stem}"
