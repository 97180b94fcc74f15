"""Read a segment's file that is stored as one unchanged object.

Shared by the layouts that store files unchanged. A small file whose size changed after the listing is refused, because
it may be half written.
"""

from __future__ import annotations

from collections.abc import Callable

from coldlog.archive.layouts.layout import (
    SMALL_FILE_LIMIT_BYTES,
    ListedSegment,
    SegmentFileKind,
    SegmentObject,
)
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.errors import ArchiveError, Reason, UsageError


def get_listed(segment: ListedSegment, kind: SegmentFileKind, find_name: Callable[[], str]) -> SegmentObject:
    """The listed object of this kind; if it is missing, `OBJECT_MISSING` with the name that it would have."""
    listed = segment.find_object(kind)
    if listed is None:
        raise ArchiveError(Reason.OBJECT_MISSING, "segment was listed without this file", object_name=find_name())
    return listed


def require_small_kind(kind: SegmentFileKind) -> None:
    """Refuse the log."""
    if kind is SegmentFileKind.LOG:
        raise UsageError("a log is not a small file; read it in ranges")


def read_small_object(store: ObjectStore, listed: SegmentObject) -> memoryview:
    """The whole object, at most SMALL_FILE_LIMIT_BYTES; it must still have its listed size."""
    if listed.size_bytes > SMALL_FILE_LIMIT_BYTES:
        raise _unreadable(listed, "object is too large for its kind", f"at most {SMALL_FILE_LIMIT_BYTES} bytes")
    content = store.read_range(listed.name, 0, listed.size_bytes + 1)
    if content.nbytes != listed.size_bytes:
        size_bytes = store.size_bytes(listed.name)
        raise _unreadable(listed, "object size changed after it was listed", f"{listed.size_bytes} bytes", size_bytes)
    return content


def _unreadable(listed: SegmentObject, message: str, expected: str, found_bytes: int | None = None) -> ArchiveError:
    found = f"{listed.size_bytes if found_bytes is None else found_bytes} bytes"
    return ArchiveError(Reason.OBJECT_UNREADABLE, message, object_name=listed.name, expected=expected, found=found)
