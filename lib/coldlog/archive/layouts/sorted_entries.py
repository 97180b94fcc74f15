"""Sort the entries of an archive's directories into parts of a layout and unrecognized ones.

Shared by the layouts. A layout says which directory names it knows and which suffix each kind of object has. A
segment's objects are `<start offset, 20 digits>-<segment id><suffix>`; an id is Kafka's Uuid text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from coldlog.archive.layouts.layout import (
    BundleKind,
    ListedSegment,
    ObjectKind,
    PartitionDirectory,
    SegmentFileKind,
    SegmentKey,
    SegmentObject,
    UnrecognizedObject,
)
from coldlog.archive.stores.object_names import printable_name
from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore

# 22 characters hold 132 bits, so the last one carries only the two highest of its six.
UUID_PATTERN = r"[A-Za-z0-9_-]{21}[AQgw]"
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

_FILE = re.compile(rf"(?P<start_offset>[0-9]{{20}})-(?P<segment_id>{UUID_PATTERN})(?P<suffix>\.[a-z_-]+)")
_IN_ORDER: tuple[ObjectKind, ...] = (*SegmentFileKind, *BundleKind)
Part = TypeVar("Part")
Level = tuple[Iterable[str], Iterable[ObjectInfo]]
"""The names of directories, and the objects beside them."""


def sort_level(
    level: Level,
    find: Callable[[str], Part | None],
    *,
    form: str,
    beside: str = "partitions",
    ignored: Collection[str] = (),
) -> tuple[list[Part], list[UnrecognizedObject]]:
    """The part of the layout that `find` makes of each directory name, and all other entries of the level.

    Files named in `ignored` are left out. An entry that may be a directory counts as one: listing it raises the error
    that explains why it cannot be listed. As a stray file it would look like a removed directory.
    """
    directories, objects = level[0], list(level[1])
    found, unrecognized = [], []
    for name in [*directories, *(info.name for info in objects if info.may_be_directory)]:
        part = find(name)
        if part is None:
            unrecognized.append(unrecognized_directory(name, form))
        else:
            found.append(part)
    for info in objects:
        if not info.may_be_directory and info.name.rpartition("/")[2] not in ignored:
            unrecognized.append(unrecognized_object(info, f"a file beside the {beside}"))
    return found, unrecognized


def sort_partition(
    store: ObjectStore,
    directory_name: str,
    kinds: Mapping[str, ObjectKind],
    beginnings: Collection[str] | None = None,
) -> tuple[dict[SegmentKey, list[SegmentObject]], list[UnrecognizedObject]]:
    """The objects of each segment in a partition's directory, and all other entries; `kinds` are those of the
    suffixes. With `beginnings`, only entries whose names begin with one of these."""
    directories, objects = store.list_level(directory_name, beginnings)
    unrecognized = directories_below(directories)
    segments: dict[SegmentKey, list[SegmentObject]] = {}
    for info in objects:
        match = _FILE.fullmatch(info.name.rpartition("/")[2])
        digits, segment_id, suffix = ("", "", "") if match is None else match.groups()
        kind = kinds.get(suffix)
        if kind is None or int(digits) > INT64_MAX:
            unrecognized.append(unrecognized_object(info, "no <start offset>-<segment id><suffix>"))
            continue
        segments.setdefault((int(digits), segment_id), []).append(segment_object(kind, info))
    return segments, unrecognized


def directories_below(names: Iterable[str]) -> list[UnrecognizedObject]:
    """The directories in a partition's directory, which no layout has."""
    return [unrecognized_directory(name, "a directory below a partition") for name in names]


def segment_object(kind: ObjectKind, info: ObjectInfo) -> SegmentObject:
    """The object of this kind, as listed."""
    return SegmentObject(kind=kind, name=info.name, size_bytes=info.size_bytes, modified_ms=info.modified_ms)


def segment_of(
    directory: PartitionDirectory, key: SegmentKey, objects: Iterable[SegmentObject], required: Iterable[ObjectKind]
) -> ListedSegment:
    """The segment with these objects; kinds of `required` that are not among them are missing."""
    by_kind = {listed.kind: listed for listed in objects}
    return ListedSegment(
        topic=directory.topic,
        topic_id=directory.topic_id,
        partition=directory.partition,
        start_offset=key[0],
        segment_id=key[1],
        objects=tuple([by_kind[kind] for kind in _IN_ORDER if kind in by_kind]),
        missing_kinds=tuple([kind for kind in required if kind not in by_kind]),
    )


def unrecognized_directory(name: str, why: str) -> UnrecognizedObject:
    """A directory that is not part of the layout."""
    return UnrecognizedObject(name=printable_name(name), size_bytes=0, why=f"directory: {why}")


def unrecognized_object(listed: ObjectInfo | SegmentObject, why: str) -> UnrecognizedObject:
    """An object that is not part of a segment."""
    return UnrecognizedObject(name=printable_name(listed.name), size_bytes=listed.size_bytes, why=why)
