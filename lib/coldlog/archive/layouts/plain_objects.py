"""plain_objects: how is a segment's file read where it is an object of its own, byte for byte?

What layouts that store files as they are have in common. A small file that changed its size since it was listed is
refused, for it may be half written.
"""

from __future__ import annotations

from collections.abc import Iterable

from coldlog.archive.layouts.layout import (
    SMALL_FILE_LIMIT_BYTES,
    ListedSegment,
    SegmentFileKind,
    SegmentObject,
    UnrecognizedObject,
)
from coldlog.archive.stores.object_names import printable_name
from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore
from coldlog.errors import ArchiveError, Reason, UsageError


def get_listed(segment: ListedSegment, kind: SegmentFileKind, name: str) -> SegmentObject:
    """The listed object of that kind; `OBJECT_MISSING` under the `name` that it would have."""
    listed = segment.find_object(kind)
    if listed is None:
        raise ArchiveError(Reason.OBJECT_MISSING, "segment was listed without this file", object_name=name)
    return listed


def require_small_kind(kind: SegmentFileKind) -> None:
    """Refuses the log."""
    if kind is SegmentFileKind.LOG:
        raise UsageError("a log is read by ranges, not as a small file")


def read_small_object(store: ObjectStore, listed: SegmentObject) -> memoryview:
    """The whole object, SMALL_FILE_LIMIT_BYTES at most, as large as it was listed."""
    if listed.size_bytes > SMALL_FILE_LIMIT_BYTES:
        raise _unreadable(listed, "object is too large for its kind", f"at most {SMALL_FILE_LIMIT_BYTES} bytes")
    content = store.read_range(listed.name, 0, listed.size_bytes + 1)
    if content.nbytes != listed.size_bytes:
        size_bytes = store.size_bytes(listed.name)
        raise _unreadable(
            listed, "object changed its size since it was listed", f"{listed.size_bytes} bytes", size_bytes
        )
    return content


def split_level(directories: Iterable[str], objects: Iterable[ObjectInfo]) -> tuple[list[str], list[ObjectInfo]]:
    """The names of directories, and the other objects, of a level that holds directories.

    What may be a directory is one: to list it says why it cannot be, where a stray would stand for a directory that
    has gone.
    """
    strays = list(objects)
    names = [*directories, *(each.name for each in strays if each.may_be_directory)]
    return names, [each for each in strays if not each.may_be_directory]


def unrecognized_directory(name: str, why: str) -> UnrecognizedObject:
    """A directory that is no part of the layout."""
    return UnrecognizedObject(name=printable_name(name), size_bytes=0, why=f"directory: {why}")


def unrecognized_object(info: ObjectInfo, why: str) -> UnrecognizedObject:
    """An object that is no part of a segment."""
    return UnrecognizedObject(name=printable_name(info.name), size_bytes=info.size_bytes, why=why)


def _unreadable(listed: SegmentObject, message: str, expected: str, found_bytes: int | None = None) -> ArchiveError:
    found = f"{listed.size_bytes if found_bytes is None else found_bytes} bytes"
    return ArchiveError(Reason.OBJECT_UNREADABLE, message, object_name=listed.name, expected=expected, found=found)
