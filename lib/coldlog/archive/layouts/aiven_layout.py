"""aiven_layout: how does the Aiven tiered-storage plugin lay out an archive?

github.com/Aiven-Open/tiered-storage-for-apache-kafka, its `segment.format` kafka (ObjectKeyFactory):

    <key prefix><topic>-<topic id>/<partition>/<start offset, 20 digits>-<segment id>.log           chunks of the log
                                                                                    .indexes       the small files
                                                                                    .rsm-manifest  how to read both

Ids are Kafka's Uuid text. The prefix is what `key.prefix` says, put in front as it is: `tier/` is a directory,
`tier/a-` also begins the names in it. Several prefixes may be given, for an archive whose `key.prefix` was changed: the
plugin does not find the manifests of earlier segments any more, this layout does. Beside a prefix that begins names,
what begins otherwise belongs to somebody else and is passed over.

All three objects belong to every finished copy, but they may also lie there of a copy that was cut or never finished:
which counts, the metadata topic knows. A listing opens no manifest. It is read with the first byte of a segment, held
against the segment's name and the listed sizes of the other two, and kept, for the segments read last, as long as the
layout lives; a layout that was pickled knows none. From a log that is neither compressed nor encrypted exactly the
bytes asked for are read, from others the chunks that hold them, by one ranged read; the last chunk is kept, because the
next window begins in it.

Positions in errors are of the stored object where a chunk or a manifest is damaged, of Kafka's own file otherwise.

Not recognized, and listed as such: other names, files beside topics and partitions, a segment id under a second start
offset or a second prefix (of two the one with more objects counts, then that of the first prefix), and one object a
file, as the plugin wrote before October 2023.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from coldlog.archive.layouts.aiven_segment import OpenedSegment, OpenedSegments
from coldlog.archive.layouts.layout import (
    BundleKind,
    DirectoryListing,
    ListedSegment,
    ObjectKind,
    PartitionDirectory,
    SegmentFileKind,
    SegmentListing,
    SegmentObject,
    UnrecognizedObject,
)
from coldlog.archive.layouts.plain_objects import (
    require_small_kind,
    split_level,
    unrecognized_directory,
    unrecognized_object,
)
from coldlog.archive.stores.object_names import require_object_name
from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore
from coldlog.errors import UsageError

AIVEN = "aiven"
SUFFIXES: dict[str, ObjectKind] = {
    ".log": SegmentFileKind.LOG,
    ".indexes": BundleKind.INDEXES,
    ".rsm-manifest": BundleKind.MANIFEST,
}
_KINDS = tuple(SUFFIXES.values())
# 22 characters hold 132 bits, so the last one carries only the two highest of its six.
_UUID = r"[A-Za-z0-9_-]{21}[AQgw]"
_TOPIC = re.compile(rf"(?P<topic>[A-Za-z0-9._-]{{1,249}})-(?P<topic_id>{_UUID})")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_FILE = re.compile(rf"(?P<start_offset>[0-9]{{20}})-(?P<segment_id>{_UUID})(?P<suffix>\.[a-z-]+)")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_LISTED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenLayout:
    """An ArchiveLayout over a store; `key_prefixes` in the order in which they count."""

    store: ObjectStore
    key_prefixes: tuple[str, ...] = ("",)
    _opened: OpenedSegments = field(default_factory=OpenedSegments, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The name in settings."""
        return AIVEN

    @property
    def uri(self) -> str:
        """The archive as the user wrote it."""
        return self.store.uri

    @property
    def is_mirror(self) -> bool:
        """No: every upload has an id of its own."""
        return False

    def list_partition_directories(self) -> DirectoryListing:
        """A look at the root of each prefix and one into each topic, several at a time. The name of a directory is
        without the prefix: the same partition below two prefixes is one."""
        found: dict[str, PartitionDirectory] = {}
        unrecognized: list[UnrecognizedObject] = []
        topics: list[tuple[str, str, str]] = []
        for prefix in self.key_prefixes:
            names, strays = split_level(self._iter_directories(prefix), self._strays(prefix))
            for name in names:
                match = _TOPIC.fullmatch(name[len(prefix) :])
                if match is None or match["topic"] in (".", ".."):
                    unrecognized.append(unrecognized_directory(name, "no <topic>-<topic id>"))
                else:
                    topics.append((name, match["topic"], match["topic_id"]))
            unrecognized += [unrecognized_object(stray, "a file beside the topics") for stray in strays]
        with ThreadPoolExecutor(_LISTED_AT_ONCE) as looks:
            listed = list(looks.map(self._look_into_topic, [name for name, _, _ in topics]))
        for (topic_directory, topic, topic_id), (names, strays) in zip(topics, listed, strict=True):
            unrecognized += [unrecognized_object(stray, "a file beside the partitions") for stray in strays]
            for name in names:
                number = name[len(topic_directory) + 1 :]
                if _PARTITION.fullmatch(number) is None or int(number) > _INT32_MAX:
                    unrecognized.append(unrecognized_directory(name, "no partition"))
                    continue
                own = PartitionDirectory(
                    name=f"{topic}-{topic_id}/{number}", topic=topic, topic_id=topic_id, partition=int(number)
                )
                found[own.name] = own
        return DirectoryListing(
            directories=tuple(found[name] for name in sorted(found)), unrecognized=tuple(unrecognized)
        )

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """One look at the directory below each prefix."""
        unrecognized: list[UnrecognizedObject] = []
        uploads: dict[tuple[str, int, int], dict[ObjectKind, SegmentObject]] = {}
        for rank, prefix in enumerate(self.key_prefixes):
            place = prefix + directory.name
            unrecognized += [
                unrecognized_directory(name, "a directory below a partition")
                for name in self.store.list_directories(place)
            ]
            for info in self.store.iter_objects(place):
                match = _FILE.fullmatch(info.name.rpartition("/")[2])
                kind = SUFFIXES.get(match["suffix"]) if match else None
                if match is None or kind is None or int(match["start_offset"]) > _INT64_MAX:
                    unrecognized.append(unrecognized_object(info, "no <start offset>-<segment id><suffix>"))
                    continue
                key = match["segment_id"], int(match["start_offset"]), rank
                uploads.setdefault(key, {})[kind] = _listed(kind, info)
        segments: dict[str, ListedSegment] = {}
        for key in sorted(uploads, key=lambda key: (key[1], -len(uploads[key]), key[2])):
            segment_id, start_offset, _ = key
            if segment_id in segments:
                unrecognized += [_repeated(listed) for listed in uploads[key].values()]
            else:
                segments[segment_id] = _segment(directory, start_offset, segment_id, uploads[key])
        in_order = sorted(segments.values(), key=lambda segment: (segment.start_offset, segment.segment_id))
        return SegmentListing(segments=tuple(in_order), unrecognized=tuple(unrecognized))

    def has_file(self, segment: ListedSegment, kind: SegmentFileKind) -> bool:
        """By the listing; the manifest is asked for the transaction index, which not every segment has."""
        if kind is SegmentFileKind.LOG:
            return segment.find_object(kind) is not None
        if segment.find_object(BundleKind.INDEXES) is None:
            return False
        return kind is not SegmentFileKind.TXN_INDEX or self._open(segment).has_txn_index

    def log_size_bytes(self, segment: ListedSegment) -> int:
        """As the manifest says."""
        return self._open(segment).manifest.chunk_index.original_bytes

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """From as few chunks as hold the bytes."""
        return self._open(segment).read_log_range(self.store, position, length, until)

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """A range of `.indexes`, decrypted."""
        require_small_kind(kind)
        return self._open(segment).read_small_file(self.store, kind)

    def holds_topics(self) -> bool:
        """A topic's directory lies below one of the prefixes, or there is nothing at all yet."""
        if any(
            _TOPIC.fullmatch(name[len(each) :]) for each in self.key_prefixes for name in self._iter_directories(each)
        ):
            return True
        return not self.store.list_directories("") and next(iter(self.store.iter_objects("")), None) is None

    def _open(self, segment: ListedSegment) -> OpenedSegment:
        return self._opened.open(self.store, segment)

    def _look_into_topic(self, name: str) -> tuple[list[str], list[ObjectInfo]]:
        return split_level(self.store.list_directories(name), self.store.iter_objects(name))

    def _iter_directories(self, prefix: str) -> Iterator[str]:
        """Directories that begin with the prefix, apart from what belongs to a longer one or leads to it."""
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


