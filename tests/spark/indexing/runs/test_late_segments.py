"""Test that a segment which comes late is known to the segments after it."""

from __future__ import annotations

import io
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment, abort_marker
from coldlog.indexing.pipeline import run_pipeline
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.runtime.spark.late_session import LateSession
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.segments import SEGMENTS

PARTITION = TopicPartition(topic="orders", partition=0)


def _never() -> SparkSession:
    pytest.fail("this run starts Spark")


def _run(archive: Path, location: Path) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the status of each segment, and the aborted transactions."""
    assignments = [f"archive.uri={archive}", f"warehouse.uri={location}", "build.max_quarantined_share=1"]
    late = LateSession({"spark.master": "local[2]"}, _never)
    console = Console(progress=io.StringIO(), results=io.StringIO())
    settings = load_settings("local", assignments)
    run_pipeline(Job(spark=late.as_session(), settings=settings, arguments=Namespace(), console=console))
    segments, aborts = (
        DeltaTable(str(location / table.name)).to_pyarrow_table().to_pylist() for table in (SEGMENTS, TXN_INDEX)
    )
    segments.sort(key=lambda row: row["start_offset"])
    return [row["index_status"] for row in segments], [(row["first_offset"], row["last_offset"]) for row in aborts]


def _batch(offset: int, *, is_transactional: bool = False) -> Batch:
    return Batch(
        base_offset=offset,
        records=(Record(timestamp_ms=offset),),
        is_transactional=is_transactional,
        producer_id=7 if is_transactional else -1,
        producer_epoch=0 if is_transactional else -1,
        base_sequence=0 if is_transactional else -1,
    )


@pytest.mark.parametrize(
    ("has_records", "late_suffixes", "before", "aborts"),
    [
        (True, (".log", ".snapshot", ".index", ".timeindex", ".leader_epoch_checkpoint"), "indexed", [(3, 5)]),
        (False, (".log", ".snapshot"), "quarantined", []),
    ],
)
def test_where_a_transaction_began_is_found_when_that_segment_comes(
    has_records: bool, late_suffixes: tuple[str, ...], before: str, aborts: list[tuple[int, int]], tmp_path: Path
) -> None:
    """The transaction index of the last segment is lost, or it has none because its aborted transaction is empty."""
    marker = abort_marker(offset=5, timestamp_ms=5, producer_id=7, producer_epoch=0, leader_epoch=0)
    segments = [
        Segment(batches=(_batch(0), _batch(1))),
        Segment(batches=(_batch(2), _batch(3, is_transactional=has_records))),
        Segment(batches=(_batch(4), marker, _batch(6))),
    ]
    archive = tmp_path / "archive"
    _, late, last = write_archive(archive, {PARTITION: segments})
    Path(f"{last.stem}.txnindex").unlink(missing_ok=True)
    for suffix in late_suffixes:
        shutil.move(f"{late.stem}{suffix}", tmp_path / suffix)
    assert _run(archive, tmp_path / "grown")[0][-1] == before
    for suffix in late_suffixes:
        shutil.move(tmp_path / suffix, f"{late.stem}{suffix}")
    assert _run(archive, tmp_path / "grown") == (["indexed"] * 3, aborts)
    assert _run(archive, tmp_path / "anew") == (["indexed"] * 3, aborts)
