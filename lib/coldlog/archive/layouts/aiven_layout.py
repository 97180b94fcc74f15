"""List and read segments that the Aiven tiered-storage plugin uploaded.

github.com/Aiven-Open/tiered-storage-for-apache-kafka, its `segment.format` kafka (ObjectKeyFactory):

    <key prefix><topic>-<topic id>/<partition>/<start offset, 20 digits>-<segment id>.log           chunks of the log
                                                                                    .indexes       the small files
                                                                                    .rsm-manifest  how to read both

Ids are Kafka's Uuid text. The key prefix is the plugin's `key.prefix`, unchanged: `tier/` is a directory; `tier/a-` is
a directory and the beginning of the names in it. If `key.prefix` was changed, several prefixes can be given. The plugin
no longer finds the manifests of earlier segments then, but this layout does. Names that do not begin with a given
prefix belong to others and are ignored.

Every finished copy has all three objects. An interrupted copy may have them too; only the metadata topic says which
copies count. A listing opens no manifest. The first read of a segment reads its manifest and compares it with the
segment's name and with the listed sizes of the other two objects. The layout keeps the manifests of the segments that
were read last; a pickled layout has none. If a log is neither compressed nor encrypted, exactly the requested bytes are
read. Otherwise one ranged read fetches the chunks that hold them; the last chunk is kept, because the next window
begins in it.

Positions in errors are positions in the stored object if a chunk or a manifest is damaged, and in Kafka's file
otherwise.

Listed as unrecognized: other names, files beside topics and partitions, a segment id with a second start offset or a
second prefix (the one with more objects counts, then the one of the first prefix), and one object for each file, as the
plugin wrote before October 2023.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from coldlog.archive.layouts.aiven_keys import require_keys
from coldlog.archive.layouts.aiven_segment import OpenedSegment, OpenedSegments
from coldlog.archive.layouts.layout import (
    ArchiveLayout,
    BundleKind,
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
    UnrecognizedObject,
)
from coldlog.archive.layouts.plain_objects import require_small_kind
from coldlog.archive.layouts.sorted_entries import (
    INT32_MAX,
    UUID_PATTERN,
    segment_of,
    sort_level,
    sort_partition,
    unrecognized_object,
)
from coldlog.archive.stores.object_names import require_object_name
from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore, RootedStore
from coldlog.archive.stores.stored_file import StoredFile
from coldlog.errors import UsageError

AIVEN = "aiven"
SUFFIXES: dict[str, ObjectKind] = {
    ".log": SegmentFileKind.LOG,
    ".indexes": BundleKind.INDEXES,
    ".rsm-manifest": BundleKind.MANIFEST,
}
_TOPIC = re.compile(rf"(?P<topic>[A-Za-z0-9._-]{{1,249}})-(?P<topic_id>{UUID_PATTERN})")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_Topic = tuple[str, str, str]
"""Name of the directory, topic, topic id."""
_REPEATED = "another upload of its segment id has a lower start offset, more objects or an earlier key prefix"
_LISTED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenLayout:
    """An ArchiveLayout over a store; an earlier entry of `key_prefixes` has precedence."""

    name: ClassVar[str] = AIVEN
    is_mirror: ClassVar[bool] = False
    """Every upload has its own id."""

    store: ObjectStore
    key_prefixes: tuple[str, ...] = ("",)
    _opened: OpenedSegments = field(default_factory=OpenedSegments, compare=False, repr=False)

    @property
    def uri(self) -> str:
        """The archive as the user wrote it."""
        return self.store.uri

    def list_partition_directories(self) -> DirectoryListing:
        """List the root of each prefix and then each topic, several topics at a time. A directory's name is without the
        prefix: a partition below two prefixes is one directory."""
        found: dict[str, PartitionDirectory] = {}
        unrecognized: list[UnrecognizedObject] = []
        topics: list[_Topic] = []
        for prefix in self.key_prefixes:
            level, find = (self._iter_directories(prefix), self._strays(prefix)), partial(_find_topic, prefix)
            below, others = sort_level(level, find, form="no <topic>-<topic id>", beside="topics")
            topics += below
            unrecognized += others
        with ThreadPoolExecutor(_LISTED_AT_ONCE) as pool:
            for directories, others in pool.map(self._list_topic, topics):
                found |= {directory.name: directory for directory in directories}
                unrecognized += others
        return DirectoryListing(
            directories=tuple(found[name] for name in sorted(found)), unrecognized=tuple(unrecognized)
        )

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """List the directory below each prefix once."""
        return self._list(directory, None)

    def list_named(self, directory: PartitionDirectory, beginnings: Collection[str]) -> SegmentListing:
        """List the objects whose names begin so below each prefix."""
        return self._list(directory, beginnings)

    def _list(self, directory: PartitionDirectory, beginnings: Collection[str] | None) -> SegmentListing:
        unrecognized: list[UnrecognizedObject] = []
        uploads: dict[tuple[SegmentKey, int], list[SegmentObject]] = {}
        for rank, prefix in enumerate(self.key_prefixes):
            objects, others = sort_partition(self.store, prefix + directory.name, SUFFIXES, beginnings)
            uploads |= {(key, rank): listed for key, listed in objects.items()}
            unrecognized += others
        segments: dict[str, ListedSegment] = {}
        for upload in sorted(uploads, key=lambda upload: (upload[0][0], -len(uploads[upload]), upload[1])):
            key, listed = upload[0], uploads[upload]
            if key[1] in segments:
                unrecognized += [unrecognized_object(each, _REPEATED) for each in listed]
            else:
                segments[key[1]] = segment_of(directory, key, listed, SUFFIXES.values())
        in_order = sorted(segments.values(), key=lambda segment: (segment.start_offset, segment.segment_id))
        return SegmentListing(segments=tuple(in_order), unrecognized=tuple(unrecognized))

    def has_file(self, segment: ListedSegment, kind: SegmentFileKind) -> bool:
        """Answer from the listing, and for the transaction index, which not every segment has, from the manifest."""
        if kind is SegmentFileKind.LOG:
            return segment.find_object(kind) is not None
        if segment.find_object(BundleKind.INDEXES) is None:
            return False
        return kind is not SegmentFileKind.TXN_INDEX or self._open(segment).has_txn_index

    def log_size_bytes(self, segment: ListedSegment) -> int:
        """The size in the manifest."""
        return self._open(segment).manifest.chunk_index.original_bytes

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """Read only the chunks that hold the bytes."""
        return self._open(segment).read_log_range(self.store, position, length, until)

    def open_log(self, _: ListedSegment) -> StoredFile | None:
        """None: the log is stored in chunks."""
        return None

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """Read a range of `.indexes` and decrypt it."""
        require_small_kind(kind)
        return self._open(segment).read_small_file(self.store, kind)

    def holds_topics(self) -> bool:
        """A topic's directory exists below one of the prefixes, or the archive is empty."""
        if any(
            _TOPIC.fullmatch(name[len(prefix) :])
            for prefix in self.key_prefixes
            for name in self._iter_directories(prefix)
        ):
            return True
        return not self.store.list_directories("") and next(iter(self.store.iter_objects("")), None) is None

    def _open(self, segment: ListedSegment) -> OpenedSegment:
        return self._opened.open(self.store, segment)

    def _list_topic(self, topic: _Topic) -> tuple[list[PartitionDirectory], list[UnrecognizedObject]]:
        return sort_level(self.store.list_level(topic[0]), partial(_find_partition, topic), form="no partition")

    def _iter_directories(self, prefix: str) -> Iterator[str]:
        """Directories that begin with the prefix, without those that belong to a longer prefix or lead to it."""
        for name in self.store.list_directories(prefix.rpartition("/")[0]):
            below = f"{name}/"
            is_of_another = any(below.startswith(other) or other.startswith(below) for other in self._longer(prefix))
            if name.startswith(prefix) and not is_of_another:
                yield name

    def _strays(self, prefix: str) -> Iterator[ObjectInfo]:
        for info in self.store.iter_objects(prefix.rpartition("/")[0]):
            if info.name.startswith(prefix) and not info.name.startswith(self._longer(prefix)):
                yield info

    def _longer(self, prefix: str) -> tuple[str, ...]:
        return tuple(other for other in self.key_prefixes if other != prefix and other.startswith(prefix))


