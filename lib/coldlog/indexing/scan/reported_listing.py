"""Decide which partition directories are listed from an S3 Inventory report (`scan.inventory_uri`).

A report is a day or two old. So a run remembers of each directory when its content was seen (`directory_digests`):
the time of the report, or of the listing in the bucket. The rules:

1. A report says something new of a directory only if it was made after the directory was seen. An older report, or the
   same one again, changes nothing. So what an event or a listing has shown is not undone.
2. If a newer report differs from what was seen, the preflight names the partition, and the run lists it in the bucket.
3. A run over everything takes rows from the report. S3 may leave objects out of a report that were put or deleted
   shortly before it. So it takes a directory only from the report in which it was seen, or if it was seen `SETTLED_MS`
   before the report. It lists partitions in the bucket that events of the metadata topic name since then.
4. If it is not known when a directory was seen, it is listed in the bucket: after a run that failed, or by another job.
   The first run of a warehouse takes all directories from the report.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from coldlog.archive.inventory.reported_layout import Partition, with_report
from coldlog.archive.inventory.reports import InventoryReport, open_report
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.stores.s3_location import is_s3_uri, parse_s3_uri
from coldlog.errors import UsageError
from coldlog.indexing.scan.touched import KeptDigests
from coldlog.runtime.open_layout import s3_options
from coldlog.runtime.settings import Settings
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse

SETTLED_MS = 12 * 3_600_000
"""A change so long before a report is in it, also if clocks differ."""
_DAY_MS, _USUAL_DAYS = 86_400_000, 2


def find_report(settings: Settings) -> InventoryReport | None:
    """Find the report of the settings, by a listing and two reads; None if they name none."""
    uri = settings.scan.inventory_uri
    if uri is None:
        return None
    if not is_s3_uri(settings.archive_uri):
        raise UsageError(f"scan.inventory_uri: the archive {settings.archive_uri} is not in a bucket; leave it out")
    return open_report(uri, parse_s3_uri(settings.archive_uri).bucket, s3_options(settings))


def age_in_days(report: InventoryReport, now_ms: int) -> int:
    """How many days old the report is, if that is more than S3 needs for daily ones; else 0."""
    days = (now_ms - report.created_ms) // _DAY_MS
    return days if days > _USUAL_DAYS else 0


def seen_since(kept: KeptDigests, report: InventoryReport) -> KeptDigests:
    """Return the directories of which the report says nothing new."""
    return {name: each for name, each in kept.items() if each.seen_ms is not None and each.seen_ms >= report.created_ms}


def newer_listing(layout: ArchiveLayout, report: InventoryReport, kept: KeptDigests) -> ArchiveLayout:
    """List those directories from the report that were seen before it."""
    names = {name for name, each in kept.items() if each.seen_ms is not None and each.seen_ms < report.created_ms}
    return with_report(layout, report, frozenset(names)) if names else layout


def settled_listing(
    warehouse: Warehouse, layout: ArchiveLayout, report: InventoryReport, kept: KeptDigests
) -> ArchiveLayout:
    """List every directory from the report of which it is sure; `kept`: by the last run, if it succeeded."""
    live = _announced_since(warehouse, report.created_ms - SETTLED_MS)
    if warehouse.is_known_empty(SEGMENTS) or not warehouse.read(SEGMENTS).head(1):
        return with_report(layout, report, live=live)
    names = frozenset(name for name, each in kept.items() if _is_settled(each.seen_ms, report.created_ms))
    return with_report(layout, report, names, live) if names else layout


def _is_settled(seen_ms: int | None, created_ms: int) -> bool:
    return seen_ms is not None and (seen_ms == created_ms or seen_ms + SETTLED_MS <= created_ms)


def _announced_since(warehouse: Warehouse, since_ms: int) -> frozenset[Partition]:
    if warehouse.is_known_empty(SEGMENT_EVENTS):
        return frozenset()
    events = warehouse.read(SEGMENT_EVENTS).where(F.col("event_timestamp_ms") >= since_ms)
    return frozenset(
        (row["topic"], row["partition"]) for row in events.select("topic", "partition").distinct().collect()
    )
