"""Simulate a store that does not answer or hangs, for tests.

Tests send this layout to tasks. Reading the logs of the named segments fails for now, or never returns.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from coldlog.archive.layouts.layout import (
    ArchiveLayout,
    DirectoryListing,
    ListedSegment,
    PartitionDirectory,
    SegmentFileKind,
    SegmentListing,
)
from coldlog.errors import RetriableError


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyLayout:
    """An ArchiveLayout over another, which raises `RetriableError` for the logs of `unanswered_segment_ids`.

    A read of a log in `stalled_segment_ids` writes its process id to the directory `stalled_readers` and never returns.
    """

    layout: ArchiveLayout
    unanswered_segment_ids: frozenset[str] = frozenset()
    stalled_segment_ids: frozenset[str] = frozenset()
    stalled_readers: str = ""

    @property
    def name(self) -> str:
        """As `layout`."""
        return self.layout.name

    @property
    def uri(self) -> str:
        """As `layout`."""
        return self.layout.uri

    @property
    def is_mirror(self) -> bool:
        """As `layout`."""
        return self.layout.is_mirror

    def list_partition_directories(self) -> DirectoryListing:
        """As `layout`."""
        return self.layout.list_partition_directories()

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """As `layout`."""
        return self.layout.list_segments(directory)

    def has_file(self, segment: ListedSegment, kind: SegmentFileKind) -> bool:
        """As `layout`."""
        return self.layout.has_file(segment, kind)

    def log_size_bytes(self, segment: ListedSegment) -> int:
        """As `layout`."""
        return self.layout.log_size_bytes(segment)

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

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """As `layout`."""
        return self.layout.read_small_file(segment, kind)
