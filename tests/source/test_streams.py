"""A stream over an archive that grows: what is new comes once, wherever the stream was stopped."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.errors import UsageError
from coldlog.source.datasource import register_source
from coldlog.source.options import SourceOptions, read_options
from coldlog.source.streaming import Position, initial_position, latest_position, plan_micro_batch
from coldlog.tables.warehouse import Warehouse
from golden_warehouse import run_pipeline

ORDERS = [TopicPartition(topic="orders", partition=number) for number in range(3)]
START_MS = 1_700_000_000_000


def _segments(count: int) -> list[Segment]:
    """Of ten records each."""
    return [
        Segment(
            batches=tuple(
                Batch(
                    base_offset=first + at,
                    records=tuple(Record(timestamp_ms=START_MS + first + at + each) for each in range(5)),
                )
                for at in (0, 5)
            )
        )
        for first in range(0, 10 * count, 10)
    ]


class Followed:
    """An archive, its warehouse, and a stream that appends what it reads to a table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.archive = folder / "archive"
        self.batch_sizes: list[int] = []

    def grow(self, *counts: int, log_start: int = 0) -> Warehouse:
        """So many segments of each partition are archived now, and indexed."""
        write_archive(self.archive, {place: _segments(count) for place, count in zip(ORDERS, counts, strict=False)})
        log_starts = self.folder / "log_starts.csv"
        with log_starts.open("w", newline="") as file:
            csv.writer(file).writerows([("topic", "partition", "log_start_offset"), ("orders", 0, log_start)])
        return run_pipeline(self.spark, self.archive, self.folder / "warehouse", log_start_offsets=log_starts)

    def follow(self, **options: object) -> list[tuple[int, int]]:
        """Runs the stream until it has what there is; all that it wrote so far, in order."""
        register_source(self.spark, {"warehouse.uri": str(self.folder / "warehouse"), "archive.uri": str(self.archive)})
        reading = self.spark.readStream.format("coldlog").option("subscribe", "orders")
        for name, value in options.items():
            reading = reading.option(name, str(value))
        writing = reading.load().select("partition", "offset").writeStream.format("delta")
        query = (
            writing.option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.folder / "sink"))
        )
        query.awaitTermination()
        self.batch_sizes = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        rows = self.spark.read.format("delta").load(str(self.folder / "sink")).collect()
        return sorted((row["partition"], row["offset"]) for row in rows)

    def options(self, **given: object) -> SourceOptions:
        places = {"warehouse.uri": str(self.folder / "warehouse"), "archive.uri": str(self.archive)}
        return read_options(
            {**places, "subscribe": "orders", **{name.lower(): str(value) for name, value in given.items()}},
            is_stream=True,
        )


@pytest.fixture
def followed(spark: SparkSession, tmp_path: Path) -> Followed:
    return Followed(spark, tmp_path)


def _offsets(*ends: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, end in enumerate(ends) for offset in range(end)]


def test_what_is_uploaded_comes_once_and_new_partitions_with_it(followed: Followed) -> None:
    followed.grow(2, 1)
    assert followed.follow(startingOffsets="earliest", maxOffsetsPerTrigger=15) == _offsets(20, 10)
    assert len(followed.batch_sizes) > 1
    assert max(followed.batch_sizes) <= 17, "shared out and rounded up"
    assert followed.follow(startingOffsets="earliest") == _offsets(20, 10), "nothing twice"
    followed.grow(4, 1, 2)
    assert followed.follow(startingOffsets="earliest") == _offsets(40, 10, 20)
    assert followed.batch_sizes == [40], "what is new, at once"


def test_a_stream_begins_at_the_end_like_kafkas_and_goes_on_where_it_stood(followed: Followed) -> None:
    followed.grow(2)
    options = followed.options()
    begun = initial_position(options)
    assert begun == {"orders": {"0": 20}}
    assert latest_position(options, begun) == begun
    assert plan_micro_batch(options, begun, begun) == []
    followed.grow(3, 2)
    reached = latest_position(options, begun)
    assert reached == {"orders": {"0": 30, "1": 20}}
    tasks = plan_micro_batch(options, begun, reached)
    read = [
        (task.partition, piece.bounds.from_offset, piece.bounds.to_offset) for task in tasks for piece in task.pieces
    ]
    assert read == [(0, 20, 29), (1, 0, 9), (1, 10, 19)]
    target: Position = {"orders": {"0": 25}}
    assert latest_position(options, begun, target=target) == target, "what came later is for the next run"


def test_offsets_that_expired_before_they_were_read_are_lost_data(followed: Followed) -> None:
    followed.grow(4, log_start=30)
    begun: Position = {"orders": {"0": 10}}
    reached = latest_position(followed.options(), begun)
    assert reached == {"orders": {"0": 40}}
    with pytest.raises(UsageError, match="10 to 29 lie below the log start"):
        plan_micro_batch(followed.options(), begun, reached)
    (task,) = plan_micro_batch(followed.options(failOnDataLoss="false"), begun, reached)
    assert [(piece.bounds.from_offset, piece.bounds.to_offset) for piece in task.pieces] == [(30, 39)]


def test_an_archive_that_ends_before_the_stream_is_told(followed: Followed) -> None:
    followed.grow(2)
    further: Position = {"orders": {"0": 35}}
    with pytest.raises(UsageError, match="orders-0, which ends at 20, from 35 on; was a topic made anew"):
        latest_position(followed.options(), further)
    patient = followed.options(failOnDataLoss="false")
    assert latest_position(patient, further) == further
    assert plan_micro_batch(patient, further, further) == []


def test_a_stream_has_no_end(followed: Followed) -> None:
    for name, value in (("endingOffsets", "latest"), ("endingTimestamp", 5), ("endingOffsetsByTimestamp", "{}")):
        with pytest.raises(UsageError, match=f"{name} makes no sense for a stream"):
            followed.options(**{name: value})
