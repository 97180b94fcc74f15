"""Test a stream over a growing archive: new records are read once, wherever the stream was stopped."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker
from coldlog.errors import UsageError
from coldlog.records.source.datasource import register_source
from coldlog.records.source.options import SourceOptions, read_options
from coldlog.records.source.streaming import Position, initial_position, latest_position, plan_micro_batch
from coldlog.tables.delta.warehouse import Warehouse
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
        """Archive and index more segments, until each partition has so many."""
        return self.upload(*(_segments(count) for count in counts), log_start=log_start)

    def upload(self, *logs: list[Segment], log_start: int = 0) -> Warehouse:
        """Archive and index these segments of each partition."""
        write_archive(self.archive, dict(zip(ORDERS, logs, strict=False)))
        log_starts = self.folder / "log_starts.csv"
        with log_starts.open("w", newline="") as file:
            csv.writer(file).writerows([("topic", "partition", "log_start_offset"), ("orders", 0, log_start)])
        return run_pipeline(self.spark, self.archive, self.folder / "warehouse", log_start_offsets=log_starts)

    def follow(self, **options: object) -> list[tuple[int, int]]:
        """Run the stream until it has read everything; return all that it has written, in order."""
        query = self.writing(**options).trigger(availableNow=True).start(str(self.folder / "sink"))
        query.awaitTermination()
        self.batch_sizes = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        return self.written()

    def writing(self, **options: object) -> DataStreamWriter:
        """Return the stream, ready to start."""
        register_source(self.spark, {"warehouse.uri": str(self.folder / "warehouse"), "archive.uri": str(self.archive)})
        reading = self.spark.readStream.format("coldlog").option("subscribe", "orders")
        for name, value in options.items():
            reading = reading.option(name, str(value))
        writing = reading.load().select("partition", "offset").writeStream.format("delta")
        return writing.option("checkpointLocation", str(self.folder / "checkpoint"))

    def written(self) -> list[tuple[int, int]]:
        """Return all that the stream has written, in order."""
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


def test_uploaded_records_and_new_partitions_are_read_once(followed: Followed) -> None:
    followed.grow(2, 1)
    assert followed.follow(startingOffsets="earliest", maxOffsetsPerTrigger=15) == _offsets(20, 10)
    assert len(followed.batch_sizes) > 1
    assert max(followed.batch_sizes) <= 17, "shared out and rounded up"
    assert followed.follow(startingOffsets="earliest") == _offsets(20, 10), "nothing twice"
    followed.grow(4, 1, 2)
    assert followed.follow(startingOffsets="earliest") == _offsets(40, 10, 20)
    assert followed.batch_sizes == [40], "what is new, at once"


def test_running_stream_reads_segments_that_are_uploaded_meanwhile(followed: Followed) -> None:
    followed.grow(1)
    writing = followed.writing(startingOffsets="earliest").trigger(processingTime="1 second")
    query = writing.start(str(followed.folder / "sink"))
    try:
        for counts in ((1,), (3, 1)):
            followed.grow(*counts)
            expected, until = _offsets(*(10 * count for count in counts)), time.monotonic() + 240
            while not query.recentProgress or followed.written() != expected:
                assert query.isActive, query.exception()
                assert time.monotonic() < until, "waited in vain"
                time.sleep(0.5)
    finally:
        query.stop()


def _transactional(first: int, count: int, producer_id: int) -> Batch:
    return Batch(
        base_offset=first,
        records=tuple(Record(timestamp_ms=START_MS, value=b"v") for _ in range(count)),
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=first,
    )


def test_records_of_an_open_transaction_are_read_when_its_end_is_uploaded(followed: Followed) -> None:
    committed = {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    plain = [Batch(base_offset=offset, records=(Record(timestamp_ms=START_MS),)) for offset in (0, 5)]
    ended = {"timestamp_ms": START_MS, "producer_epoch": 0, "leader_epoch": 0}
    first = Segment(batches=(plain[0], _transactional(1, 2, 7), _transactional(3, 2, 8)))
    second = Segment(
        batches=(
            plain[1],
            abort_marker(offset=6, producer_id=8, **ended),
            _transactional(7, 1, 7),
            commit_marker(offset=8, producer_id=7, **ended),
        )
    )
    followed.upload([first])
    assert followed.follow(**committed) == [(0, 0)]
    followed.upload([first, second])
    assert followed.follow(**committed) == [(0, offset) for offset in (0, 1, 2, 5, 7)]


def test_stream_begins_at_the_end_like_kafkas_and_continues_at_its_position(followed: Followed) -> None:
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
    with pytest.raises(UsageError, match="10 to 29 are below the log start"):
        plan_micro_batch(followed.options(), begun, reached)
    (task,) = plan_micro_batch(followed.options(failOnDataLoss="false"), begun, reached)
    assert [(piece.bounds.from_offset, piece.bounds.to_offset) for piece in task.pieces] == [(30, 39)]


def test_archive_that_ends_before_the_streams_position_is_reported(followed: Followed) -> None:
    followed.grow(2)
    further: Position = {"orders": {"0": 35}}
    with pytest.raises(
        UsageError, match="maybe because a topic was created again: orders-0 ends at 20, the stream continues at 35"
    ):
        latest_position(followed.options(), further)
    patient = followed.options(failOnDataLoss="false")
    assert latest_position(patient, further) == further
    assert plan_micro_batch(patient, further, further) == []


def test_partitions_that_the_options_no_longer_name_are_reported_as_such(followed: Followed) -> None:
    followed.grow(2)
    begun: Position = {"orders": {"0": 15}, "payments": {"0": 5}}
    with pytest.raises(UsageError, match="partitions that its options or the archive no longer have: payments-0. Use"):
        latest_position(followed.options(), begun)
    patient = followed.options(failOnDataLoss="false")
    reached = latest_position(patient, begun)
    assert reached == {"orders": {"0": 20}, "payments": {"0": 5}}
    assert len(plan_micro_batch(patient, begun, reached)) == 1


def test_ending_options_are_refused_for_a_stream(followed: Followed) -> None:
    for name, value in (("endingOffsets", "latest"), ("endingTimestamp", 5), ("endingOffsetsByTimestamp", "{}")):
        with pytest.raises(UsageError, match=f"{name} is not possible for a stream"):
            followed.options(**{name: value})
