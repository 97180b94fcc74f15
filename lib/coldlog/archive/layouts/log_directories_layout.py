"""List and read segments in a mirror of brokers' log directories.

    <above>/<topic>-<partition>/<base offset, 20 digits>.log .index .timeindex .txnindex .snapshot
                                leader-epoch-checkpoint, partition.metadata

`log_directory` assigns the files to segments. `<above>` is empty, or directories that match the pattern
`above_partitions`: `*` matches any name (in a part of a name, `*` matches any characters and `?` one character). Only
the log is required; docs/reference/layouts.md says what works without the other files.

Pinterest's segment uploader writes this layout too (github.com/pinterest/tiered-storage at 1.0.5-SNAPSHOT:
S3StorageServiceEndpoint.Builder, MultiThreadedS3FileUploader, DirectoryTreeWatcher, WatermarkFileHandler,
TopicPartitionMetadata):

    <base prefix>/[<hash bits>/]<cluster>/<topic>-<partition>/<base offset>.log .index .timeindex, offset.wm, _metadata

The hash bits are the first bits of an MD5 of cluster, topic and partition, written as 0 and 1; with them
`above_partitions` is `*/<cluster>`. Only rolled segments are uploaded, the three files in any order; there is no
.txnindex, .snapshot, checkpoint or partition.metadata. `offset.wm` names the last uploaded base offset, `_metadata` has
times of files in JSON. Both are known but not read, because the logs have the same information.

Such a mirror has no segment ids. The id is made from the segment's place: Kafka's text of the first 16 bytes of the
SHA-256 of `<directory>/<base offset, 20 digits>/<topic id>`. It identifies the place, not the content: if a file is
replaced there (compacted, grown, truncated and appended to), it is the same segment, changed. The topic id is read from
`partition.metadata` and is empty without that file; a recreated topic has other segments, even at the same offsets. If
the file exists and cannot be read, there is no id, and listing the directory is an `ArchiveError`. If two directories
(mirrors of two brokers) hold the same partition, it has two segments at the same offset, as with two uploads.

A broker may still write to the last log of a partition. If this log is empty, its segment is listed without its log;
otherwise the segment ends with the last whole batch (indexing.builds.segment_build).

The checkpoint belongs to the partition and is replaced when it changes. So it is not an object of a segment (a new
leader must not make all segments look changed), and all segments have the same one. Where the log starts is read from
the one of the newest segment. So the last log that is not empty counts as modified when the checkpoint was, if that is
later: DeleteRecords and retention change nothing else in a partition that nobody writes to.

A snapshot belongs to the segment that ends at the snapshot's offset; other snapshots are known but not used.
`.deleted`, `.cleaned`, `.swap`, an index without its log, directories that are not partitions (`-delete`, `-stray`,
`-future`) and all other files are listed as unrecognized.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar

from coldlog.archive.layouts.layout import (
    SMALL_FILE_LIMIT_BYTES,
    ArchiveLayout,
    DirectoryListing,
    LayoutOptions,
    ListedSegment,
    NoArchiveError,
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
    partition_of,
    read_directory_name,
    read_topic_id,
)
from coldlog.archive.layouts.plain_objects import get_listed, read_small_object, require_small_kind
from coldlog.archive.layouts.sorted_entries import directories_below, sort_level, unrecognized_object
from coldlog.archive.stores.object_store import ObjectStore, RootedStore
from coldlog.archive.stores.stored_file import StoredFile
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

    name: ClassVar[str] = LOG_DIRECTORIES
    is_mirror: ClassVar[bool] = True
    """A broker may still write to the log."""

    store: ObjectStore
    above_partitions: str = ""

    def __post_init__(self) -> None:
        if any(part in ("", ".", "..") for part in self._patterns):
            raise UsageError(
                f"archive.above_partitions is not a path of directories: {self.above_partitions!r}; give names or "
                "patterns separated by / (*/cluster), or nothing if the partitions are at the root"
            )

    @property
    def uri(self) -> str:
        """The archive as the user wrote it."""
        return self.store.uri

    def holds_partitions(self) -> bool:
        """At least one partition directory exists; listing stops at the first one."""
        names = (name for above in self._iter_above([]) for name in self.store.list_directories(above))
        return any(read_directory_name(name.rpartition("/")[2]) for name in names)

    def list_partition_directories(self) -> DirectoryListing:
        """List each directory above the partitions once; a level of the pattern without `*` and `?` needs no
        listing."""
        unrecognized: list[UnrecognizedObject] = []
        directories: list[PartitionDirectory] = []
        for above in self._iter_above(unrecognized):
            level, form = self.store.list_level(above), "no <topic>-<partition>"
            found, others = sort_level(level, _find_partition_directory, form=form, ignored=BROKER_FILES)
            directories += found
            unrecognized += others
        directories.sort(key=lambda directory: directory.name)
        return DirectoryListing(directories=tuple(directories), unrecognized=tuple(unrecognized))

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """List the directory and read its `partition.metadata`; `ArchiveError` if that cannot be read."""
        directories, objects = self.store.list_level(directory.name)
        unrecognized = directories_below(directories)
        found = partition_of(directory.name, objects)
        if found is None:
            return SegmentListing(segments=(), unrecognized=tuple(unrecognized))
        unrecognized += [
            unrecognized_object(info, "not a file of a segment with a log")
            for info in found.unknown
            if info.name.rpartition("/")[2] not in UPLOADER_FILES
        ]
        # An error here must not count as an empty topic id, even if the file is gone: all segments would get other ids.
        topic_id = read_topic_id(self.store, found) or ""
        newest = max((each.base_offset for each in found.segments if each.log.size_bytes), default=None)
        segments = tuple(
            _listed_segment(found, segment, topic_id, is_newest=segment.base_offset == newest)
            for segment in found.segments
        )
        return SegmentListing(segments=segments, unrecognized=tuple(unrecognized))

    def has_file(self, segment: ListedSegment, kind: SegmentFileKind) -> bool:
        """The listing contains the file; for the checkpoint, ask the store."""
        if kind is not SegmentFileKind.LEADER_EPOCH_CHECKPOINT:
            return segment.find_object(kind) is not None
        try:
            self.store.size_bytes(_checkpoint_name(segment))
        except ArchiveError as failure:
            if failure.reason is Reason.OBJECT_MISSING:
                return False
            raise
        return True

    def log_size_bytes(self, segment: ListedSegment) -> int:
        """The listed size."""
        return get_listed(segment, SegmentFileKind.LOG, lambda: _name_of(segment, SegmentFileKind.LOG)).size_bytes

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """Bytes of the `.log` object, unchanged."""
        listed = get_listed(segment, SegmentFileKind.LOG, lambda: _name_of(segment, SegmentFileKind.LOG))
        return self.store.read_range(listed.name, position, length, until)

    def open_log(self, segment: ListedSegment) -> StoredFile | None:
        """The file of the `.log` object, if the store has files."""
        listed = get_listed(segment, SegmentFileKind.LOG, lambda: _name_of(segment, SegmentFileKind.LOG))
        return self.store.open_file(listed.name)

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """The whole object; for the checkpoint, its current content, since each change replaces the whole file."""
        require_small_kind(kind)
        if kind is not SegmentFileKind.LEADER_EPOCH_CHECKPOINT:
            return read_small_object(self.store, get_listed(segment, kind, lambda: _name_of(segment, kind)))
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
        """The directories whose names match the pattern and so may hold partition directories."""
        if level == len(self._patterns):
            yield above
            return
        pattern = self._patterns[level]
        if not any(character in pattern for character in "*?["):
            yield from self._iter_above(unrecognized, f"{above}/{pattern}" if above else pattern, level + 1)
            return

        def find(name: str) -> str | None:
            return name if fnmatchcase(name.rpartition("/")[2], pattern) else None

        form = f"name does not match {pattern}"
        names, others = sort_level(self.store.list_level(above), find, form=form, ignored=BROKER_FILES)
        for name in names:
            yield from self._iter_above(unrecognized, name, level + 1)
        unrecognized += others


def open_layout(store: RootedStore, options: LayoutOptions) -> ArchiveLayout:
    """Open the mirror in `store`; `UsageError` if it has no partition directory at the place that `options` gives."""
    layout = LogDirectoriesLayout(store=store, above_partitions=options.above_partitions)
    if not layout.holds_partitions():
        above = f"{layout.above_partitions}/" if layout.above_partitions else ""
        raise NoArchiveError(
            f"no {LOG_DIRECTORIES} archive at {store.uri}: it has no directory {above}<topic>-<partition>; "
            "name the directories between archive.uri and the partitions in archive.above_partitions"
        )
    return layout


def _find_partition_directory(name: str) -> PartitionDirectory | None:
    place = read_directory_name(name.rpartition("/")[2])
    return None if place is None else PartitionDirectory(name=name, topic=place[0], topic_id="", partition=place[1])


def _listed_segment(found: LocalPartition, segment: LocalSegment, topic_id: str, *, is_newest: bool) -> ListedSegment:
    objects, checkpoint = segment.objects, found.leader_epoch_checkpoint
    if is_newest and checkpoint is not None:
        log, *others = objects
        objects = (replace(log, modified_ms=max(log.modified_ms, checkpoint.modified_ms)), *others)
    is_unwritten = segment.is_active and segment.log.size_bytes == 0
    place = f"{found.name}/{segment.base_offset:020d}/{topic_id}"
    return ListedSegment(
        topic=found.topic,
        topic_id=topic_id,
        partition=found.partition,
        start_offset=segment.base_offset,
        segment_id=uuid_text(hashlib.sha256(place.encode("utf-8", "surrogateescape")).digest()[:16]),
        objects=objects,
        missing_kinds=(SegmentFileKind.LOG,) if is_unwritten else (),
    )


def _directory_of(segment: ListedSegment) -> str:
    listed = segment.find_object(SegmentFileKind.LOG)
    return f"{segment.topic}-{segment.partition}" if listed is None else listed.name.rpartition("/")[0]


def _checkpoint_name(segment: ListedSegment) -> str:
    return f"{_directory_of(segment)}/{LEADER_EPOCH_CHECKPOINT}"


def _name_of(segment: ListedSegment, kind: SegmentFileKind) -> str:
    """The name of a missing file; a snapshot is named by the segment's end offset, which is not known here."""
    stem = f"{segment.start_offset:020d}{_SUFFIXES[kind]}" if kind in _SUFFIXES else "<end offset>.snapshot"
    return f"{_directory_of(segment)}/{stem}"
