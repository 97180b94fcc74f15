"""Read the batches of a segment's log in windows, for the readers of records.

The batches are checked as the build checks them. A batch that is longer than a window is read with a longer one.
Refused (`ArchiveError`): damaged bytes, and a log that is shorter than when it was indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.archive.layouts.log_windows import LogWindow
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.formats.limits import DecodeLimits
from coldlog.index.changed_logs import shorter_log


def iter_segment_windows(
    layout: ArchiveLayout,
    segment: ListedSegment,
    start: int,
    end: int,
    *,
    limits: DecodeLimits,
    window_bytes: int,
    count_bytes: Callable[[int], None] = lambda _: None,
) -> Iterator[LogWindow]:
    """Yield windows of whole batches between two positions of the log. `count_bytes` is called with the bytes of the
    log that each read added."""
    position, needed, known, next_offset = start, 0, start, segment.start_offset
    while position < end:
        wanted = min(max(window_bytes, needed), end - position)
        content = layout.read_log_range(segment, position, wanted, end)
        count_bytes(max(0, position + len(content) - known))
        known = max(known, position + len(content))
        if len(content) < wanted:
            raise shorter_log(position, f"{wanted} bytes from here on", f"{len(content)} bytes")
        read = read_batch_headers(
            content,
            position=position,
            next_offset=next_offset,
            is_last=position + wanted == end,
            max_batch_bytes=limits.max_batch_bytes,
        )
        yield LogWindow(content=content, position=position, headers=read.headers)
        if len(read.headers):
            next_offset = int(read.headers.last_offset[-1]) + 1
        position, needed = position + read.consumed_bytes, read.needed_bytes


def of_segment(wrong: ArchiveError, segment: ListedSegment) -> ArchiveError:
    """Return the error with the segment in its message, and with the name of an object."""
    return wrong.replaced(
        message=f"segment {segment.segment_id} of {segment.topic}-{segment.partition}: {wrong.message}",
        object_name=wrong.object_name or segment.object_name_of(SegmentFileKind.LOG),
    )
