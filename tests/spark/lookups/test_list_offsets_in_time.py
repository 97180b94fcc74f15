"""Test hundreds of partitions of which some hang, fail or are damaged: each request has its own answer."""

from __future__ import annotations

import copy
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.open_archive import open_archive
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps, list_offsets
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.list_offsets import SpecialTimestamp
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.list_offsets_expirations import LIST_OFFSETS_EXPIRATIONS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in
from lookup_jobs import read_answers, run_list_offsets
from read_quotas import shared_quota, taken_bytes
from stores.faulty_layout import FaultyLayout
from worlds.golden_warehouse import build_settings, run_pipeline

TOPIC, PARTITION_COUNT, RECORD_COUNT = "wide", 300, 3
FIRST_MS = 1_700_000_000_000
LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
STALLED, UNANSWERED, DAMAGED = range(0, 300, 29), range(5, 300, 61), range(7, 300, 91)
READS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """The archive of these partitions, indexed at batch depth."""

    warehouse: Warehouse
    archive: Path
    written: dict[int, WrittenSegment]

    def segment_ids(self, partitions: range) -> frozenset[str]:
        return frozenset(self.written[each].segment_id for each in partitions)


def segment_of(partition: int) -> Segment:
    """Three records, a second apart, in one batch."""
    records = tuple(Record(timestamp_ms=FIRST_MS + partition + each * 1000) for each in range(RECORD_COUNT))
    return Segment(batches=(Batch(base_offset=0, records=records),))