def open_layout(store: RootedStore, options: LayoutOptions) -> ArchiveLayout:
    """Open the plugin's archive in `store`; `UsageError` if it has objects but no topic's directory."""
    layout = AivenLayout(store=store, key_prefixes=read_key_prefixes(options.key_prefix))
    require_keys()
    if not layout.holds_topics():
        raise NoArchiveError(
            f"no {AIVEN} archive at {store.uri}: it is not empty and has no directory <topic>-<topic id> after "
            "archive.key_prefix; set archive.key_prefix to the plugin's key.prefix"
        )
    return layout


def read_key_prefixes(text: str) -> tuple[str, ...]:
    """The prefixes of a setting, separated by commas, each as in `key.prefix`; `UsageError` for a prefix with which no
    object's name can begin."""
    prefixes = tuple(dict.fromkeys(text.split(",")))
    for prefix in prefixes:
        try:
            require_object_name(f"{prefix}name")
        except UsageError:
            raise UsageError(
                f"archive.key_prefix: no object's name can begin with {prefix!r}; use the plugin's key.prefix, without "
                "a leading / and without empty, . or .. parts"
            ) from None
    return prefixes


def _find_topic(prefix: str, name: str) -> _Topic | None:
    match = _TOPIC.fullmatch(name[len(prefix) :])
    return None if match is None or match["topic"] in (".", "..") else (name, match["topic"], match["topic_id"])


def _find_partition(topic_directory: _Topic, name: str) -> PartitionDirectory | None:
    above, topic, topic_id = topic_directory
    number = name[len(above) + 1 :]
    if _PARTITION.fullmatch(number) is None or int(number) > INT32_MAX:
        return None
    return PartitionDirectory(
        name=f"{topic}-{topic_id}/{number}", topic=topic, topic_id=topic_id, partition=int(number)
    )
