"""Test runs whose listings come from S3 Inventory reports: what they ask of the bucket, and what they do not see."""

from __future__ import annotations

import io
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays, limit_of
from builders.archive_writer import TopicPartition, write_archive
from builders.metadata_topic import finished, values_of, write_topic
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.inventory.reported_layout import ReportedLayout, with_report
from coldlog.archive.layouts.layout import LayoutOptions
from coldlog.archive.open_archive import open_archive
from coldlog.errors import ArchiveError, UsageError
from coldlog.indexing import pipeline, preflight
from coldlog.indexing.scan.listing import DirectoryDigest, digest_archive, list_directories, list_here, list_in_tasks
from coldlog.indexing.scan.reported_listing import SETTLED_MS, find_report, settled_listing
from coldlog.indexing.scan.scan import scan_segments
from coldlog.indexing.scan.touched import read_kept
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.open_layout import layout_opener
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import table_contents
from servers.inventory_reports import FORMATS, Reports
from servers.s3_proxy import S3Proxy
from servers.s3_server import Bucket

NOW_MS, DAY_MS = 1_700_000_000_000, 86_400_000
"""In the past, so that runs with Spark, which have the real time, are the newest."""
PARTITIONS = [TopicPartition(topic="orders", partition=number) for number in range(4)]


def _segment(start: int) -> Segment:
    """Without transactions, for which a build lists the segments before it."""
    records = tuple(Record(timestamp_ms=1_000 + start + at) for at in range(3))
    return Segment(batches=(Batch(base_offset=start, records=records),))


@dataclass(slots=True, kw_only=True)
class Place:
    """An archive in a bucket, of which there are reports, the warehouse of runs over it, and a clock."""

    spark: SparkSession
    bucket: Bucket
    proxy: S3Proxy
    folder: Path
    now_ms: int = NOW_MS
    values: list[bytes | None] = field(default_factory=list)

    @property
    def reports(self) -> Reports:
        return Reports(bucket=self.bucket)

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(spark=self.spark, uri=str(self.folder / "warehouse"))

    def write(self, partition: TopicPartition, count: int, first: int = 0, *, told_ms: int | None = None) -> None:
        """Put segments into the bucket, from number `first` on; at `told_ms`, a broker announces them."""
        written = write_archive(self.folder / "a", {partition: [_segment(at * 3) for at in range(count)]})
        for each in written[first:]:
            for file in each.stem.parent.glob(f"{each.stem.name}.*"):
                self.bucket.put({f"tier/kafka-tiered-storage/{partition.folder}/{file.name}": file.read_bytes()})
            if told_ms is not None:
                self.values += values_of([replace(event, event_timestamp_ms=told_ms) for event in finished(each)])
        write_topic(self.folder / "rlmm", {0: self.values})

    def remove_first(self, partition: TopicPartition) -> None:
        start = f"tier/kafka-tiered-storage/{partition.folder}/{0:020}"
        self.bucket.delete(*(key for key in sorted(self.bucket.keys()) if key.startswith(start)))

    def assignments(self, *changed: str) -> list[str]:
        places = (f"archive.uri={self.bucket.uri('tier')}", f"metadata.uri={self.folder / 'rlmm'}")
        return [*places, f"scan.inventory_uri={self.reports.uri}", *changed]

    def settings(self, *changed: str) -> Settings:
        return load_settings("local", self.assignments(f"warehouse.uri={self.warehouse.uri}", *changed))

    def run(self, *changed: str, is_full_listing: bool = False) -> bool:
        """Whether a run ended before Spark; `listed` and `reads` say what it asked."""
        self.proxy.forget()
        both_ways = BothWays(spark=self.spark, assignments=self.assignments(*changed))
        return both_ways.run(Path(self.warehouse.uri), is_full_listing=is_full_listing)

    def listed(self) -> Counter[str]:
        """The partitions that were listed in the bucket, and how often."""
        prefixes = [each.query["prefix"][0].rstrip("/").rpartition("/")[2] for each in self.proxy.listings]
        return Counter(each[: len("orders-0")] for each in prefixes if each.startswith("orders-"))

    def reads(self, kind: str) -> int:
        return sum(f"/{kind}" in each.path for each in self.proxy.gets)

    def statuses(self) -> Counter[object]:
        return Counter(row["index_status"] for row in self.warehouse.small_rows(SEGMENTS, ("index_status",)))


