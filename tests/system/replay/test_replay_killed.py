"""Test replay_topics as a user starts it; its processes are killed (SIGKILL) at moments that its files show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.replay.order import Head
from coldlog.replay.runs.replay_state import ReplayState, ReplayStates
from coldlog.tables.delta.locations import spark_uri
from coldlog.tables.delta.table_storage import delta_storage_options
from contents.merged_logs import iter_merged
from damage.killed_jobs import PATIENCE_S, kill_session, start_job, wait_until
from planning import ASSIGNMENTS_FOR_SMALL_TABLES
from servers.s3_server import Bucket
from worlds.golden_warehouse import run_pipeline

START_MS = 1_700_000_000_000
Row = tuple[int, str, int, int]
"""Sequence, topic, partition, offset."""
FIRST = {
    0: [START_MS + 10 * at + 170 * (at % 7) for at in range(200)],
    1: [START_MS + 14 * at + 230 * (at % 5) for at in range(150)] + [START_MS + 100_000],
}
LATE = [START_MS + 3_500, START_MS + 4_000]
"""Of partition 0, archived when the others have been replayed."""
FIRST_COMMIT = f"_delta_log/{0:020d}.json"


def _write(archive: Path, logs: dict[int, list[int]]) -> None:
    write_archive(
        archive,
        {
            TopicPartition(topic="trades", partition=number): [
                Segment(
                    batches=tuple(
                        Batch(
                            base_offset=base,
                            records=tuple(Record(timestamp_ms=at, value=b"v") for at in times[base : base + 10]),
                        )
                        for base in range(first, min(first + 100, len(times)), 10)
                    )
                )
                for first in range(0, len(times), 100)
            ]
            for number, times in logs.items()
        },
    )


def _expected() -> list[Row]:
    heads: dict[tuple[str, int], list[Head]] = {
        ("trades", number): [(at, offset) for offset, at in enumerate(times)] for number, times in FIRST.items()
    }
    return [(number, *place, offset) for number, (place, (_, offset)) in enumerate(iter_merged(heads))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The replay `nightly` of all trades into a table, from one warehouse."""

    folder: Path

    @property
    def archive(self) -> Path:
        return self.folder / "archive"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def sink(self) -> Path:
        return self.folder / "sink"

    def arguments(self, sink: str) -> list[str]:
        places = f"archive.uri={self.archive}", f"warehouse.uri={self.warehouse}"
        settings = *places, "spark.sql.shuffle.partitions=2", *ASSIGNMENTS_FOR_SMALL_TABLES
        options = [word for setting in settings for word in ("--set", setting)]
        replay = ["--topics", "trades", "--name", "nightly", "--output-table", sink]
        return [*replay, "--max-task-idle-ms", "500", *options]

    def run(self, sink: str = "") -> str:
        """Run it to its end; return what it prints."""
        with start_job("replay_topics", self.arguments(sink or str(self.sink)), folder=self.folder) as run:
            code = run.wait(timeout=PATIENCE_S)
        printed = (self.folder / "stderr").read_text(encoding="utf-8")
        assert code == 0, printed
        return printed + (self.folder / "stdout").read_text(encoding="utf-8")

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        """Start it, and kill driver, JVM and workers at that moment."""
        with start_job("replay_topics", self.arguments(str(self.sink)), folder=self.folder) as run:
            wait_until(lambda: is_time() or run.poll() is not None, every_s=0.002)
            assert run.poll() is None, (self.folder / "stderr").read_text(encoding="utf-8")
            kill_session(run)

    def has_file(self) -> bool:
        return any(self.sink.glob("*.parquet"))

    def is_committed(self) -> bool:
        return (self.sink / FIRST_COMMIT).exists()

    def state(self) -> ReplayState:
        state = ReplayStates.of_warehouse(str(self.warehouse)).read("nightly")
        assert state is not None
        return state

    def rows(self, sink: str = "") -> list[Row]:
        place = spark_uri(sink or str(self.sink))
        table = deltalake.DeltaTable(place, storage_options=delta_storage_options(place))
        rows = table.to_pyarrow_dataset().to_table().to_pylist()
        return sorted((row["sequence"], row["topic"], row["partition"], row["offset"]) for row in rows)


@pytest.fixture
def replay(spark: SparkSession, tmp_path: Path) -> Replay:
    _write(tmp_path / "archive", FIRST)
    run_pipeline(spark, tmp_path / "archive", tmp_path / "warehouse")
    return Replay(folder=tmp_path)


@pytest.mark.timeout(900)
def test_replay_that_was_killed_while_it_wrote_has_each_record_once_and_in_order(
    replay: Replay, spark: SparkSession
) -> None:
    """Before it writes and after its commit, runs die in tests/spark/replay/test_replay.py."""
    replay.kill_when(replay.has_file)
    assert (replay.state().is_planned, replay.is_committed()) == (True, False)
    # Segments archived meanwhile are not part of the repeated run.
    _write(replay.archive, {**FIRST, 0: FIRST[0] + LATE})
    run_pipeline(spark, replay.archive, replay.warehouse)
    assert "run 1 repeated, because it had not ended" in replay.run()
    expected = _expected()
    assert replay.rows() == expected
    printed = replay.run()
    assert "enforced_processing: waited in vain for 1 partitions (trades-1)" in printed
    assert "2 late, by at most 96,500 ms" in printed
    assert f"2 records in table {replay.sink}" in printed
    assert replay.rows() == [*expected, *((len(expected) + at, "trades", 0, 200 + at) for at in range(2))]
    assert len(list((replay.sink / "_delta_log").glob("*.json"))) == 2, "a commit a run"


def test_table_in_a_bucket_is_written_with_a_warehouse_in_a_folder(replay: Replay, bucket: Bucket) -> None:
    sink = bucket.uri("lake/replayed")
    printed = replay.run(sink)
    assert f"351 records in table {spark_uri(sink)}" in printed
    assert replay.rows(sink) == _expected()
