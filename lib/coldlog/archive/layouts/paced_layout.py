"""Read the logs and small files of an archive at a given pace.

A read of a log waits before it is made, for as many bytes as it may get: those up to the end of the log. The size of a
small file is known when it is read; it waits after that. Listings do not wait. A read that would wait beyond `until_s`
is refused with `AnsweredTooLateError`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from coldlog.archive.layouts.layout import ListedSegment, SegmentFileKind
from coldlog.archive.layouts.wrapped_layout import WrappedLayout


class Pace(Protocol):
    """What decides when bytes may be read. It can be pickled, and threads share it."""

    def wait_for(self, size_bytes: int, until_s: float | None = None) -> None:
        """Return when so many bytes may be read. Raise `AnsweredTooLateError` if that is later than `until_s`, in
        seconds of time.time()."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedLayout(WrappedLayout):
    """An ArchiveLayout over another, whose logs and small files are read when `pace` allows it."""

    pace: Pace
    until_s: float | None = None

    def until(self, deadline: float | None) -> PacedLayout:
        """Return the same layout, whose reads do not wait beyond the deadline."""
        return replace(self, until_s=deadline)

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """As `layout`, when the bytes may be read."""
        self.pace.wait_for(max(0, min(length, self.layout.log_size_bytes(segment) - position)), self.until_s)
        return self.layout.read_log_range(segment, position, length, until)

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """As `layout`, and then wait until so many bytes may be read."""
        content = self.layout.read_small_file(segment, kind)
        self.pace.wait_for(len(content), self.until_s)
        return content