@pytest.fixture
def place(
    spark: SparkSession, bucket: Bucket, s3_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    place = Place(spark=spark, bucket=bucket, proxy=s3_proxy, folder=tmp_path)
    for name, value in bucket.server.environment(s3_proxy.endpoint).items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)  # of Python workers
    for module in (preflight, pipeline):
        monkeypatch.setattr(module, "now_ms", lambda: place.now_ms)
    for partition in PARTITIONS:
        place.write(partition, 3, told_ms=NOW_MS - 2 * DAY_MS)
    return place


def test_runs_take_listings_from_reports_and_list_in_the_bucket_what_differs(place: Place) -> None:
    first = place.reports.put(NOW_MS - DAY_MS, "CSV")
    assert not place.run()
    assert place.statuses() == {"indexed": 12}
    assert not place.listed()
    # The tables are those of a listing: one finds nothing that is other, not even a time.
    live = scan_segments(place.warehouse, layout_opener(place.settings())())
    assert (live.new_count, live.changed_count, live.gone_count) == (0, 0, 0)
    kept = read_kept(place.warehouse.uri, live.archive.digest)
    assert [each.seen_ms for each in kept.values()] == [NOW_MS - DAY_MS] * 4

    assert place.run()
    assert (place.listed(), place.reads("manifest."), place.reads("data/")) == (Counter(), 2, 0)
    assert (len(place.proxy.listings), len(place.proxy.requests)) == (2, 4)
    for day, file_format in enumerate(FORMATS):
        place.reports.put(NOW_MS + day * DAY_MS, file_format)
        assert place.run(), file_format
        assert (place.listed(), place.reads("data/")) == (Counter(), 2)
        assert place.run()
        assert place.reads("data/") == 0
    assert place.run(is_full_listing=True)
    assert set(place.listed()) == {f"orders-{number}" for number in range(4)}

    # What nobody tells is seen with the next report.
    before = table_contents(place.warehouse)
    place.remove_first(PARTITIONS[1])
    assert place.run()
    assert table_contents(place.warehouse) == before
    place.reports.put(NOW_MS + 5 * DAY_MS, "Parquet")
    # What an event names is listed in the bucket, and so is a new partition: the report has nothing of them.
    place.now_ms = NOW_MS + 6 * DAY_MS
    place.write(PARTITIONS[0], 4, first=3, told_ms=place.now_ms)
    place.write(TopicPartition(topic="orders", partition=4), 2)
    assert not place.run()
    assert limit_of(Path(place.warehouse.uri)) == 3
    assert set(place.listed()) == {"orders-0", "orders-1", "orders-4"}
    assert place.statuses() == {"indexed": 14, "gone": 1}

    # A report that is older than what was seen undoes nothing, also in a run over everything.
    before = table_contents(place.warehouse)
    assert not place.run(f"scan.inventory_uri={place.bucket.uri(first)}/manifest.json")
    assert limit_of(Path(place.warehouse.uri)) is None
    assert set(place.listed()) == {f"orders-{number}" for number in range(5)}
    assert table_contents(place.warehouse) == before


def test_the_first_scan_takes_its_listing_from_a_report(place: Place) -> None:
    place.reports.put(NOW_MS - DAY_MS, "CSV")
    told = io.StringIO()
    console = Console(progress=told, results=io.StringIO())
    job = Job(spark=place.spark, settings=place.settings(), arguments=Namespace(), console=console)
    pipeline.scan(job)
    assert place.statuses() == {"pending": 12}
    assert not place.listed()
    assert "listing partitions from" in told.getvalue()
    # It is not known when this job has seen what, so the next one lists in the bucket.
    pipeline.scan(job)
    assert set(place.listed()) == {f"orders-{number}" for number in range(4)}


