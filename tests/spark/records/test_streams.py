"""Test a stream over a growing archive: new records are read once, wherever the stream was stopped."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from coldlog.errors import UsageError
from coldlog.records.source import datasource
from coldlog.records.source.datasource import UnlimitedStreamReader, register_source
from coldlog.records.source.options import SourceOptions, read_options
from coldlog.records.source.read_tasks import ReadTask
from coldlog.records.source.stream_positions import Position, StreamPosition, read_position
from coldlog.records.source.streaming import initial_position, latest_position, plan_micro_batch
from coldlog.runtime.spark.spark_versions import SERIES, SparkSeries
from worlds.staged_archive import (
    EXPIRED_BELOW,
    RECREATED,
    RECREATED_LATER,
    STREAMED,
    STREAMED_LATER,
    show_stage,
)


class Followed:
    """An archive at some stage, and a stream that appends what it reads of a topic to a table."""

    def __init__(self, spark: SparkSession, folder: Path, stages: list[Path]) -> None:
        self.spark, self.folder, self.stages = spark, folder, stages
        self.topic = "stream"
        self.batch_sizes: list[int] = []
        self.come_to(0)

    def come_to(self, stage: int) -> None:
        """Switch to the archive of this stage."""
        show_stage(self.folder / "now", self.stages[stage])

    @property
    def places(self) -> dict[str, str]:
        now = self.folder / "now"
        return {"warehouse.uri": str(now / "warehouse"), "archive.uri": str(now / "archive")}

    def follow(self, **options: object) -> list[tuple[int, int]]:
        """Run the stream until it has read everything; return all that it has written, in order."""
        query = self.writing(**options).trigger(availableNow=True).start(str(self.folder / "sink"))
        query.awaitTermination()
        self.batch_sizes = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        return self.written()

    def writing(self, **options: object) -> DataStreamWriter:
        """Return the stream, ready to start."""
        register_source(self.spark, self.places)
        reading = self.spark.readStream.format("coldlog").option("subscribe", self.topic)
        for name, value in options.items():
            reading = reading.option(name, str(value))
        writing = reading.load().select("partition", "offset").writeStream.format("delta")
        return writing.option("checkpointLocation", str(self.folder / "checkpoint"))

    def written(self) -> list[tuple[int, int]]:
        """Return all that the stream has written, in order; read without Spark."""
        rows = DeltaTable(self.folder / "sink").to_pyarrow_table()
        return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))

    def offset_files(self) -> list[Path]:
        """Return the files of the checkpoint with the position after each micro-batch; its last line is that."""
        files = (self.folder / "checkpoint" / "offsets").glob("[0-9]*")
        return sorted(files, key=lambda file: int(file.name))

    def position(self) -> Position:
        """Return the position in the checkpoint."""
        position: Position = json.loads(self.offset_files()[-1].read_text().splitlines()[-1])
        return position

    def forget_topic_ids(self) -> None:
        """Make the checkpoint one of an older release."""
        for file in self.offset_files():
            *first, position = file.read_text().splitlines()
            file.write_text("\n".join([*first, json.dumps(_without_ids(json.loads(position)))]))
            file.with_name(f".{file.name}.crc").unlink()

    def options(self, **given: object) -> SourceOptions:
        named = {name.lower(): str(value) for name, value in given.items()}
        return read_options({**self.places, "subscribe": self.topic, **named}, is_stream=True)


@pytest.fixture
def followed(spark: SparkSession, tmp_path: Path, stages: list[Path]) -> Followed:
    return Followed(spark, tmp_path, stages)


def _offsets(*ends: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, end in enumerate(ends) for offset in range(end)]


def _without_ids(position: Position) -> Position:
    return StreamPosition(offsets=read_position(position).offsets).entries()


def _bounds(tasks: list[ReadTask]) -> list[tuple[int, int, int]]:
    pieces = ((task.partition, piece.bounds) for task in tasks for piece in task.pieces)
    return [(partition, bounds.from_offset, bounds.to_offset) for partition, bounds in pieces]


def test_uploaded_records_and_new_partitions_are_read_once(followed: Followed, series: SparkSeries) -> None:
    limit = {"maxOffsetsPerTrigger": 15} if series.limits_streams else {}
    assert followed.follow(startingOffsets="earliest", **limit) == _offsets(*STREAMED)
    if series.limits_streams:
        assert len(followed.batch_sizes) > 1
        assert max(followed.batch_sizes) <= 17, "shared out and rounded up"
    else:
        assert followed.batch_sizes == [sum(STREAMED)]
    assert followed.follow(startingOffsets="earliest") == _offsets(*STREAMED), "nothing twice"
    followed.come_to(1)
    assert followed.follow(startingOffsets="earliest") == _offsets(*STREAMED_LATER)
    assert followed.batch_sizes == [40], "what is new, at once"


def test_a_limit_is_refused_where_spark_has_none(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasource, "installed_series", lambda: SERIES["4.1"])
    with pytest.raises(Exception, match="maxOffsetsPerTrigger needs Spark 4.2: leave it out"):
        followed.follow(startingOffsets="earliest", maxOffsetsPerTrigger=15)


def test_running_stream_reads_segments_that_are_uploaded_meanwhile(followed: Followed) -> None:
    writing = followed.writing(startingOffsets="earliest").trigger(processingTime="1 second")
    query = writing.start(str(followed.folder / "sink"))
    try:
        for stage, counts in enumerate((STREAMED, STREAMED_LATER)):
            followed.come_to(stage)
            until = time.monotonic() + 240
            while not query.recentProgress or followed.written() != _offsets(*counts):
                assert query.isActive, query.exception()
                assert time.monotonic() < until, "waited in vain"
                time.sleep(0.5)
    finally:
        query.stop()


def test_records_of_an_open_transaction_are_read_when_its_end_is_uploaded(followed: Followed) -> None:
    followed.topic = "stream-transactions"
    committed = {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    assert followed.follow(**committed) == [(0, 0)]
    followed.come_to(1)
    assert followed.follow(**committed) == [(0, offset) for offset in (0, 1, 2, 5, 7)]


def test_stream_begins_at_the_end_like_kafkas_and_continues_at_its_position(followed: Followed) -> None:
    options = followed.options()
    begun = initial_position(options)
    assert _without_ids(begun) == {"stream": {"0": 20, "1": 10}}
    assert latest_position(options, begun) == begun
    assert plan_micro_batch(options, begun, begun) == []
    followed.come_to(1)
    reached = latest_position(options, begun)
    assert _without_ids(reached) == {"stream": {"0": 40, "1": 10, "2": 20}}
    tasks = plan_micro_batch(options, begun, reached)
    assert _bounds(tasks) == [(0, 20, 29), (0, 30, 39), (2, 0, 9), (2, 10, 19)]
    target: Position = {"stream": {"0": 25, "1": 10}}
    read = latest_position(options, begun, target=target)
    assert _without_ids(read) == target, "what came later is for the next run"


def test_offsets_that_expired_before_they_were_read_are_lost_data(followed: Followed) -> None:
    followed.topic = "stream-expired"
    begun: Position = {"stream-expired": {"0": 10}}
    reached = latest_position(followed.options(), begun)
    assert _without_ids(reached) == {"stream-expired": {"0": 40}}
    with pytest.raises(UsageError, match="10 to 29 are below the log start"):
        plan_micro_batch(followed.options(), begun, reached)
    (task,) = plan_micro_batch(followed.options(failOnDataLoss="false"), begun, reached)
    assert [(piece.bounds.from_offset, piece.bounds.to_offset) for piece in task.pieces] == [(EXPIRED_BELOW, 39)]


def test_new_partition_that_does_not_begin_at_offset_0_is_lost_data(followed: Followed) -> None:
    followed.topic = "stream-expired"
    reached = latest_position(followed.options(), {})
    assert _without_ids(reached) == {"stream-expired": {"0": 40}}
    with pytest.raises(
        UsageError, match="new to the stream do not begin at offset 0, .*: stream-expired-0 at 30; fail"
    ):
        plan_micro_batch(followed.options(), {}, reached)
    (task,) = plan_micro_batch(followed.options(failOnDataLoss="false"), {}, reached)
    assert [(piece.bounds.from_offset, piece.bounds.to_offset) for piece in task.pieces] == [(EXPIRED_BELOW, 39)]


def test_run_whose_target_is_before_its_position_reads_nothing(followed: Followed) -> None:
    """Spark asks for the target first, and then where a stream without a checkpoint begins."""
    target = latest_position(followed.options(), {})
    followed.come_to(1)
    begun = initial_position(followed.options())
    assert latest_position(followed.options(), begun, target=target) == begun != target


def test_archive_that_ends_before_the_streams_position_is_reported(followed: Followed) -> None:
    further: Position = {"stream": {"0": 35, "1": 10}}
    with pytest.raises(
        UsageError, match="maybe because a topic was created again: stream-0 ends at 20, the stream continues at 35"
    ):
        latest_position(followed.options(), further)
    patient = followed.options(failOnDataLoss="false")
    assert _without_ids(latest_position(patient, further)) == further
    assert plan_micro_batch(patient, further, further) == []


def test_topic_that_was_created_again_is_lost_data_however_long_it_is(followed: Followed) -> None:
    followed.topic = "stream-recreated"
    every = {"startingOffsets": "earliest"}
    assert followed.follow(**every) == _offsets(RECREATED)
    followed.come_to(1)
    with pytest.raises(Exception, match=r"created again since .*: stream-recreated-0 \(id \S+, now \S+\). Use another"):
        followed.follow(**every)
    assert followed.written() == _offsets(RECREATED)
    both = sorted(_offsets(RECREATED) + _offsets(RECREATED_LATER))
    assert followed.follow(**every, failOnDataLoss="false") == both, "the new topic from its first offset on"
    assert followed.follow(**every) == both


def test_checkpoint_without_topic_ids_goes_on_and_gets_them(followed: Followed) -> None:
    assert followed.follow(startingOffsets="earliest") == _offsets(*STREAMED)
    followed.forget_topic_ids()
    followed.come_to(1)
    assert followed.follow() == _offsets(*STREAMED_LATER)
    assert sorted(read_position(followed.position()).topic_ids) == [("stream", 0), ("stream", 1), ("stream", 2)]


def test_planned_micro_batch_is_not_read_from_a_topic_that_was_created_again(followed: Followed) -> None:
    """A query that was killed plans its last micro-batch again."""
    followed.topic = "stream-recreated"
    planned = latest_position(followed.options(), {})
    assert len(plan_micro_batch(followed.options(), {}, planned)) == 1
    followed.come_to(1)
    with pytest.raises(UsageError, match="topics were created again since the stream has read them: stream-recreated"):
        plan_micro_batch(followed.options(), {}, planned)
    patient = followed.options(failOnDataLoss="false")
    assert plan_micro_batch(patient, {}, planned) == []
    reached = latest_position(patient, planned, most_offsets=10)
    assert _without_ids(reached) == {"stream-recreated": {"0": 10}}
    assert _bounds(plan_micro_batch(patient, planned, reached)) == [(0, 0, 9)]


def test_stream_without_limits_begins_a_topic_that_was_created_again(followed: Followed) -> None:
    followed.topic = "stream-recreated"
    begun = initial_position(followed.options())
    followed.come_to(1)
    strict = UnlimitedStreamReader(followed.options(), None)
    with pytest.raises(UsageError, match="topics were created again"):
        strict.partitions(begun, strict.latestOffset())
    patient = UnlimitedStreamReader(followed.options(failOnDataLoss="false"), None)
    assert len(patient.partitions(begun, patient.latestOffset())) == 1


def test_stream_without_limits_never_goes_back(followed: Followed) -> None:
    """Before Spark 4.2 a reader has to remember its position itself."""
    patient = UnlimitedStreamReader(followed.options(failOnDataLoss="false"), None)
    strict = UnlimitedStreamReader(followed.options(), None)
    begun = patient.initialOffset()
    followed.come_to(1)
    reached = patient.latestOffset()
    assert reached == strict.latestOffset()
    assert _without_ids(reached) == {"stream": {"0": 40, "1": 10, "2": 20}}
    assert len(patient.partitions(begun, reached)) == len(strict.partitions(begun, reached)) > 0
    followed.come_to(0)
    assert patient.latestOffset() == reached
    with pytest.raises(UsageError, match="no longer have: stream-2"):
        strict.latestOffset()
    started_again = UnlimitedStreamReader(followed.options(failOnDataLoss="false"), None)
    with pytest.raises(UsageError, match="the archive ends before the stream's position in stream-0, stream-2, maybe"):
        started_again.partitions(reached, started_again.latestOffset())


def test_partitions_that_the_options_no_longer_name_are_reported_as_such(followed: Followed) -> None:
    begun: Position = {"stream": {"0": 15, "1": 10}, "payments": {"0": 5}}
    with pytest.raises(UsageError, match="partitions that its options or the archive no longer have: payments-0. Use"):
        latest_position(followed.options(), begun)
    patient = followed.options(failOnDataLoss="false")
    reached = latest_position(patient, begun)
    assert _without_ids(reached) == {"stream": {"0": 20, "1": 10}, "payments": {"0": 5}}
    assert len(plan_micro_batch(patient, begun, reached)) == 1


def test_ending_options_are_refused_for_a_stream(followed: Followed) -> None:
    for name, value in (("endingOffsets", "latest"), ("endingTimestamp", 5), ("endingOffsetsByTimestamp", "{}")):
        with pytest.raises(UsageError, match=f"{name} is not possible for a stream"):
            followed.options(**{name: value})
