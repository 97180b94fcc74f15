"""Test pipeline runs that fail, that count segments again, and that are killed at any write."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays, rows_after_kills
from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.open_archive import open_archive
from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.indexing.builds import build, build_work
from coldlog.indexing.builds.build import build_indexes
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.scan.log_starts import merge_log_start_offsets
from coldlog.indexing.scan.scan import scan_segments
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.expiry.supplied_log_starts import read_log_start_offsets
from contents.table_contents import rows_in, table_contents
from damage.cut_runs import copies_behind, copies_behind_each_write, copies_in_order
from stores.faulty_layout import FaultyLayout
from worlds.golden_warehouse import build_settings, run_pipeline

LAYOUT = "local_tiered_storage"


def _segment(start: int, *, epoch: int = 0, count: int = 4, first_ms: int | None = None) -> Segment:
    """`count` batches of two records, a millisecond apart, beginning at `start`."""
    time_ms = 1_000 + start if first_ms is None else first_ms
    batches = []
    for number in range(count):
        base = start + 2 * number
        records = (
            Record(timestamp_ms=time_ms + 2 * number, value=b"v" * 30),
            Record(timestamp_ms=time_ms + 2 * number + 1),
        )
        batches.append(Batch(base_offset=base, records=records, leader_epoch=epoch))
    return Segment(batches=tuple(batches), index_interval_bytes=0)


def _ask(warehouse: Warehouse, topic: str, partition: int, timestamp_ms: int) -> object:
    requests = requests_from_rows([(topic, partition, timestamp_ms)])
    return find_offsets_for_timestamps(warehouse, requests).to_pylist()[0]["offset"]


def _answers(location: Path, topic: str, partition: int, times: Iterable[int]) -> list[int | None] | None:
    """Answers of a reader without Spark; None if it does not know the partition."""
    with OffsetReader(location) as reader:
        try:
            found = [reader.offset_for_timestamp(topic, partition, time) for time in times]
        except UsageError:
            return None
    return [None if each is None else each.offset for each in found]


def _status(warehouse: Warehouse) -> dict[tuple[str, int, int], str]:
    rows = rows_in(warehouse, SEGMENTS)
    return {(row["topic"], row["partition"], row["start_offset"]): row["index_status"] for row in rows}


def test_run_fails_when_more_than_one_and_too_large_a_share_is_bad(spark: SparkSession, tmp_path: Path) -> None:
    """The next run has nothing to try: that it counts the damaged segments again is no second failure."""
    archive, log_starts = tmp_path / "archive", tmp_path / "log_starts.csv"
    places = [TopicPartition(topic="t", partition=number) for number in range(3)]
    written = write_archive(archive, {place: [_segment(0)] for place in places})
    for torn in written[:2]:
        os.truncate(torn.log, torn.log.stat().st_size - 1)
    settings = build_settings(max_quarantined_share=0.5)
    with pytest.raises(ColdlogError, match=r"2 of 3 segments are quarantined or have holes \(2\)"):
        run_pipeline(spark, archive, tmp_path / "w", settings=settings)
    assert set(_status(Warehouse(spark=spark, uri=str(tmp_path / "w"))).values()) == {"indexed"}
    log_starts.write_text("topic,partition,log_start_offset\n" + "".join(f"t,{number},3\n" for number in range(3)))
    warehouse = run_pipeline(spark, archive, tmp_path / "w", log_start_offsets=log_starts, settings=settings)
    assert [_ask(warehouse, "t", number, 0) for number in range(3)] == [3] * 3


def test_segments_that_cannot_be_read_stay_pending_for_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    """The archive disappears during a build; then the store does not return one of two segments."""
    archive = tmp_path / "archive"
    written = write_archive(archive, {TopicPartition(topic="t", partition=0): [_segment(0), _segment(8)]})
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "w"))
    warehouse.create_missing()
    layout = open_archive(str(archive), LAYOUT)
    scan_segments(warehouse, layout)
    archive.rename(tmp_path / "unmounted")
    with pytest.raises(UsageError, match=f"^no archive at {archive}: .* is not a directory that can be reached$"):
        build_indexes(warehouse, layout, build_settings())
    assert set(_status(warehouse).values()) == {"pending"}
    (tmp_path / "unmounted").rename(archive)
    faulty = FaultyLayout(layout=layout, unanswered_segment_ids=frozenset({written[1].segment_id}))
    with pytest.raises(RetriableError, match="1 of 2 segments could not be read"):
        build_indexes(warehouse, faulty, build_settings())
    assert _status(warehouse) == {("t", 0, 0): "indexed", ("t", 0, 8): "pending"}
    build_indexes(warehouse, layout, build_settings())
    materialize_metadata(warehouse)
    assert _ask(warehouse, "t", 0, 1009) == 9


@pytest.mark.parametrize(("most", "commits"), [(0, 3), (1, 6), (1 << 40, 1)])
def test_a_commit_has_bytes_for_each_core_unless_a_setting_says_how_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, commits: int
) -> None:
    archive = tmp_path / "archive"
    written = write_archive(archive, {TopicPartition(topic="t", partition=0): [_segment(8 * at) for at in range(6)]})
    assert spark.sparkContext.defaultParallelism == 2
    monkeypatch.setattr(build, "BYTES_PER_CORE", max(each.log.stat().st_size for each in written))
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    layout = open_archive(str(archive), LAYOUT)
    scan_segments(warehouse, layout)
    assert build_indexes(warehouse, layout, build_settings(max_bytes_per_commit=most)).last_build_number == commits


def test_a_build_in_parts_indexes_each_segment_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    segments = {
        TopicPartition(topic="t", partition=at): [_segment(8 * number) for number in range(count)]
        for at, count in enumerate((2, 4, 1, 1))
    }
    written = write_archive(archive, segments)
    written[3].log.write_bytes(b"")
    layout = open_archive(str(archive), LAYOUT)
    faulty = FaultyLayout(layout=layout, unanswered_segment_ids=frozenset({written[7].segment_id}))
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    scan_segments(warehouse, layout)
    monkeypatch.setattr(build_work, "find_pending_here", lambda *_, **__: None)  # as if the table were large
    monkeypatch.setattr(build_work, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(build, "_MOST_REMEMBERED", 3)
    told = list[str]()
    with pytest.raises(RetriableError, match="^1 of 8 segments could not be read"):
        build_indexes(warehouse, faulty, build_settings(), told.append)
    assert [line.partition(";")[0] for line in told] == [
        "commit 1 of 1 after 2 segments: 3 segments",
        "commit 1 of 1 after 5 segments: 1 segment",
        "commit 1 of 1 after 6 segments: 2 segments",
    ]
    assert [status for _, status in sorted(_status(warehouse).items())] == [
        *["indexed"] * 3,
        "quarantined",
        *["indexed"] * 3,
        "pending",
    ]
    summary = build_indexes(warehouse, layout, build_settings())
    assert (summary.last_build_number, summary.indexed_count, summary.batch_count) == (5, 1, 4)


@pytest.mark.parametrize("depth", IndexDepth)
def test_segment_that_is_counted_again_answers_from_its_older_build_until_publication(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: IndexDepth
) -> None:
    archive, location, copies = tmp_path / "archive", tmp_path / "warehouse", tmp_path / "copies"
    early_peak = Segment(batches=(*_segment(0, count=1, first_ms=9_000).batches, *_segment(2, count=3).batches))
    written = write_archive(archive, {TopicPartition(topic="t", partition=0): [early_peak, _segment(8)]})
    assert len(written) == 2
    layout, settings = open_archive(str(archive), LAYOUT), build_settings(depth)
    warehouse = run_pipeline(spark, layout, location, settings=settings)
    times = [0, 1_000, 1_002, 1_007, 1_008, 1_015, 9_000, 9_001, 9_002]

    open_layout = partial(open_archive, str(archive), LAYOUT)
    options = LookupOptions(batches=BatchReader(open_layout=open_layout, limits=settings.options.limits))

    def read_offsets(location: Path) -> list[int | None]:
        with OffsetReader(location, options) as reader:
            found = [reader.offset_for_timestamp("t", 0, time) for time in times]
        return [None if each is None else each.offset for each in found]

    def ask_spark() -> list[object]:
        in_bulk = find_offsets_for_timestamps(
            warehouse, requests_from_rows([("t", 0, time) for time in times]), options
        )
        lateral = (
            "SELECT t.at, a.* FROM posexplode(:times) AS t(at, ms), LATERAL offset_for_timestamp('t', 0, t.ms) a "
            "ORDER BY t.at"
        )
        # The functions read the same tables at every depth, and take Spark seconds.
        in_sql = spark.sql(lateral, {"times": times}).collect() if depth is IndexDepth.RECORD else []
        return [in_bulk.to_pylist(), in_sql]

    attach_warehouse(spark, str(location))
    before, from_spark = read_offsets(location), ask_spark()
    log_starts = tmp_path / "log_starts.csv"
    log_starts.write_text("topic,partition,log_start_offset\nt,0,2\n")
    merge_log_start_offsets(warehouse, read_log_start_offsets(str(log_starts)))
    with copies_behind_each_write(location, copies, monkeypatch):
        assert build_indexes(warehouse, layout, settings).recounted_count == 1
    for copy in copies.iterdir():
        assert read_offsets(copy) == before, copy.name
    assert ask_spark() == from_spark

    materialize_metadata(warehouse)
    assert read_offsets(location) == [2, 2, 2, 7, 8, 15, None, None, None]
    assert ask_spark() != from_spark
    served = {(row["segment_id"], row["served_build_number"]) for row in rows_in(warehouse, SEGMENTS)}
    for table in INDEX_TABLES:
        assert {(row["segment_id"], row["build_number"]) for row in rows_in(warehouse, table)} <= served, table.name


@pytest.mark.timeout(1200)  # six runs of the pipeline
def test_run_that_was_killed_after_any_write_ends_the_same_when_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    orders, broken = TopicPartition(topic="orders", partition=0), TopicPartition(topic="broken", partition=0)
    written = write_archive(archive, {orders: [_segment(0), _segment(8)], broken: [_segment(0)]})
    os.truncate(written[2].log, 10)
    log_starts = tmp_path / "log_starts.csv"
    log_starts.write_text("topic,partition,log_start_offset\norders,0,3\n")

    settings = (f"archive.uri={archive}", f"log_start_offsets.uri={log_starts}", "build.max_bytes_per_commit=200")
    pipeline = BothWays(spark=spark, assignments=settings)
    with copies_behind_each_write(tmp_path / "undisturbed", tmp_path / "cut", monkeypatch):
        pipeline.run(tmp_path / "undisturbed")
    undisturbed = table_contents(Warehouse(spark=spark, uri=str(tmp_path / "undisturbed")))
    assert len(undisturbed[OFFSET_INDEX.name]) == 8
    assert {table.name for table in INDEX_TABLES} <= set(undisturbed)
    copies = copies_in_order(tmp_path / "cut")
    assert len(copies) >= 10
    # A reader of what was left behind a write finds nothing of the partition yet, or all of it.
    answers = [_answers(copy, "orders", 0, range(999, 1_017)) for copy in copies]
    assert [each for each, _ in groupby(answers)] == [None, [*[3] * 5, *range(4, 16), None]]
    # About twenty runs would take minutes. These four are one of each kind: unpublished rows of a first build,
    # unpublished rows of a recount, a quarantined segment without its mark, served ranges without rows of partitions.
    index_rows, quarantined, partitions = (
        copies_behind(tmp_path / "cut", *write)
        for write in (("add_files", TIME_INDEX), ("merge", QUARANTINE), ("append", PARTITION_METADATA))
    )
    before_partitions = copies[copies.index(partitions[0]) - 1]
    assert len({index_rows[0], index_rows[-1], quarantined[-1], before_partitions}) == 4
    for copy in (index_rows[0], index_rows[-1], quarantined[-1], before_partitions):
        contents = rows_after_kills(pipeline.finish(copy))
        for name, rows in undisturbed.items():
            assert contents[name] == rows, (copy.name, name)
    pipeline.repeat(before_partitions)