def test_a_run_over_everything_takes_from_a_report_what_it_is_sure_of(place: Place) -> None:
    place.reports.put(NOW_MS, "Parquet")
    settings, warehouse, hour_ms = place.settings(), place.warehouse, 3_600_000
    layout, report = layout_opener(settings)(), find_report(settings)
    assert report is not None
    directories = layout.list_partition_directories().directories
    warehouse.create_missing()

    def reported(kept: Mapping[str, DirectoryDigest]) -> list[int]:
        listing = settled_listing(warehouse, layout, report, kept)
        if not isinstance(listing, ReportedLayout):
            return []
        return [each.partition for each in directories if listing.is_reported(each)]

    assert reported({}) == [0, 1, 2, 3], "the first run of a warehouse"
    # A broker has announced something since, or so shortly before that the report may lack it.
    for partition, before_ms in ((0, -hour_ms), (1, hour_ms), (2, 13 * hour_ms)):
        event = dict.fromkeys(SEGMENT_EVENTS.column_names) | {
            "metadata_partition": 0,
            "metadata_offset": partition,
            "event_kind": "segment",
            "topic": "orders",
            "partition": partition,
            "event_timestamp_ms": NOW_MS - before_ms,
        }
        warehouse.append(SEGMENT_EVENTS, warehouse.local(SEGMENT_EVENTS, [event]), count=1)
    assert reported({}) == [2, 3]
    scan_segments(warehouse, layout)
    assert reported({}) == [], "after a run that failed"
    digest = digest_archive(layout)
    for seen_ms, expected in (
        (NOW_MS, [2, 3]),
        (NOW_MS - SETTLED_MS, [2, 3]),
        (NOW_MS - SETTLED_MS + 1, []),
        (NOW_MS + 1, []),
        (None, []),
    ):
        assert (
            reported({each.directory.name: replace(each, seen_ms=seen_ms) for each in digest.directories}) == expected
        )


@pytest.mark.parametrize(
    ("name", "settings"),
    [("local_tiered_storage", LayoutOptions()), ("aiven", LayoutOptions(key_prefix="a/,b/c-"))],
)
def test_tasks_list_their_parts_of_a_report_as_the_bucket_is_listed(
    place: Place, bucket: Bucket, s3_proxy: S3Proxy, name: str, settings: LayoutOptions
) -> None:
    ids = [f"{number:021}A" for number in range(12)]
    for prefix in ("tier/a/", "tier/b/c-"):
        names = [f"{prefix}t-{'A' * 22}/{number % 5}/{number:020}-{each}" for number, each in enumerate(ids)]
        bucket.put({f"{each}{suffix}": b"12" for each in names for suffix in (".log", ".indexes", ".rsm-manifest")})
    bucket.put(
        {"tier/a/t-AAAAAAAAAAAAAAAAAAAAAA/0/stray": b"", f"tier/kafka-tiered-storage/{PARTITIONS[0].folder}/x/y": b""}
    )
    place.reports.put(NOW_MS, "ORC")
    layout, report = open_archive(bucket.uri("tier"), name, settings), find_report(place.settings())
    assert report is not None
    directories = layout.list_partition_directories().directories
    expected = pa.Table.from_batches(list_directories(layout, directories)).to_pylist()
    s3_proxy.forget()
    reported = with_report(layout, report)
    listed = list_in_tasks(place.warehouse, reported, directories).toArrow().to_pylist()
    assert sorted(map(str, listed)) == sorted(map(str, expected))
    assert len(listed) > 12
    here = list_here(reported, directories)
    assert here is not None
    assert pa.Table.from_batches(here).to_pylist() == expected
    assert not s3_proxy.listings


def test_a_run_over_a_damaged_report_fails_and_leaves_the_tables_as_they_are(place: Place) -> None:
    place.reports.put(NOW_MS, "CSV")
    (key, _) = (each for each in sorted(place.bucket.keys()) if each.endswith(".csv.gz"))
    place.bucket.put({key: b"nothing"})
    with pytest.raises(ArchiveError, match=f"is not the one of its manifest .* in {key}: expected "):
        place.run()
    assert not place.statuses()
    with pytest.raises(UsageError, match="scan.inventory_uri: the archive /srv/tier is not in a bucket"):
        find_report(place.settings("archive.uri=/srv/tier"))
