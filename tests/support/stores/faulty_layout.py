"""Simulate a store that does not answer or hangs.

Tests send this layout to tasks. Reading the logs of the named segments fails for now, or never returns.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.archive.layouts.wrapped_layout import WrappedLayout
from coldlog.errors import RetriableError


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyLayout(WrappedLayout):
    """An ArchiveLayout over another, which raises `RetriableError` for the logs of `unanswered_segment_ids`.

    A read of a log in `stalled_segment_ids` writes its process id to the directory `stalled_readers` and never returns.
    """

    unanswered_segment_ids: frozenset[str] = frozenset()
    stalled_segment_ids: frozenset[str] = frozenset()
    stalled_readers: str = ""

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        """As `layout`, or raise `RetriableError`, or never return."""
        if segment.segment_id in self.unanswered_segment_ids:
            raise RetriableError(f"the store does not answer for segment {segment.segment_id}")
        if segment.segment_id in self.stalled_segment_ids:
            Path(self.stalled_readers, str(os.getpid())).touch()
            while True:
                time.sleep(60)
        return self.layout.read_log_range(segment, position, length, until)
