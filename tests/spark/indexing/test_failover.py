"""Test the whole pipeline on overlapping uploads of a deposed leader and its successor."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.metadata_topic import FINISHED, became, started, values_of, write_topic
from builders.segment_builder import Batch, Record, Segment
from builders.side_files import build_leader_epoch_checkpoint
from coldlog.formats.kafka.remote_log_events import Event
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.rows import requests_from_rows
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from golden_warehouse import run_pipeline

ORDERS = TopicPartition(topic="orders", partition=0)
Answer = tuple[int, int, int] | None
"""Offset, timestamp, leader epoch."""
DIVERGED_MS, NEW_LEADER_MS = 100_000, 200_000


def _batches(first: int, last: int, *, epoch: int, shift_ms: int = 0) -> tuple[Batch, ...]:
    """Batches of five records from offset `first` to `last`; the timestamp is the offset plus `shift_ms`."""
    return tuple(
        Batch(
            base_offset=base,
            records=tuple(Record(timestamp_ms=shift_ms + base + at, value=b"v") for at in range(5)),
            leader_epoch=epoch,
        )
        for base in range(first, last, 5)
    )


COMMON = _batches(0, 50, epoch=0)
DEPOSED = Segment(batches=(*COMMON, *_batches(50, 100, epoch=0, shift_ms=DIVERGED_MS)), index_interval_bytes=0)
SUCCESSOR = Segment(batches=(*COMMON[8:], *_batches(50, 120, epoch=1, shift_ms=NEW_LEADER_MS)), index_interval_bytes=0)
LINEAGE = [(0, 0), (1, 50)]


def _archive(directory: Path) -> list[WrittenSegment]:
    """Each leader's checkpoint holds the lineage of its own log."""
    written = write_archive(directory, {ORDERS: [DEPOSED, SUCCESSOR]})
    checkpoint = written[1].stem.with_name(written[1].stem.name + ".leader_epoch_checkpoint")
    checkpoint.write_bytes(build_leader_epoch_checkpoint(LINEAGE))
    return written


def _ask(warehouse: Warehouse, timestamps_ms: list[int], *, broker_compatible: bool) -> list[Answer]:
    requests = requests_from_rows([("orders", 0, time_ms) for time_ms in timestamps_ms])
    answers = find_offsets_for_timestamps(
        warehouse, requests, LookupOptions(broker_compatible=broker_compatible)
    ).to_pylist()
    return [
        None if row["offset"] is None else (row["offset"], row["offset_timestamp_ms"], row["leader_epoch"])
        for row in answers
    ]


def _log_of_the_lineage() -> list[tuple[int, int, int]]:
    records = [record for batch in (*COMMON, *SUCCESSOR.batches[2:]) for record in batch.placed_records]
    return [(record.offset, record.timestamp_ms, record.leader_epoch) for record in records]


def _first(records: list[tuple[int, int, int]], timestamp_ms: int) -> Answer:
    return next((record for record in records if record[1] >= timestamp_ms), None)


@pytest.mark.parametrize("order", ["deposed leader finished first", "successor finished first", "no events"])
def test_each_offset_is_served_once_with_the_record_of_the_lineage(
    spark: SparkSession, tmp_path: Path, order: str
) -> None:
    written = _archive(tmp_path / "archive")
    topic = None
    if order != "no events":
        begun: list[Event] = [started(written[0]), started(written[1])]
        copied = became(written[0], FINISHED) + became(written[1], FINISHED)
        events = begun + (copied if order.startswith("deposed") else copied[::-1])
        topic = write_topic(tmp_path / "topic", {0: values_of(events)})
    warehouse = run_pipeline(spark, tmp_path / "archive", tmp_path / "warehouse", metadata=topic)

    rows = {row["start_offset"]: row for row in warehouse.read(SEGMENTS).collect()}
    served = {at: (row["served_from_offset"], row["served_to_offset"]) for at, row in rows.items()}
    assert served == {0: (0, 39), 40: (40, 119)}
    assert {at: row["is_within_lineage"] for at, row in rows.items()} == {0: False, 40: True}
    assert [each["leader_epoch"] for each in rows[40]["segment_leader_epochs"]] == [0, 1]
    (partition,) = warehouse.read(PARTITION_METADATA).collect()
    assert (partition["earliest_offset"], partition["latest_tiered_offset"], partition["gap_count"]) == (0, 119, 0)
    assert (partition["max_timestamp_ms"], partition["max_timestamp_offset"]) == (NEW_LEADER_MS + 119, 119)
    lineage = [(each["leader_epoch"], each["start_offset"]) for each in partition["leader_epoch_lineage"]]
    assert lineage == LINEAGE

    log = _log_of_the_lineage()
    assert [offset for offset, _, _ in log] == list(range(120))
    asked = sorted({time + shift for _, time, _ in log for shift in (0, 1)} | {DIVERGED_MS + at for at in (0, 50, 99)})
    assert _ask(warehouse, asked, broker_compatible=False) == [_first(log, time) for time in asked]
    # A broker passes over the deposed leader's segment as a whole.
    assert _ask(warehouse, asked, broker_compatible=True) == [_first(log[40:], time) for time in asked]