@pytest.fixture(scope="module")
def wide(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Wide:
    folder = tmp_path_factory.mktemp("wide")
    places = {TopicPartition(topic=TOPIC, partition=each): [segment_of(each)] for each in range(PARTITION_COUNT)}
    written = {each.topic_partition.partition: each for each in write_archive(folder / "archive", places)}
    settings = build_settings(IndexDepth.BATCH)
    warehouse = run_pipeline(spark, folder / "archive", folder / "warehouse", settings=settings)
    for partition in DAMAGED:
        log = written[partition].log
        log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    return Wide(warehouse=warehouse, archive=folder / "archive", written=written)


def faulty(wide: Wide, stalled_readers: Path) -> BatchReader:
    """Reads of an archive in which some hang, fail or are damaged."""
    layout = FaultyLayout(
        layout=open_archive(str(wide.archive), "local_tiered_storage"),
        unanswered_segment_ids=wide.segment_ids(UNANSWERED),
        stalled_segment_ids=wide.segment_ids(STALLED),
        stalled_readers=str(stalled_readers),
    )
    # This must be pickled by value: a worker cannot import modules of the tests.
    return BatchReader(open_layout=partial(copy.copy, layout), limits=LIMITS)


def expected_error(partition: int) -> str:
    """Return the expected error of a request for a time in that partition."""
    if partition in STALLED:
        return "REQUEST_TIMED_OUT"
    if partition in UNANSWERED:
        return "KAFKA_STORAGE_ERROR"
    return "CORRUPT_MESSAGE" if partition in DAMAGED else "NONE"


def test_partition_that_hangs_fails_or_is_damaged_affects_no_other_request(wide: Wide, tmp_path: Path) -> None:
    partitions = range(PARTITION_COUNT)
    options = LookupOptions(batches=faulty(wide, tmp_path), timeout_ms=500_000, most_reads_at_once=READS_AT_ONCE)
    asked = [(TOPIC, each, FIRST_MS + each + 1, -1, None, 8_000 if each in STALLED else -1) for each in partitions]
    # The tables still answer for a partition whose archive hangs.
    asked += [(TOPIC, each, SpecialTimestamp.EARLIEST.value, -1, None, -1) for each in reversed(partitions)]
    answers = list_offsets(wide.warehouse, requests_from_rows(asked), options).to_pylist()
    times, specials = answers[:PARTITION_COUNT], answers[PARTITION_COUNT:]
    assert [row["error"] for row in times] == [expected_error(each) for each in partitions]
    for each, row in enumerate(times):
        found = row["offset"], row["offset_timestamp_ms"], row["leader_epoch"]
        assert found == ((1, FIRST_MS + each + 1000, 0) if row["error"] == "NONE" else (None, None, None))
    assert {(row["error"], row["offset"], row["route"]) for row in specials} == {("NONE", 0, "metadata")}
    hung = [int(each.name) for each in tmp_path.iterdir()]
    assert len(hung) == len(STALLED) > READS_AT_ONCE
    until = time.time() + 30
    while any(map(is_alive, hung)) and time.time() < until:
        time.sleep(0.05)
    assert not any(map(is_alive, hung)), "who hung was killed"


def is_alive(process_id: int) -> bool:
    """True if the process runs; a zombie does not."""
    try:
        return bool(psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_missing_archive_affects_only_requests_that_need_it(wide: Wide, tmp_path: Path) -> None:
    open_layout = partial(open_archive, str(tmp_path / "nowhere"), "local_tiered_storage")
    options = LookupOptions(batches=BatchReader(open_layout=open_layout, limits=LIMITS))
    asked = [(TOPIC, each, FIRST_MS) for each in range(20)]
    asked += [(TOPIC, each, SpecialTimestamp.LATEST_TIERED.value) for each in range(20, 40)]
    answers = list_offsets(wide.warehouse, requests_from_rows(asked), options)
    assert Counter(answers.column("error").to_pylist()) == {"KAFKA_STORAGE_ERROR": 20, "NONE": 20}
    with OffsetReader(wide.warehouse.uri, options) as reader:
        assert reader.list_offsets(asked) == answers.to_pylist()


def test_timeout_of_a_request_counts_from_version_ten_on(wide: Wide, tmp_path: Path) -> None:
    options = LookupOptions(batches=faulty(wide, tmp_path), timeout_ms=4_000)
    rows = [
        (TOPIC, 0, FIRST_MS, -1, None, 1, 10),
        (TOPIC, 1, FIRST_MS, -1, None, 1, 10),
        (TOPIC, 2, FIRST_MS, -1, None, 1, 9),
        (TOPIC, 29, FIRST_MS, -1, None, 600_000, 9),
    ]
    answers = list_offsets(wide.warehouse, requests_from_rows(rows), options).column("error").to_pylist()
    assert answers == ["REQUEST_TIMED_OUT", "REQUEST_TIMED_OUT", "NONE", "REQUEST_TIMED_OUT"]


def test_lookups_of_the_archive_have_no_default_timeout(wide: Wide) -> None:
    requests = requests_from_rows([(TOPIC, each, SpecialTimestamp.EARLIEST.value) for each in range(50)])
    hurried = LookupOptions(timeout_ms=1)
    assert set(list_offsets(wide.warehouse, requests, hurried).column("error").to_pylist()) == {"REQUEST_TIMED_OUT"}
    assert find_offsets_for_timestamps(wide.warehouse, requests, hurried).column("offset").to_pylist() == [0] * 50


def use_tables_in_tasks(wide: Wide) -> None:
    """Use delta-rs in the processes of Spark's tasks: it cannot be used in what they fork."""
    uri = wide.warehouse.uri

    def use(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert SmallTable(uri=uri, table=JOB_RUNS).exists()
        yield from batches

    assert wide.warehouse.spark.range(4, numPartitions=4).mapInArrow(use, "id long").count() == 4


def run_job(wide: Wide, requests: Path, output: Path, *settings: str, is_recorded: bool = False) -> str:
    """Run the job list_offsets in this session, and return what it prints."""
    own = (f"archive.uri={wide.archive}", f"warehouse.uri={wide.warehouse.uri}")
    asked = ["--requests", str(requests), "--output", str(output), *(["--record-run"] if is_recorded else [])]
    return run_list_offsets(wide.warehouse.spark, asked, *own, *settings)


def test_job_counts_timed_out_requests_and_reads_the_timeout_at_each_run(wide: Wide, tmp_path: Path) -> None:
    requests, output = tmp_path / "requests.csv", tmp_path / "answers.jsonl"
    lines = ["topic,partition,timestamp_ms,isolation_level", f"wide,1,{FIRST_MS},", "wide,2,-2,read_committed"]
    requests.write_text("\n".join([*lines, "wide,2,5,", "other,0,5,"]) + "\n", encoding="utf-8")
    began_s = time.time()
    printed = run_job(wide, requests, output, "remote.list.offsets.request.timeout.ms=1", is_recorded=True)
    (run,) = wide.warehouse.read(JOB_RUNS).where("job = 'list_offsets'").collect()
    figures = json.loads(run["summary"])
    assert (run["outcome"], figures["requests"], figures["found"]) == ("succeeded", 4, 0)
    assert figures["errors"] == {"REQUEST_TIMED_OUT": 4}
    assert began_s <= run["started_ms"] / 1000 + 1 <= run["finished_ms"] / 1000 + 1 <= time.time() + 1
    answers = read_answers(output)
    assert [row["error"] for row in answers] == ["REQUEST_TIMED_OUT"] * 4
    assert [row["error_code"] for row in answers] == [7] * 4
    assert "4 requests timed out" in printed
    counted = wide.warehouse.read(LIST_OFFSETS_EXPIRATIONS).orderBy("topic", "partition").collect()
    assert [(row["topic"], row["partition"], row["request_count"], row["timeout_ms"]) for row in counted] == [
        ("other", 0, 1, 1),
        ("wide", 1, 1, 1),
        ("wide", 2, 2, 1),
    ]
    attach_warehouse(wide.warehouse.spark, wide.warehouse.uri)
    rates = wide.warehouse.spark.sql(
        "SELECT topic, partition, expired_count, round(fifteen_minute_rate * 900) AS counted, last_expired_ms > 0 "
        "FROM coldlog.list_offsets_expiration_rates ORDER BY topic NULLS LAST, partition NULLS LAST"
    ).collect()
    assert [tuple(row) for row in rates] == [
        ("other", 0, 1, 1.0, True),
        ("other", None, 1, 1.0, True),
        ("wide", 1, 1, 1.0, True),
        ("wide", 2, 2, 2.0, True),
        ("wide", None, 3, 3.0, True),
        (None, None, 4, 4.0, True),
    ]
    # The mean is since a row's own first time-out.
    before = {"run_id": "before", "topic": "narrow", "partition": 0, "request_count": 7, "timeout_ms": 1}
    earlier_ms = time.time_ns() // 1_000_000 - 1_000_000
    wide.warehouse.merge(
        LIST_OFFSETS_EXPIRATIONS,
        wide.warehouse.local(LIST_OFFSETS_EXPIRATIONS, [before | {"expired_ms": earlier_ms}]),
    )
    means = wide.warehouse.spark.sql(
        "SELECT topic, expired_count, expired_count / mean_rate FROM coldlog.list_offsets_expiration_rates "
        "WHERE partition IS NULL ORDER BY topic NULLS LAST"
    ).collect()
    assert [tuple(row)[:2] for row in means] == [("narrow", 7), ("other", 1), ("wide", 3), (None, 11)]
    narrow_s, other_s, wide_s, all_s = (row[2] for row in means)
    assert narrow_s == pytest.approx(all_s)
    assert 1_000 <= narrow_s <= time.time() - earlier_ms / 1000
    assert other_s == pytest.approx(wide_s)
    assert 0.99 < other_s <= max(1.01, time.time() - began_s)

    # A warehouse of a past time is read too, but not written to.
    run_job(wide, requests, output, "remote.list.offsets.request.timeout.ms=1", "warehouse.as_of=v1")
    use_tables_in_tasks(wide)
    printed = run_job(wide, requests, output, *shared_quota(1 << 20))
    assert taken_bytes(wide.warehouse.uri) >= 1 << 20, "each task takes a second of the quota that all share"
    answers = read_answers(output)
    assert [(row["error"], row["offset"], row["route"], row["local_start_offset"]) for row in answers] == [
        ("NONE", 0, "remote_then_local", 3),
        ("NONE", 0, "metadata", None),
        ("NONE", 0, "remote_then_local", 3),
        ("UNKNOWN_TOPIC_OR_PARTITION", None, None, None),
    ]
    assert len(rows_in(wide.warehouse, LIST_OFFSETS_EXPIRATIONS)) == 4
    assert wide.warehouse.read(JOB_RUNS).where("job = 'list_offsets'").count() == 1, "questions have no row"
