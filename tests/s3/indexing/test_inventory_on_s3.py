"""Test runs whose listings come from S3 Inventory reports: what they ask of the bucket, and what they do not see."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays, limit_of
from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.indexing import pipeline, preflight
from coldlog.indexing.scan.scan import scan_segments
from coldlog.indexing.scan.touched import read_kept
from coldlog.runtime.open_layout import layout_opener
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from inventory_reports import FORMATS, Reports
from s3_proxy import S3Proxy
from s3_server import Bucket
from table_contents import table_contents

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

    @property
    def reports(self) -> Reports:
        return Reports(bucket=self.bucket)

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(spark=self.spark, uri=str(self.folder / "warehouse"))

    def write(self, partition: TopicPartition, count: int, first: int = 0) -> None:
        """Put segments into the bucket, from number `first` on."""
        written = write_archive(self.folder / "a", {partition: [_segment(at * 3) for at in range(count)]})
        for each in written[first:]:
            for file in each.stem.parent.glob(f"{each.stem.name}.*"):
                self.bucket.put({f"tier/kafka-tiered-storage/{partition.folder}/{file.name}": file.read_bytes()})

    def remove_first(self, partition: TopicPartition) -> None:
        start = f"tier/kafka-tiered-storage/{partition.folder}/{0:020}"
        self.bucket.delete(*(key for key in sorted(self.bucket.keys()) if key.startswith(start)))

    def assignments(self, *changed: str) -> list[str]:
        return [f"archive.uri={self.bucket.uri('tier')}", f"scan.inventory_uri={self.reports.uri}", *changed]

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
        place.write(partition, 3)
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
    assert (len(place.proxy.listings), len(place.proxy.requests)) == (3, 5)
    for day, file_format in enumerate(FORMATS):
        place.reports.put(NOW_MS + day * DAY_MS, file_format)
        assert place.run(), file_format
        assert (place.listed(), place.reads("data/")) == (Counter(), 2)
        assert place.run()
        assert place.reads("data/") == 0

    # After the report: a segment more, one less, a new partition. Only the last is seen before the next report.
    before = table_contents(place.warehouse)
    place.write(PARTITIONS[0], 4, first=3)
    place.remove_first(PARTITIONS[1])
    assert place.run()
    assert table_contents(place.warehouse) == before
    place.reports.put(NOW_MS + 5 * DAY_MS, "Parquet")
    place.now_ms = NOW_MS + 6 * DAY_MS
    place.write(PARTITIONS[0], 5, first=4)
    place.write(TopicPartition(topic="orders", partition=4), 2)
    assert not place.run()
    assert limit_of(Path(place.warehouse.uri)) == 3
    assert set(place.listed()) == {"orders-0", "orders-1", "orders-4"}
    assert place.statuses() == {"indexed": 15, "gone": 1}

    # A report that is older than what was seen undoes nothing, also in a run over everything.
    before = table_contents(place.warehouse)
    assert not place.run(f"scan.inventory_uri={place.bucket.uri(first)}/manifest.json")
    assert limit_of(Path(place.warehouse.uri)) is None
    assert set(place.listed()) == {f"orders-{number}" for number in range(5)}
    assert table_contents(place.warehouse) == before