def test_diverged_records_are_not_served_although_the_successors_upload_is_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Offsets 50 to 69 are a gap: what the deposed leader wrote there was never part of the log."""
    later = Segment(batches=SUCCESSOR.batches[6:], index_interval_bytes=0)
    assert later.start_offset == 70
    written = write_archive(tmp_path / "archive", {ORDERS: [DEPOSED, later]})
    checkpoint = written[1].stem.with_name(written[1].stem.name + ".leader_epoch_checkpoint")
    checkpoint.write_bytes(build_leader_epoch_checkpoint(LINEAGE))
    events = [event for each in written for event in (started(each), *became(each, FINISHED))]
    topic = write_topic(tmp_path / "topic", {0: values_of(events)})
    warehouse = run_pipeline(spark, tmp_path / "archive", tmp_path / "warehouse", metadata=topic)
    rows = warehouse.read(SEGMENTS).orderBy("start_offset").collect()
    assert [(row["served_from_offset"], row["served_to_offset"]) for row in rows] == [(0, 49), (70, 119)]
    assert warehouse.read(PARTITION_METADATA).collect()[0]["gap_count"] == 1
    first_of_successor = (70, NEW_LEADER_MS + 70, 1)
    asked = [0, 49, 50, DIVERGED_MS + 50]
    answers = [(0, 0, 0), (49, 49, 0), first_of_successor, first_of_successor]
    assert _ask(warehouse, asked, broker_compatible=False) == answers


def test_upload_of_a_leader_outside_the_lineage_serves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Epoch 2 is not in the lineage of the log: its leader was cut off, and epoch 3 followed epoch 1."""
    stray = Segment(batches=_batches(60, 100, epoch=2, shift_ms=DIVERGED_MS), index_interval_bytes=0)
    first = Segment(batches=(*COMMON, *_batches(50, 60, epoch=1)), index_interval_bytes=0)
    last = Segment(batches=_batches(60, 80, epoch=3), index_interval_bytes=0)
    written = write_archive(tmp_path / "archive", {ORDERS: [first, stray, last]})
    checkpoint = written[2].stem.with_name(written[2].stem.name + ".leader_epoch_checkpoint")
    checkpoint.write_bytes(build_leader_epoch_checkpoint([(0, 0), (1, 50), (3, 60)]))
    events = [event for each in written for event in (started(each), *became(each, FINISHED))]
    topic = write_topic(tmp_path / "topic", {0: values_of(events)})
    warehouse = run_pipeline(spark, tmp_path / "archive", tmp_path / "warehouse", metadata=topic)
    rows = {row["segment_id"]: row for row in warehouse.read(SEGMENTS).collect()}
    found = [
        (rows[each.segment_id]["is_within_lineage"], rows[each.segment_id]["not_served_reason"]) for each in written
    ]
    assert found == [(True, None), (False, "outside_lineage"), (True, None)]
    for broker_compatible in (False, True):
        asked = [59, 60, 79, 80, DIVERGED_MS]
        answers = [(59, 59, 1), (60, 60, 3), (79, 79, 3), None, None]
        assert _ask(warehouse, asked, broker_compatible=broker_compatible) == answers
