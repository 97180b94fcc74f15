"""Test answers as of a past moment: by time, by version, and at the first and last version."""

from __future__ import annotations

import io
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from both_ways import BothWays
from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment, abort_marker
from coldlog.errors import UsageError
from coldlog.indexing.show import show_partitions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.as_of import Commit, find_moment, find_version
from coldlog.tables.delta.delta_log import list_commits
from coldlog.tables.delta.warehouse import Warehouse
from damage.damaged_tables import forget_published

OLD, GONE, NEW = (TopicPartition(topic=topic, partition=0) for topic in ("old", "gone", "new"))
REQUESTS = [(topic, 0, time) for topic in ("old", "gone", "new") for time in (0, 100, 101, 150, 200, 250, 300, 10**15)]
QUESTIONS = {
    "offset_for_timestamp": "q.topic, 0, q.timestamp_ms",
    "max_timestamp": "q.topic, 0",
    "next_segment_with_txn_index": "q.topic, 0, 0, q.timestamp_ms DIV 10",
    "aborted_transactions": "q.topic, 0, 0, 1000",
}
"""Functions that read all tables which the functions read; the others ask these tables by the same names."""


def segment(start_offset: int, timestamp_ms: int, *, is_aborted: bool = False) -> Segment:
    """Two records, and optionally the end of their transaction."""
    wrote = Batch(
        base_offset=start_offset,
        records=tuple(Record(timestamp_ms=time) for time in (timestamp_ms, timestamp_ms + 1)),
        is_transactional=is_aborted,
        producer_id=7 if is_aborted else -1,
        producer_epoch=0 if is_aborted else -1,
    )
    if not is_aborted:
        return Segment(batches=(wrote,))
    end = abort_marker(
        offset=start_offset + 2, timestamp_ms=timestamp_ms, producer_id=7, producer_epoch=0, leader_epoch=0
    )
    return Segment(batches=(wrote, end))


