"""Hand everything on to another layout, for layouts that change only how some files are read."""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.archive.layouts.layout import (
    ArchiveLayout,
    DirectoryListing,
    ListedSegment,
    PartitionDirectory,
    SegmentFileKind,
    SegmentListing,
)
from coldlog.archive.stores.stored_file import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedLayout:
    """An ArchiveLayout over another, which answers as `layout` does."""

    layout: ArchiveLayout

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
        """As `layout`."""
        return self.layout.read_log_range(segment, position, length, until)

    def open_log(self, _: ListedSegment) -> StoredFile | None:
        """None: the logs are read by `read_log_range` only, which may be another one here."""
        return None

    def read_small_file(self, segment: ListedSegment, kind: SegmentFileKind) -> memoryview:
        """As `layout`."""
        return self.layout.read_small_file(segment, kind)
