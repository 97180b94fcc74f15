"""Test that the job list_offsets asks the local tier of its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.errors import UsageError
from lookup_jobs import read_answers, run_list_offsets
from worlds.golden_warehouse import run_pipeline

ORDERS = TopicPartition(topic="orders", partition=0, topic_id="A" * 22)
ASKED_MS = (1_000, 1_040, 2_000, 2_040, 3_000, -1, -3)


def segment(base_offset: int, first_ms: int) -> Segment:
    """Five records, ten milliseconds apart."""
    records = tuple(Record(timestamp_ms=first_ms + 10 * each) for each in range(5))
    return Segment(batches=(Batch(base_offset=base_offset, records=records),))


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of an archive, and the log directory that continues after it."""
    folder = tmp_path_factory.mktemp("job")
    archived, active = segment(0, 1_000), segment(5, 2_000)
    write_archive(folder / "archive", {ORDERS: [archived]})
    run_pipeline(spark, folder / "archive", folder / "warehouse")
    write_partition(folder / "logs", ORDERS.topic, ORDERS.partition, [archived, active])
    write_offset_checkpoint(folder / "logs" / HIGH_WATERMARKS, {(ORDERS.topic, ORDERS.partition): 10})
    return folder


def answers(spark: SparkSession, folder: Path, *settings: str) -> list[tuple[object, object, object]]:
    """Return error, offset and route for each of `ASKED_MS`."""
    requests, output = folder / "requests.csv", folder / "answers.jsonl"
    requests.write_text(
        "topic,partition,timestamp_ms,request_id\n" + "".join(f"orders,0,{each},{each}\n" for each in ASKED_MS)
    )
    own = (f"warehouse.uri={folder / 'warehouse'}", "remote.list.offsets.request.timeout.ms=300000")
    run_list_offsets(spark, ["--requests", str(requests), "--output", str(output)], *own, *settings)
    rows = read_answers(output)
    assert [(row["request_id"], row["version"]) for row in rows] == [(str(each), 11) for each in ASKED_MS]
    assert [row["timestamp_ms"] for row in rows] == list(ASKED_MS)
    return [(row["error"], row["offset"], row["route"]) for row in rows]


def test_log_directory_answers_for_records_that_are_not_archived(spark: SparkSession, folder: Path) -> None:
    remote, local = "remote_then_local", "local_only"
    archived = [("NONE", 0, remote), ("NONE", 4, remote)]
    required = [("LOCAL_REQUIRED", None, local)] * 4
    assert answers(spark, folder) == [*archived, *required, ("NONE", 4, remote)], "the largest that is archived"
    beyond = [("NONE", 5, local), ("NONE", 9, local), ("NONE", None, local), ("NONE", 10, local), ("NONE", 9, remote)]
    assert answers(spark, folder, f"list_offsets.log_directory={folder / 'logs'}") == archived + beyond


def test_two_local_tiers_are_refused(spark: SparkSession, folder: Path) -> None:
    both = (f"list_offsets.log_directory={folder / 'logs'}", "list_offsets.bootstrap_servers=127.0.0.1:1")
    with pytest.raises(UsageError, match="not both"):
        answers(spark, folder, *both)
