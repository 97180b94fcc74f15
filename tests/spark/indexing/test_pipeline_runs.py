"""Test pipeline runs on archives that grow, shrink, break and are repaired, and runs that are killed at any write."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.message_sets import build_message_set
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.faulty_layout import FaultyLayout
from coldlog.archive.open_archive import open_archive
from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.formats.kafka.producer_snapshot import ProducerSnapshot, ProducerStateEntry, write_producer_snapshot
from coldlog.indexing.builds.build import build_indexes
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.scan.log_starts import merge_log_start_offsets
from coldlog.indexing.scan.scan import scan_segments
from coldlog.lookups.batch_lookup import BatchReader
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.rows import requests_from_rows
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.catalog import ALL_TABLES, INDEX_TABLES
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.expiry.supplied_log_starts import read_log_start_offsets
from cut_runs import copies_behind_each_write, copies_in_order
from golden_warehouse import build_settings, run_pipeline
from table_contents import table_contents

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


def _versions(warehouse: Warehouse) -> dict[str, int]:
    tables = [table for table in ALL_TABLES if table is not JOB_RUNS]
    history = {t.name: warehouse.spark.sql(f"DESCRIBE HISTORY {warehouse.identifier(t)} LIMIT 1") for t in tables}
    return {name: rows.collect()[0]["version"] for name, rows in history.items()}


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
    rows = warehouse.read(SEGMENTS).collect()
    return {(row["topic"], row["partition"], row["start_offset"]): row["index_status"] for row in rows}


def test_runs_over_an_archive_that_grows_shrinks_and_returns_read_only_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive, orders = tmp_path / "archive", TopicPartition(topic="a.b-1_c", partition=3)
    written = write_archive(archive, {orders: [_segment(0), _segment(8)]})
    warehouse = run_pipeline(spark, archive, tmp_path / "it's a ware house")
    assert _ask(warehouse, "a.b-1_c", 3, 1009) == 9
    before = _versions(warehouse)
    run_pipeline(spark, archive, tmp_path / "it's a ware house")
    assert _versions(warehouse) == before, "a run that finds nothing new writes nothing"

    files_before = set(warehouse.read(OFFSET_INDEX).inputFiles())
    write_archive(archive, {orders: [_segment(0), _segment(8), _segment(16)]})
    run_pipeline(spark, archive, tmp_path / "it's a ware house")
    assert files_before < set(warehouse.read(OFFSET_INDEX).inputFiles()), "what was there is not written again"
    assert warehouse.read(OFFSET_INDEX).where("build_number = 2").count() == 4
    assert _ask(warehouse, "a.b-1_c", 3, 1017) == 17

    parked = tmp_path / "parked"
    parked.mkdir()
    middle = [path for path in written[1].stem.parent.iterdir() if path.name.startswith(written[1].stem.name)]
    for path in middle:
        shutil.move(path, parked / path.name)
    run_pipeline(spark, archive, tmp_path / "it's a ware house")
    assert _status(warehouse)["a.b-1_c", 3, 8] == "gone"
    assert _ask(warehouse, "a.b-1_c", 3, 1009) == 16
    assert warehouse.read(PARTITION_METADATA).collect()[0]["gap_count"] == 1

    for path in middle:
        shutil.move(parked / path.name, path)
    index_before = _versions(warehouse)[OFFSET_INDEX.name]
    run_pipeline(spark, archive, tmp_path / "it's a ware house")
    assert _ask(warehouse, "a.b-1_c", 3, 1009) == 9
    assert _versions(warehouse)[OFFSET_INDEX.name] == index_before, "what came back unchanged is not read again"

    shutil.rmtree(archive / "kafka-tiered-storage" / orders.folder)
    (archive / "kafka-tiered-storage" / orders.folder).mkdir()
    with pytest.raises(UsageError, match="lists no segment, but the warehouse"):
        scan_segments(warehouse, open_archive(str(archive), LAYOUT))


Damage = Callable[[WrittenSegment], None]


def _cut(at: Callable[[int], int]) -> Damage:
    def damage(written: WrittenSegment) -> None:
        os.truncate(written.log, at(written.log.stat().st_size))

    return damage


def _flip(suffix: str, at: int) -> Damage:
    def damage(written: WrittenSegment) -> None:
        path = written.stem.with_name(written.stem.name + suffix)
        content = bytearray(path.read_bytes())
        content[at] ^= 0xFF
        path.write_bytes(content)

    return damage


def _replace(suffix: str, content: bytes) -> Damage:
    def damage(written: WrittenSegment) -> None:
        Path(str(written.stem) + suffix).write_bytes(content)

    return damage


def _remove(suffix: str) -> Damage:
    return lambda written: Path(str(written.stem) + suffix).unlink()


OLD_MESSAGES = build_message_set(1, 0, [Record(timestamp_ms=1, value=b"x" * 80)])
LATER_SNAPSHOT = write_producer_snapshot(
    ProducerSnapshot(
        entries=(
            ProducerStateEntry(
                producer_id=1,
                producer_epoch=0,
                last_sequence=0,
                last_offset=99,
                offset_delta=0,
                timestamp_ms=0,
                coordinator_epoch=0,
                current_txn_first_offset=-1,
            ),
        )
    )
)
DAMAGES: dict[str, tuple[Damage, str]] = {
    "flipped-record": (_flip(".log", 70), "crc_mismatch"),
    "flipped-crc": (_flip(".log", 18), "crc_mismatch"),
    "flipped-length": (_flip(".log", 8), "batch_length_invalid"),
    "cut-in-a-batch": (_cut(lambda size: size - 3), "log_truncated"),
    "cut-between-batches": (_cut(lambda size: size // 2), "offset_index_invalid"),
    "empty-log": (_replace(".log", b""), "log_empty"),
    "rubbish-log": (_replace(".log", b"\xff" * 200), "batch_length_invalid"),
    "old-magic": (
        _replace(".log", build_message_set(1, 0, [Record(timestamp_ms=1, value=b"x" * 80)])),
        "unsupported_magic",
    ),
    "rubbish-index": (_replace(".index", b"\x00\x00\x00"), "offset_index_invalid"),
    "foreign-index": (_replace(".index", b"\x00\x00\x00\x01\x00\x00\x00\x07"), "offset_index_invalid"),
    "rubbish-timeindex": (_replace(".timeindex", b"\x00" * 13), "time_index_invalid"),
    "promising-txnindex": (_replace(".txnindex", bytes(2) + bytes(7) + b"\x01" + bytes(24)), "txn_index_invalid"),
    "flipped-snapshot": (_flip(".snapshot", 3), "producer_snapshot_invalid"),
    "rubbish-checkpoint": (_replace(".leader_epoch_checkpoint", b"hello"), "leader_epoch_checkpoint_invalid"),
    "flipped-epoch": (_flip(".log", 14), "header_invalid"),
    "later-producers": (_replace(".snapshot", LATER_SNAPSHOT), "log_truncated"),
    "no-log": (_remove(".log"), ""),
    "no-index": (_remove(".index"), ""),
    "no-snapshot": (_remove(".snapshot"), ""),
}


def test_each_damaged_segment_is_quarantined_alone_and_indexed_when_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    segments = {TopicPartition(topic=name, partition=0): [_segment(0), _segment(8), _segment(16)] for name in DAMAGES}
    written = {
        (each.topic_partition.topic, each.segment.start_offset): each for each in write_archive(archive, segments)
    }
    whole = tmp_path / "whole"
    shutil.copytree(archive, whole)
    for name, (damage, _) in DAMAGES.items():
        damage(written[name, 8])
    warehouse = run_pipeline(spark, archive, tmp_path / "warehouse")

    reasons = {row["topic"]: row["reason"] for row in warehouse.read(QUARANTINE).collect()}
    assert reasons == {name: reason for name, (_, reason) in DAMAGES.items() if reason}
    status = _status(warehouse)
    for name, (_, reason) in DAMAGES.items():
        assert status[name, 0, 8] == ("quarantined" if reason else "incomplete")
        assert status[name, 0, 0] == status[name, 0, 16] == "indexed"
    requests = requests_from_rows([(name, 0, time) for name in DAMAGES for time in (1003, 1019)])
    answers = find_offsets_for_timestamps(warehouse, requests)
    assert answers.column("offset").to_pylist() == [3, 19] * len(DAMAGES)
    facts = {row["topic"]: row for row in warehouse.read(QUARANTINE).collect()}
    assert facts["flipped-record"]["object_name"].endswith(".log")
    assert facts["flipped-record"]["position"] == 0
    assert facts["foreign-index"]["object_name"].endswith(".index")
    assert "crc" in facts["flipped-crc"]["expected"]

    before = _versions(warehouse)
    run_pipeline(spark, archive, tmp_path / "warehouse")
    assert _versions(warehouse) == before, "what is known to be bad is not tried again"

    quarantine = warehouse.identifier(QUARANTINE)
    spark.sql(f"UPDATE {quarantine} SET expected = 'last offset 9 at byte 152' WHERE topic = 'foreign-index'")
    run_pipeline(spark, archive, tmp_path / "warehouse")
    tried = {row["topic"]: row["attempt_count"] for row in warehouse.read(QUARANTINE).collect()}
    assert {name for name, count in tried.items() if count > 1} == {"foreign-index"}, "an older rule refused it"

    shutil.rmtree(archive)
    shutil.copytree(whole, archive, copy_function=shutil.copy)
    run_pipeline(spark, archive, tmp_path / "warehouse")
    assert set(_status(warehouse).values()) == {"indexed"}
    assert warehouse.read(QUARANTINE).count() == 0
    assert {_ask(warehouse, name, 0, 1009) for name in ("flipped-record", "no-log")} == {9}


def test_run_fails_when_more_than_one_and_too_large_a_share_is_bad(spark: SparkSession, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    written = write_archive(archive, {TopicPartition(topic="t", partition=0): [_segment(0), _segment(8), _segment(16)]})
    os.truncate(written[0].log, 10)
    os.truncate(written[1].log, 10)
    with pytest.raises(ColdlogError, match="2 of 3 segments are quarantined"):
        run_pipeline(spark, archive, tmp_path / "w", settings=build_settings(max_quarantined_share=0.5))
    assert _status(Warehouse(spark=spark, uri=str(tmp_path / "w")))["t", 0, 16] == "indexed"


def test_segment_that_the_store_does_not_return_stays_pending_for_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    written = write_archive(archive, {TopicPartition(topic="t", partition=0): [_segment(0), _segment(8)]})
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "w"))
    warehouse.create_missing()
    layout = open_archive(str(archive), LAYOUT)
    scan_segments(warehouse, layout)
    faulty = FaultyLayout(layout=layout, unanswered_segment_ids=frozenset({written[1].segment_id}))
    with pytest.raises(RetriableError, match="1 of 2 segments could not be read"):
        build_indexes(warehouse, faulty, build_settings())
    assert _status(warehouse) == {("t", 0, 0): "indexed", ("t", 0, 8): "pending"}
    build_indexes(warehouse, layout, build_settings())
    materialize_metadata(warehouse)
    assert _ask(warehouse, "t", 0, 1009) == 9


def test_archive_that_disappears_during_a_build_is_a_usage_error_and_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    write_archive(archive, {TopicPartition(topic="t", partition=0): [_segment(0), _segment(8)]})
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "w"))
    warehouse.create_missing()
    layout = open_archive(str(archive), LAYOUT)
    scan_segments(warehouse, layout)
    archive.rename(tmp_path / "unmounted")
    with pytest.raises(UsageError, match=f"^no archive at {archive}: .* is not a directory that can be reached$"):
        build_indexes(warehouse, layout, build_settings())
    assert set(_status(warehouse).values()) == {"pending"}
    (tmp_path / "unmounted").rename(archive)
    build_indexes(warehouse, layout, build_settings())
    assert set(_status(warehouse).values()) == {"indexed"}


def test_overlapping_uploads_serve_each_offset_once(spark: SparkSession, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    retry = Segment(batches=_segment(0).batches, index_interval_bytes=0, segment_id="AAAAAAAAAAAAAAAAAAAAAA")
    write_archive(archive, {TopicPartition(topic="copies", partition=0): [_segment(0), retry, _segment(8)]})
    deposed = _segment(0, epoch=1, count=8)
    successor = _segment(8, epoch=2, first_ms=5_000)
    write_archive(archive, {TopicPartition(topic="failover", partition=0): [deposed, successor]})
    warehouse = run_pipeline(spark, archive, tmp_path / "warehouse")
    reasons = {(row["topic"], row["not_served_reason"]) for row in warehouse.read(SEGMENTS).collect()}
    assert reasons == {("copies", None), ("copies", "duplicate"), ("failover", None)}
    assert [_ask(warehouse, "copies", 0, 1000 + at) for at in range(17)] == [*range(16), None]
    # What the deposed leader wrote from offset 8 on (times 1008 to 1015) was never part of the log.
    assert [_ask(warehouse, "failover", 0, time) for time in (1007, 1008, 1015, 5007, 5008)] == [7, 8, 8, 15, None]
    cut = warehouse.read(SEGMENTS).where("topic = 'failover' AND start_offset = 0").collect()[0]
    assert (cut["served_to_offset"], cut["running_max_timestamp_ms"]) == (7, 1007)


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
        return [in_bulk.to_pylist(), spark.sql(lateral, {"times": times}).collect()]

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
    served = warehouse.read(SEGMENTS).select("segment_id", F.col("served_build_number").alias("build_number"))
    for table in INDEX_TABLES:
        assert not warehouse.read(table).join(served, served.columns, "left_anti").head(1), table.name


@pytest.mark.timeout(1200)  # seven runs of the pipeline
def test_run_that_was_killed_after_any_write_ends_the_same_when_repeated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive"
    orders, broken = TopicPartition(topic="orders", partition=0), TopicPartition(topic="broken", partition=0)
    written = write_archive(archive, {orders: [_segment(0), _segment(8)], broken: [_segment(0)]})
    os.truncate(written[2].log, 10)
    log_starts = tmp_path / "log_starts.csv"
    log_starts.write_text("topic,partition,log_start_offset\norders,0,3\n")

    def run(location: Path) -> Warehouse:
        return run_pipeline(
            spark, archive, location, log_start_offsets=log_starts, settings=build_settings(max_bytes_per_commit=200)
        )

    with copies_behind_each_write(tmp_path / "undisturbed", tmp_path / "cut", monkeypatch):
        undisturbed = table_contents(run(tmp_path / "undisturbed"))
    assert len(undisturbed[OFFSET_INDEX.name]) == 8
    assert {table.name for table in INDEX_TABLES} <= set(undisturbed)
    copies = copies_in_order(tmp_path / "cut")
    assert len(copies) >= 10
    # A reader of what was left behind a write finds nothing of the partition yet, or all of it.
    answers = [_answers(copy, "orders", 0, range(999, 1_017)) for copy in copies]
    assert [each for each, _ in groupby(answers)] == [None, [*[3] * 5, *range(4, 16), None]]
    # Some twenty runs would take minutes; these are of every stage, another few with another seed.
    for copy in random.Random(20261123).sample(copies, 6):
        contents = table_contents(run(copy))
        # A kill between the row and its mark in `segments` makes the next run try the segment once more.
        contents[QUARANTINE.name] = [
            row.replace("'attempt_count': 2", "'attempt_count': 1") for row in contents[QUARANTINE.name]
        ]
        for name, rows in undisturbed.items():
            assert contents[name] == rows, (copy.name, name)
