"""Topics that were deleted and created again, archived under both ids and indexed once.

`orders` had two partitions, and has one since; `payments` had transactions. A value names incarnation and offset.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker, uuid_text_of
from worlds.golden_warehouse import run_pipeline

OLD_MS, NEW_MS = 1_600_000_000_000, 1_700_000_000_000
"""The time of an incarnation's first record; each record is a second later."""
ABORTED = range(5, 10)
"""Offsets of the older `payments`."""
_PRODUCER = 7


def old_id(topic: str) -> str:
    """The id of a topic's older incarnation."""
    return uuid_text_of(f"{topic}, deleted")


def new_id(topic: str) -> str:
    """The id that it has now."""
    return uuid_text_of(topic)


def old_name(topic: str) -> str:
    """The name under which the older one is offered."""
    return f"{topic}.id-{old_id(topic)[:8]}"


def value_of(incarnation: str, offset: int) -> bytes:
    """The value of a record."""
    return f"{incarnation} {offset}".encode()


def _plain(incarnation: str, first_ms: int) -> Callable[[int, int], Batch]:
    def batch(first: int, last: int) -> Batch:
        records = (
            Record(timestamp_ms=first_ms + offset * 1000, value=value_of(incarnation, offset))
            for offset in range(first, last)
        )
        return Batch(base_offset=first, records=tuple(records))

    return batch


def _transaction(batch: Batch) -> Batch:
    return Batch(
        base_offset=batch.base_offset,
        records=batch.records,
        is_transactional=True,
        producer_id=_PRODUCER,
        producer_epoch=0,
        base_sequence=batch.base_offset,
    )


def _topics() -> dict[TopicPartition, list[Segment]]:
    marker = {"timestamp_ms": OLD_MS, "producer_id": _PRODUCER, "producer_epoch": 0, "leader_epoch": 0}
    old, second, new = _plain("old", OLD_MS), _plain("second", OLD_MS), _plain("new", NEW_MS)
    transactions = (
        _transaction(old(0, 4)),
        commit_marker(offset=4, **marker),
        _transaction(old(5, 9)),
        abort_marker(offset=9, **marker),
        old(10, 12),
    )

    def place(topic: str, topic_id: str, partition: int = 0) -> TopicPartition:
        return TopicPartition(topic=topic, partition=partition, topic_id=topic_id)

    return {
        place("orders", old_id("orders")): [_segment(old(0, 10), OLD_MS), _segment(old(10, 30), OLD_MS)],
        place("orders", old_id("orders"), 1): [_segment(second(0, 7), OLD_MS)],
        place("orders", new_id("orders")): [_segment(new(0, 20), NEW_MS)],
        place("payments", old_id("payments")): [Segment(batches=transactions, modified_ms=OLD_MS)],
        place("payments", new_id("payments")): [_segment(new(0, 5), NEW_MS)],
        place("single", new_id("single")): [_segment(new(0, 3), NEW_MS)],
    }


def _segment(batch: Batch, modified_ms: int) -> Segment:
    return Segment(batches=(batch,), modified_ms=modified_ms)


def build_recreated(spark: SparkSession, folder: Path) -> None:
    """Archive and index the topics, into `archive` and `warehouse`."""
    write_archive(folder / "archive", _topics())
    run_pipeline(spark, folder / "archive", folder / "warehouse")