BEFORE = {OLD: [segment(0, 100), segment(2, 200, is_aborted=True)], GONE: [segment(0, 100)]}
AFTER = {
    OLD: [*BEFORE[OLD], segment(5, 150, is_aborted=True), segment(8, 300)],
    GONE: [segment(0, 100), segment(2, 150)],
    NEW: [segment(0, 100, is_aborted=True)],
}
Answers = dict[str, list[tuple[object, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAnswers:
    """The answers of a warehouse at one moment, from functions, job, view and printed tables."""

    by_function: Answers
    by_job: list[dict[str, object]]
    problems: list[tuple[object, ...]]
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A warehouse after a second run, and its answers before that run."""

    warehouse: Warehouse
    pipeline: BothWays
    before: AllAnswers
    at: dict[str, str]
    """The moment of those answers, in each allowed notation."""

    def then(self, way: str) -> Warehouse:
        return Warehouse(spark=self.warehouse.spark, uri=self.warehouse.uri, as_of=self.at[way])


def by_function(spark: SparkSession, functions: Sequence[str] = tuple(QUESTIONS)) -> Answers:
    """The answers of functions under LATERAL. Spark plans each of these queries for a second."""
    values = ", ".join(f"('{topic}', {time}L)" for topic, _, time in REQUESTS)
    requests = f"VALUES {values} AS q(topic, timestamp_ms)"
    return {
        function: sorted(
            (tuple(row) for row in spark.sql(f"SELECT q.*, o.* FROM {requests}, LATERAL {call} o").collect()), key=repr
        )
        for function in functions
        for call in (f"{function}({QUESTIONS[function]})",)
    }


def by_job(warehouse: Warehouse) -> list[dict[str, object]]:
    answers: list[dict[str, object]] = find_offsets_for_timestamps(warehouse, requests_from_rows(REQUESTS)).to_pylist()
    return answers


def problems(spark: SparkSession) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.table("coldlog.archive_problems").drop("first_seen_ms").collect()]


def job_of(warehouse: Warehouse, results: io.StringIO, *assignments: str) -> Job:
    settings = load_settings("local", [f"warehouse.uri={warehouse.uri}", *assignments])
    console = Console(progress=io.StringIO(), results=results)
    return Job(spark=warehouse.spark, settings=settings, arguments=Namespace(), console=console)


def shown(warehouse: Warehouse) -> str:
    results = io.StringIO()
    show_partitions(job_of(warehouse, results), warehouse)
    return results.getvalue()


def all_answers(warehouse: Warehouse, functions: Sequence[str] = tuple(QUESTIONS)) -> AllAnswers:
    """Register the tables and functions of a warehouse in the session, and ask everything."""
    attach_warehouse(warehouse.spark, warehouse.uri, as_of=warehouse.as_of)
    return AllAnswers(
        by_function=by_function(warehouse.spark, functions),
        by_job=by_job(warehouse),
        problems=problems(warehouse.spark),
        shown=shown(warehouse),
    )


@pytest.fixture(scope="module")
def past(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Past:
    """A run, its answers, more segments, a second run; after each of the two, runs that find nothing new."""
    folder = tmp_path_factory.mktemp("as-of")
    write_archive(folder / "archive", BEFORE)
    pipeline = BothWays(spark=spark, assignments=[f"archive.uri={folder / 'archive'}"])
    assert not pipeline.run(folder / "warehouse")
    warehouse = Warehouse(spark=spark, uri=str(folder / "warehouse"))
    before = all_answers(warehouse)
    assert pipeline.run(folder / "warehouse"), "it ends before Spark"
    # Beside the milliseconds of the last commit, at which the moment lies.
    time.sleep(0.05)
    moment_ms = time.time_ns() // 1_000_000
    version = list_commits(spark, warehouse.location(PARTITION_METADATA))[-1].version
    time.sleep(0.05)
    write_archive(folder / "archive", AFTER)
    lost = next((folder / "archive").rglob("gone-0-*/00000000000000000000-*.log"))
    lost.unlink()
    assert not pipeline.run(folder / "warehouse")
    pipeline.repeat(folder / "warehouse")
    moment = datetime.fromtimestamp(moment_ms / 1000, tz=UTC).isoformat()
    return Past(
        warehouse=warehouse,
        pipeline=pipeline,
        before=before,
        at={"time": moment, "milliseconds": str(moment_ms), "version": f"v{version}"},
    )


def test_every_answer_is_as_it_was_at_that_moment(past: Past) -> None:
    """Names in the session refer to the past, and to the present after they are registered again."""
    before, function = past.before, "offset_for_timestamp"
    assert all_answers(past.then("time")) == before
    assert all(before.by_function.values())
    now = all_answers(past.warehouse, [function])
    assert now.by_function[function] != before.by_function[function]
    assert now.by_job != before.by_job
    assert now.problems != before.problems
    assert now.shown != before.shown
    assert past.warehouse.spark.sql("SHOW VIEWS IN coldlog").where("viewName IN ('segments', 'txn_index')").count() == 0


def test_each_notation_of_the_moment_reads_the_same_versions(past: Past) -> None:
    """Every read takes its version from `as_of_ms`. A run writes discrepancies and its end after it publishes."""
    moments = {way: past.then(way).as_of_ms or 0 for way in past.at}
    assert moments["time"] == moments["milliseconds"] == int(past.at["milliseconds"])
    for table in ALL_TABLES:
        commits = list_commits(past.warehouse.spark, past.warehouse.location(table))
        by_version, by_time = (find_version(commits, moments[way], table.name) for way in ("version", "time"))
        assert by_version == by_time or table in (DISCREPANCIES, JOB_RUNS), table.name


def test_every_version_is_a_moment_and_the_last_one_is_the_present(past: Past) -> None:
    """The first is that of an empty table."""
    commits = list_commits(past.warehouse.spark, past.warehouse.location(PARTITION_METADATA))
    answers = {
        f"v{commit.version}": by_job(
            Warehouse(spark=past.warehouse.spark, uri=past.warehouse.uri, as_of=f"v{commit.version}")
        )
        for commit in commits
    }
    first, *_, last = answers.values()
    assert {row["error"] for row in first} == {"UNKNOWN_TOPIC_OR_PARTITION"}
    assert last == by_job(past.warehouse)
    assert answers[past.at["version"]] == past.before.by_job


def test_a_warehouse_as_of_the_past_cannot_be_written(past: Past) -> None:
    then, spark = past.then("version"), past.warehouse.spark
    rows = past.warehouse.read(SEGMENTS)
    versions = [list_commits(spark, past.warehouse.location(table))[-1] for table in ALL_TABLES]
    writes: list[Callable[[], object]] = [
        then.create_missing,
        lambda: then.append(SEGMENTS, rows),
        lambda: then.merge(SEGMENTS, rows),
        lambda: then.delete_keys(SEGMENTS, rows),
        lambda: then.delete_matching(SEGMENTS, rows.select(*SEGMENTS.key)),
        lambda: then.delete_build_after(SEGMENTS, 0),
        *(
            partial(past.pipeline.run, Path(past.warehouse.uri), f"warehouse.as_of={past.at['version']}", preflight)
            for preflight in ("pipeline.skip_unchanged=true", "pipeline.skip_unchanged=false")
        ),
    ]
    for write in writes:
        with pytest.raises(UsageError, match="read-only"):
            write()
    assert versions == [list_commits(spark, past.warehouse.location(table))[-1] for table in ALL_TABLES]


@pytest.mark.parametrize(
    ("as_of", "told"),
    [
        ("1999-12-31T23:59:59Z", "before the first version; there are v0 of 20"),
        ("v99", "partition_metadata has no such version; there are v0 of 20"),
        ("", "not a timestamp"),
    ],
)
def test_invalid_moment_is_refused_with_the_available_versions(past: Past, as_of: str, told: str) -> None:
    spark = past.warehouse.spark
    warehouse = Warehouse(spark=spark, uri=past.warehouse.uri, as_of=as_of)
    asks: list[Callable[[], object]] = [
        lambda: warehouse.read(SEGMENTS),
        lambda: by_job(warehouse),
        lambda: attach_warehouse(spark, past.warehouse.uri, as_of=as_of),
    ]
    for ask in asks:
        with pytest.raises(UsageError, match=told):
            ask()


@pytest.mark.parametrize(
    ("as_of", "told"),
    [
        ("5", "before the first version; there are v0 of 1970-01-01"),
        ("v", "not a timestamp"),
        ("v-1", "or a version of partition_metadata"),
        ("yesterday", "give epoch milliseconds"),
    ],
)
def test_text_that_is_no_moment_is_refused(as_of: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        find_moment(as_of, [Commit(version=0, committed_ms=100)])


def test_table_that_was_created_later_is_empty(past: Past, tmp_path: Path) -> None:
    """As if a newer coldlog added a table to an old warehouse. The files keep the times of the copied ones."""
    spark, location = past.warehouse.spark, tmp_path / "warehouse"
    shutil.copytree(past.warehouse.uri, location, copy_function=shutil.copy2)
    shutil.rmtree(location / TXN_SEGMENTS.name)
    forget_published(location, TXN_SEGMENTS.name)
    warehouse = Warehouse(spark=spark, uri=str(location), as_of=past.at["time"])
    with pytest.raises(UsageError, match="txn_segments missing"):
        warehouse.read(SEGMENTS)
    Warehouse(spark=spark, uri=str(location)).create_missing()
    assert warehouse.read(TXN_SEGMENTS).columns == list(TXN_SEGMENTS.column_names)
    assert warehouse.read(TXN_SEGMENTS).count() == 0
    attach_warehouse(spark, str(location), as_of=past.at["time"])
    answered = by_function(spark, ["next_segment_with_txn_index", "offset_for_timestamp"])
    assert answered.pop("next_segment_with_txn_index") == []
    assert answered == {name: rows for name, rows in past.before.by_function.items() if name in answered}


def test_a_moment_between_two_commits_is_the_earlier_version() -> None:
    commits = [Commit(version=version, committed_ms=version * 100 + 100) for version in range(3)]
    assert [find_moment(text, commits) for text in ("v0", "v2", "100", "250", "5000")] == [100, 300, 100, 250, 5000]
    assert [find_version(commits, ms, "t") for ms in (99, 100, 199, 200, 5000)] == [None, 0, 0, 1, 2]


def test_table_whose_log_was_cut_is_not_read_as_empty() -> None:
    with pytest.raises(UsageError, match="starts at v3 of 1970-01-01T00:00:00.500Z"):
        find_version([Commit(version=3, committed_ms=500)], 499, "segments")