def read_key_prefixes(text: str) -> tuple[str, ...]:
    """The prefixes of a setting, separated by commas, each as `key.prefix` has it; `UsageError` for what no object's
    name begins with."""
    prefixes = tuple(dict.fromkeys(text.split(",")))
    for prefix in prefixes:
        try:
            require_object_name(f"{prefix}name")
        except UsageError:
            raise UsageError(
                f"archive.key_prefix: no object's name begins with {prefix!r}; give key.prefix of the plugin, without "
                "a leading / and without empty, . or .. parts"
            ) from None
    return prefixes


def _listed(kind: ObjectKind, info: ObjectInfo) -> SegmentObject:
    return SegmentObject(kind=kind, name=info.name, size_bytes=info.size_bytes, modified_ms=info.modified_ms)


def _segment(
    directory: PartitionDirectory, start_offset: int, segment_id: str, by_kind: dict[ObjectKind, SegmentObject]
) -> ListedSegment:
    return ListedSegment(
        topic=directory.topic,
        topic_id=directory.topic_id,
        partition=directory.partition,
        start_offset=start_offset,
        segment_id=segment_id,
        objects=tuple(by_kind[kind] for kind in _KINDS if kind in by_kind),
        missing_kinds=tuple(kind for kind in _KINDS if kind not in by_kind),
    )


def _repeated(listed: SegmentObject) -> UnrecognizedObject:
    why = "its segment id is there with a lower start offset, more objects or an earlier key prefix"
    return UnrecognizedObject(name=listed.name, size_bytes=listed.size_bytes, why=why)
