"""Test that a damaged warehouse is made anew from the archive, also if the job was killed, and loses no log start."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.errors import ColdlogError
from coldlog.indexing.pipeline import run_pipeline
from coldlog.reader import OffsetReader
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.replay_positions import REPLAY_POSITIONS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.rebuild import set_tables_aside
from planning import planned_for_small_tables
from worlds.golden_warehouse import golden_queries, is_true_answer
from worlds.kafka_sample import KAFKA_SAMPLE

(PACKED,) = (Path(__file__).parents[2] / "golden" / "warehouses").glob("*.tar.gz")
PARTITIONS = (("payments", 1), ("records-deleted", 0))
LOG_START = 100
POSITION: dict[str, object] = {
    "replay": "audit",
    "topic": "payments",
    "partition": 1,
    "topic_id": "AAAAAAAAAAAAAAAAAAAAAA",
    "replay_id": "r",
    "sink": "files",
    "rules": "timestamp",
    "run": 3,
    "is_planned": False,
    "from_offset": 7,
    "until_offset": 7,
    "task": 0,
    "task_next_sequence": 7,
}


class Killed(BaseException):
    """The process ends here."""


def test_damaged_warehouse_is_made_anew_after_a_kill_and_keeps_what_only_it_knows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = tmp_path / "warehouse"
    with tarfile.open(PACKED) as files:
        files.extractall(warehouse, filter="data")
    for topic, partition in PARTITIONS:
        (found,) = (KAFKA_SAMPLE / "archive").rglob(f"{topic}-{partition}-*/")
        shutil.copytree(found, tmp_path / "archive" / found.relative_to(KAFKA_SAMPLE / "archive"))
    supplied: list[dict[str, object]] = [{"topic": "payments", "partition": 1, "log_start_offset": LOG_START}]
    opened = Warehouse(spark=spark, uri=str(warehouse))
    opened.append(LOG_START_OFFSETS, opened.local(LOG_START_OFFSETS, supplied))
    positions = SmallTable(uri=str(warehouse), table=REPLAY_POSITIONS)
    stored = positions.change(lambda _: [POSITION])
    max((warehouse / "offset_index" / "_delta_log").glob("*.json")).write_bytes(b"")
    settings = load_settings("local", [f"archive.uri={tmp_path / 'archive'}", f"warehouse.uri={warehouse}"])
    job = PlainJob(settings=settings, arguments=argparse.Namespace(give_up=[]), console=_console())

    def run() -> None:
        with planned_for_small_tables(spark):
            run_pipeline(Job(spark=spark, settings=settings, arguments=argparse.Namespace(), console=_console()))

    with pytest.raises(ColdlogError, match=r"offset_index.* is empty; .*rebuild_tables"):
        run()
    _kill_at_rename(4, monkeypatch)
    with pytest.raises(Killed):
        set_tables_aside(job)
    monkeypatch.undo()
    with pytest.raises(ColdlogError, match="no table offset_index, .*rebuild_tables"):
        run()
    set_tables_aside(job)
    run()
    assert positions.read() == stored
    with OffsetReader(warehouse) as reader:
        assert reader.earliest_offset("payments", 1) == LOG_START
        queries = [each for each in golden_queries() if (each["topic"], each["partition"]) == PARTITIONS[1]]
        asked = [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in queries]
        answers = reader.list_offsets(asked)
    assert len(queries) > 10
    assert all(is_true_answer(*pair, broker_compatible=False) for pair in zip(queries, answers, strict=True))


def _kill_at_rename(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    renames, rename = iter(range(1, 100)), os.rename

    def cut(source: str, target: str) -> None:
        if next(renames) == number:
            raise Killed
        rename(source, target)

    monkeypatch.setattr(os, "rename", cut)


def _console() -> Console:
    return Console(progress=io.StringIO(), results=io.StringIO())
