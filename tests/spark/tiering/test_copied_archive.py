"""Test that an archive that copy_segments wrote is indexed and answers as the broker did."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.broker_directory import write_broker_directory
from builders.log_directory_writer import HIGH_WATERMARKS, LOG_STARTS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from builders.side_files import build_leader_epoch_checkpoint
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in
from copying_tier import Tier
from worlds.golden_warehouse import golden_queries, is_true_answer, run_pipeline, write_log_start_offsets

TOPICS = {"payments", "late.events", "crashy-upload", "trimmed-by-time"}
"""Of the sample; a run of all takes a minute."""


def _write_aged_orders(logs: Path, first: int, count: int) -> None:
    """Ten offsets a segment; the broker's log begins with that segment."""
    segments = [
        Segment(
            batches=(
                Batch(base_offset=base, records=tuple(Record(timestamp_ms=1_000 + base + at) for at in range(10))),
            ),
            index_interval_bytes=0,
        )
        for base in range(0, 10 * count, 10)
    ]
    shutil.rmtree(logs / "orders-0", ignore_errors=True)
    write_partition(logs, "orders", 0, segments, first=first)
    write_offset_checkpoint(logs / HIGH_WATERMARKS, {("orders", 0): 10 * count})


@pytest.fixture(scope="module")
def copied(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, int]:
    """Partitions of the sample, and orders-0, whose first leader epoch the broker has raised between two copies; and
    how many partitions these are."""
    folder = tmp_path_factory.mktemp("copied")
    tier = Tier(root=folder / "tier")
    segments = write_broker_directory(tier.logs, TOPICS)
    tier.copy()
    _write_aged_orders(tier.logs, first=0, count=3)
    tier.copy()
    _write_aged_orders(tier.logs, first=2, count=4)
    (tier.logs / "orders-0" / "leader-epoch-checkpoint").write_bytes(build_leader_epoch_checkpoint([(0, 20)]))
    write_offset_checkpoint(tier.logs / LOG_STARTS, {("orders", 0): 20})
    assert tier.copy().copied_count == 1
    warehouse = run_pipeline(
        spark,
        tier.archive,
        folder / "warehouse",
        log_start_offsets=write_log_start_offsets(folder / "log_starts.csv"),
        metadata=tier.metadata,
    )
    return warehouse, len({(each["topic"], each["partition"]) for each in segments} | {("orders", 0)})


def test_copied_archive_is_found_whole(copied: tuple[Warehouse, int]) -> None:
    warehouse, partition_count = copied
    for table in (QUARANTINE, UNRECOGNIZED_OBJECTS, DISCREPANCIES):
        assert len(rows_in(warehouse, table)) == 0, table.name
    assert len(rows_in(warehouse, PARTITION_METADATA)) == partition_count


def test_copied_archive_answers_as_the_broker_did(copied: tuple[Warehouse, int]) -> None:
    queries = [query for query in golden_queries() if query["topic"] in TOPICS]
    with OffsetReader(copied[0].uri, LookupOptions()) as reader:
        answers = reader.list_offsets([(q["topic"], q["partition"], q["ts"]) for q in queries])
    wrong = [
        (query, answer)
        for query, answer in zip(queries, answers, strict=True)
        if not is_true_answer(query, answer, broker_compatible=False)
    ]
    assert wrong == []
    assert sum(answer["offset"] is not None for answer in answers) > 1_000


def test_segments_copied_before_the_broker_raised_its_first_leader_epoch_are_served(
    copied: tuple[Warehouse, int],
) -> None:
    (row,) = copied[0].read(PARTITION_METADATA).where("topic = 'orders'").collect()
    assert (row["earliest_offset"], row["latest_tiered_offset"], row["served_segment_count"]) == (0, 29, 3)
