"""List some partition directories from an S3 Inventory report, and everything else from the bucket.

Which directories the bucket has is always asked of the bucket: some requests, and a new directory is seen at once. A
directory of which the report has no object is listed in the bucket too, because it is new, or because the inventory
does not cover it.

Refused (UsageError): a mirror of log directories. Its files are replaced under their names, so what a report says of
them does not fit what is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from coldlog.archive.inventory.reported_objects import read_objects
from coldlog.archive.inventory.reported_store import ReportedStore
from coldlog.archive.inventory.reports import SETTING, InventoryReport
from coldlog.archive.layouts.aiven_layout import AivenLayout
from coldlog.archive.layouts.layout import ArchiveLayout, PartitionDirectory, SegmentListing
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.archive.layouts.wrapped_layout import WrappedLayout
from coldlog.archive.stores.s3_store import S3Store
from coldlog.errors import UsageError

Partition = tuple[str, int]
"""Topic and partition number."""
StoredLayout = LocalTieredStorageLayout | AivenLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLayout(WrappedLayout):
    """An ArchiveLayout that lists directories from the report of `created_ms`, if it has them.

    `chosen`: only these directories, by name; None: all. `live`: no directories of these topics and partitions.
    """

    layout: StoredLayout
    store: ReportedStore
    created_ms: int
    chosen: frozenset[str] | None = None
    live: frozenset[Partition] = frozenset()

    def is_reported(self, directory: PartitionDirectory) -> bool:
        """Whether the directory is listed from the report."""
        is_chosen = self.chosen is None or directory.name in self.chosen
        is_live = (directory.topic, directory.partition) in self.live
        return is_chosen and not is_live and any(map(self.store.has_reported, self._places(directory)))

    def list_segments(self, directory: PartitionDirectory) -> SegmentListing:
        """List the directory as the report has it, or in the bucket."""
        if not self.is_reported(directory):
            return self.layout.list_segments(directory)
        return replace(self.layout, store=self.store).list_segments(directory)

    def part(self, directories: Iterable[PartitionDirectory]) -> Self:
        """The layout with what the report has of these directories, for another process."""
        reported = filter(self.is_reported, directories)
        return replace(self, store=self.store.part(place for each in reported for place in self._places(each)))

    def _places(self, directory: PartitionDirectory) -> list[str]:
        prefixes = self.layout.key_prefixes if isinstance(self.layout, AivenLayout) else ("",)
        return [prefix + directory.name for prefix in prefixes]


def with_report(
    layout: ArchiveLayout,
    report: InventoryReport,
    chosen: frozenset[str] | None = None,
    live: frozenset[Partition] = frozenset(),
) -> ReportedLayout:
    """Read the report of the archive that `layout` lists; `ArchiveError` if one of its files is damaged."""
    if not isinstance(layout, StoredLayout):
        raise UsageError(
            f"{SETTING}: objects of the layout {layout.name} are replaced under their names, so a report does not say "
            f"what is there now; leave {SETTING} out"
        )
    if not isinstance(layout.store, S3Store):
        raise UsageError(f"{SETTING}: the archive {layout.uri} is not in a bucket; leave {SETTING} out")
    store = ReportedStore(store=layout.store, objects=read_objects(report, layout.store.root))
    return ReportedLayout(layout=layout, store=store, created_ms=report.created_ms, chosen=chosen, live=live)
