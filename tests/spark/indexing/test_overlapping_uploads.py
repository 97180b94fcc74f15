"""Test the whole pipeline on overlapping uploads of a partition, by one leader or by two: one answers for each offset.

All cases are topics of one archive, which is indexed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.metadata_topic import FINISHED, became, finished, started, values_of, write_topic
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker
from builders.side_files import build_leader_epoch_checkpoint
from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.formats.kafka.remote_log.remote_log_events import Event
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.model.states import IsolationLevel
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.expectation_suites import load_suites
from coldlog.upkeep.validate import validate_tables
from contents.partition_records import Stop, StopReason, open_partition
from contents.record_rows import read
from contents.table_contents import rows_in
from planning import as_large_tables
from worlds.golden_warehouse import run_pipeline

Answer = tuple[int, int, int] | None
"""Offset, timestamp, leader epoch."""
DIVERGED_MS, NEW_LEADER_MS = 100_000, 200_000


def _batches(first: int, last: int, *, epoch: int, shift_ms: int = 0, records: int = 5) -> tuple[Batch, ...]:
    """Batches of five records from offset `first` to `last`; the timestamp is the offset plus `shift_ms`."""
    return tuple(
        Batch(
            base_offset=base,
            records=tuple(Record(timestamp_ms=shift_ms + base + at, value=b"v") for at in range(records)),
            leader_epoch=epoch,
        )
        for base in range(first, last, records)
    )


COMMON = _batches(0, 50, epoch=0)
DEPOSED = Segment(batches=(*COMMON, *_batches(50, 100, epoch=0, shift_ms=DIVERGED_MS)), index_interval_bytes=0)
SUCCESSOR = Segment(batches=(*COMMON[8:], *_batches(50, 120, epoch=1, shift_ms=NEW_LEADER_MS)), index_interval_bytes=0)
LATER = Segment(batches=SUCCESSOR.batches[6:], index_interval_bytes=0)
LINEAGE = [(0, 0), (1, 50)]
# Epoch 2 is not in the lineage of the log: its leader was cut off, and epoch 3 followed epoch 1.
FIRST = Segment(batches=(*COMMON, *_batches(50, 60, epoch=1)), index_interval_bytes=0)
STRAY = Segment(batches=_batches(60, 100, epoch=2, shift_ms=DIVERGED_MS), index_interval_bytes=0)
LAST = Segment(batches=_batches(60, 80, epoch=3), index_interval_bytes=0)

# A deposed leader whose records all have one epoch, and two uploads of one leader with the same offsets.
BEFORE_CUT = Segment(batches=_batches(0, 16, epoch=1, shift_ms=1_000, records=2), index_interval_bytes=0)
CUTTING = Segment(batches=_batches(8, 16, epoch=2, shift_ms=4_992, records=2), index_interval_bytes=0)
ONCE = Segment(batches=_batches(0, 8, epoch=0, shift_ms=1_000, records=2), index_interval_bytes=0)
AGAIN = Segment(batches=ONCE.batches, index_interval_bytes=0, segment_id="A" * 22)
AFTER = Segment(batches=_batches(8, 16, epoch=0, shift_ms=1_000, records=2), index_interval_bytes=0)

# The deposed leader ends a transaction behind the offset at which its successor's log begins, and ends it otherwise.
_MARKER = {"timestamp_ms": 0, "producer_id": 7, "producer_epoch": 0}
_IN_TRANSACTION: dict[str, Any] = {"is_transactional": True, "producer_id": 7, "producer_epoch": 0}
_BEGUN = replace(_batches(10, 15, epoch=0)[0], **_IN_TRANSACTION)
ABORTING = Segment(
    batches=(*_batches(0, 10, epoch=0), _BEGUN, abort_marker(offset=15, leader_epoch=0, **_MARKER)),
    index_interval_bytes=0,
)
COMMITTING = Segment(
    batches=(
        replace(_batches(15, 20, epoch=1)[0], **_IN_TRANSACTION),
        commit_marker(offset=20, leader_epoch=1, **_MARKER),
        *_batches(21, 26, epoch=1),
    ),
    index_interval_bytes=0,
)
UNRELATED = Segment(batches=_batches(26, 36, epoch=1), index_interval_bytes=0)

ORDERS = ("deposed.finished.first", "successor.finished.first", "no.events")
WON_MS, LOST_MS = 1_000, 900_000
"""First timestamps of the copy that must answer and of the other; they differ, so that a wrong answer is noticed."""

# By the rule that decides between complete copies: the first letter of the id and the leader epochs (four records each)
# of the copy that must answer, then those of the other. The next rule would choose the other one. The rules are in
# docs/how-to/use-the-metadata-topic.md.
PAIRS = {
    "epoch": (("A", (0, 1)), ("z", (0, 0, 0))),
    "length": (("A", (0, 0, 0)), ("z", (0, 0))),
    "id": (("z", (0, 0)), ("A", (0, 0))),
}


def _copy_of(first_ms: int, letter: str, epochs: tuple[int, ...]) -> Segment:
    """A copy from offset 0 on, with records one millisecond apart. Other partitions have a segment with the same id, as
    if somebody had copied a partition's directory."""
    batches = tuple(
        batch
        for number, epoch in enumerate(epochs)
        for batch in _batches(4 * number, 4 * number + 4, epoch=epoch, shift_ms=first_ms, records=4)
    )
    return Segment(batches=batches, segment_id=letter.ljust(21, "x") + "A")


WINNERS = {
    TopicPartition(topic=topic, partition=partition): _copy_of(WON_MS, *winner)
    for topic, (winner, _) in PAIRS.items()
    for partition in (0, 1)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """The segments of each topic in the order of writing, and the warehouse."""

    written: dict[str, list[WrittenSegment]]
    warehouse: Warehouse
    archive: Path

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Of `segments`, in the order of writing."""
        numbers = {each.segment_id: number for number, each in enumerate(self.written[topic])}
        rows = [row for row in rows_in(self.warehouse, SEGMENTS) if row["topic"] == topic]
        return sorted(rows, key=lambda row: numbers[row["segment_id"]])

    def partition(self, topic: str) -> dict[str, Any]:
        (row,) = (row for row in rows_in(self.warehouse, PARTITION_METADATA) if row["topic"] == topic)
        return row

    def ask(self, topic: str, timestamps_ms: Sequence[int], *, broker_compatible: bool = False) -> list[Answer]:
        requests = requests_from_rows([(topic, 0, time_ms) for time_ms in timestamps_ms])
        options = LookupOptions(broker_compatible=broker_compatible)
        answers = find_offsets_for_timestamps(self.warehouse, requests, options).to_pylist()
        return [
            None if row["offset"] is None else (row["offset"], row["offset_timestamp_ms"], row["leader_epoch"])
            for row in answers
        ]


@pytest.fixture(scope="module")
def uploads(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Uploads:
    folder = tmp_path_factory.mktemp("uploads")
    archive = folder / "archive"
    of_topics = {order: [DEPOSED, SUCCESSOR] for order in ORDERS}
    of_topics |= {"successor.missing": [DEPOSED, LATER], "stray": [FIRST, STRAY, LAST]}
    of_topics |= {"decided": [ABORTING, COMMITTING], "undecided": [ABORTING, UNRELATED]}
    of_topics["open"] = [ABORTING, COMMITTING]
    of_topics |= {"cut": [BEFORE_CUT, CUTTING], "again": [ONCE, AGAIN, AFTER]}
    written = {
        topic: write_archive(archive, {TopicPartition(topic=topic, partition=0): segments})
        for topic, segments in of_topics.items()
    }
    # Each leader's checkpoint holds the lineage of its own log.
    lineages = dict.fromkeys((*ORDERS, "successor.missing"), LINEAGE) | {"stray": [(0, 0), (1, 50), (3, 60)]}
    lineages |= {key: [(0, 0), (1, 15)] for key in ("decided", "undecided", "open")}
    for topic, lineage in lineages.items():
        checkpoint = written[topic][-1].stem.with_name(written[topic][-1].stem.name + ".leader_epoch_checkpoint")
        checkpoint.write_bytes(build_leader_epoch_checkpoint(lineage))
    written["open"][-1].log.write_bytes(bytes(written["open"][-1].log.stat().st_size))
    for place, winner in WINNERS.items():
        both = [winner, _copy_of(LOST_MS, *PAIRS[place.topic][1])]
        # The leader epoch checkpoints that come with them are those of the order of writing.
        write_archive(archive, {place: both[::-1] if place.partition else both})
    metadata = write_topic(folder / "topic", {0: values_of(_events(written))})
    warehouse = run_pipeline(spark, archive, folder / "warehouse", metadata=metadata)
    return Uploads(written=written, warehouse=warehouse, archive=archive)


def _events(written: dict[str, list[WrittenSegment]]) -> list[Event]:
    """Of the topics whose segments were announced; of the others the listing says everything."""
    events = finished(*written["successor.missing"], *written["stray"])
    for order in ORDERS[:2]:
        events += [started(each) for each in written[order]]
        copied = [event for each in written[order] for event in became(each, FINISHED)]
        events += copied if order.startswith("deposed") else copied[::-1]
    return events


def _log_of_the_lineage() -> list[tuple[int, int, int]]:
    records = [record for batch in (*COMMON, *SUCCESSOR.batches[2:]) for record in batch.placed_records]
    return [(record.offset, record.timestamp_ms, record.leader_epoch) for record in records]


def _first(records: list[tuple[int, int, int]], timestamp_ms: int) -> Answer:
    return next((record for record in records if record[1] >= timestamp_ms), None)


@pytest.mark.parametrize("order", ORDERS)
def test_each_offset_is_served_once_with_the_record_of_the_lineage(uploads: Uploads, order: str) -> None:
    rows = {row["start_offset"]: row for row in uploads.rows(order)}
    assert {row["state_source"] for row in rows.values()} == {"listing" if order == "no.events" else "events"}
    served = {at: (row["served_from_offset"], row["served_to_offset"]) for at, row in rows.items()}
    assert served == {0: (0, 39), 40: (40, 119)}
    assert {at: row["is_within_lineage"] for at, row in rows.items()} == {0: False, 40: True}
    assert [each["leader_epoch"] for each in rows[40]["segment_leader_epochs"]] == [0, 1]
    partition = uploads.partition(order)
    assert (partition["earliest_offset"], partition["latest_tiered_offset"], partition["gap_count"]) == (0, 119, 0)
    assert (partition["max_timestamp_ms"], partition["max_timestamp_offset"]) == (NEW_LEADER_MS + 119, 119)
    lineage = [(each["leader_epoch"], each["start_offset"]) for each in partition["leader_epoch_lineage"]]
    assert lineage == LINEAGE

    log = _log_of_the_lineage()
    assert [offset for offset, _, _ in log] == list(range(120))
    asked = sorted({time + shift for _, time, _ in log for shift in (0, 1)} | {DIVERGED_MS + at for at in (0, 50, 99)})
    assert uploads.ask(order, asked) == [_first(log, time) for time in asked]
    # A broker passes over the deposed leader's segment as a whole.
    assert uploads.ask(order, asked, broker_compatible=True) == [_first(log[40:], time) for time in asked]


def test_diverged_records_are_not_served_although_the_successors_upload_is_missing(uploads: Uploads) -> None:
    """Offsets 50 to 69 are a gap: what the deposed leader wrote there was never part of the log."""
    assert LATER.start_offset == 70
    rows = uploads.rows("successor.missing")
    assert [(row["served_from_offset"], row["served_to_offset"]) for row in rows] == [(0, 49), (70, 119)]
    assert uploads.partition("successor.missing")["gap_count"] == 1
    first_of_successor = (70, NEW_LEADER_MS + 70, 1)
    answers = [(0, 0, 0), (49, 49, 0), first_of_successor, first_of_successor]
    assert uploads.ask("successor.missing", [0, 49, 50, DIVERGED_MS + 50]) == answers


def test_upload_of_a_leader_outside_the_lineage_serves_nothing(uploads: Uploads) -> None:
    found = [(row["is_within_lineage"], row["not_served_reason"]) for row in uploads.rows("stray")]
    assert found == [(True, None), (False, "outside_lineage"), (True, None)]
    for broker_compatible in (False, True):
        answers = [(59, 59, 1), (60, 60, 3), (79, 79, 3), None, None]
        assert uploads.ask("stray", [59, 60, 79, 80, DIVERGED_MS], broker_compatible=broker_compatible) == answers


def test_repeated_upload_is_a_duplicate_and_a_deposed_leaders_upload_is_cut(uploads: Uploads) -> None:
    assert sorted(str(row["not_served_reason"]) for row in uploads.rows("again")) == ["None", "None", "duplicate"]
    assert [row["not_served_reason"] for row in uploads.rows("cut")] == [None, None]
    answers = uploads.ask("again", [1_000 + at for at in range(17)])
    assert answers == [*((at, 1_000 + at, 0) for at in range(16)), None]
    # What the deposed leader wrote from offset 8 on (times 1008 to 1015) was never part of the log.
    answers = uploads.ask("cut", [1_007, 1_008, 1_015, 5_007, 5_008])
    assert answers == [(7, 1_007, 1), (8, 5_000, 2), (8, 5_000, 2), (15, 5_007, 2), None]
    cut = uploads.rows("cut")[0]
    assert (cut["served_to_offset"], cut["running_max_timestamp_ms"]) == (7, 1_007)


def test_transaction_that_a_deposed_leader_has_ended_behind_the_cut_is_decided_by_its_successor(
    uploads: Uploads,
) -> None:
    spark, uri = uploads.warehouse.spark, uploads.warehouse.uri
    attach_warehouse(spark, uri)
    stable = {topic: uploads.partition(topic)["stable_offset"] for topic in ("decided", "undecided", "open")}
    assert stable == {"decided": 26, "undecided": 36, "open": 0}
    for topic in stable:
        cut = uploads.rows(topic)[0]
        assert (cut["served_to_offset"], cut["end_offset"], cut["open_from_offset"]) == (14, 15, None)
        assert cut["served_open_from_offset"] == 0
        assert spark.sql(f"SELECT * FROM aborted_transactions('{topic}', 0, 0, 100)").collect() == []
    committed = {"kafka_isolation_level": "read_committed"}
    decided = read(uploads.warehouse, uploads.archive, subscribe="decided", **committed)
    assert decided.offsets() == [*range(20), *range(21, 26)]
    with pytest.raises(UsageError, match="0 to 14 may belong to a transaction that was aborted in offsets which are"):
        read(uploads.warehouse, uploads.archive, subscribe="undecided", **committed)
    tolerant = read(uploads.warehouse, uploads.archive, subscribe="undecided", failOnDataLoss=False, **committed)
    assert tolerant.offsets() == [*range(26, 36)]
    layout, limits = (
        open_archive(str(uploads.archive), "local_tiered_storage"),
        DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20),
    )
    for topic in ("undecided", "open"):
        whole = open_partition(
            uploads.warehouse, layout, topic, 0, IsolationLevel.READ_COMMITTED, limits=limits, window_bytes=1 << 20
        )
        assert whole.stop == Stop(offset=0, reason=StopReason.OPEN_TRANSACTION)
        assert [*whole.iter_records()] == []


def test_plans_in_tasks_and_expectations_agree_about_cut_segments(uploads: Uploads) -> None:
    with as_large_tables(), ServingPlan(uploads.warehouse) as plan:
        assert plan.totals.changed_segment_count == 0
        assert plan.totals.cut_segment_count > 4
    suites = [suite for suite in load_suites() if suite.table in ("partition_metadata", "txn_index")]
    validated = validate_tables(uploads.warehouse, suites, is_full=True)
    failed = [each.expectation.id for table in validated.tables for each in table.verdicts if not each.is_met]
    assert failed == []


def test_the_copy_with_the_higher_epoch_then_more_offsets_then_the_greater_id_answers(uploads: Uploads) -> None:
    ends = {(place.topic, place.partition, each.segment_id): each.end_offset for place, each in WINNERS.items()}
    for row in (row for row in rows_in(uploads.warehouse, SEGMENTS) if row["topic"] in PAIRS):
        served = row["not_served_reason"], row["served_from_offset"], row["served_to_offset"]
        end = ends.pop((row["topic"], row["partition"], row["segment_id"]), None)
        assert served == (("duplicate", None, None) if end is None else (None, 0, end)), row["segment_id"]
    assert ends == {}
    known = [row for row in rows_in(uploads.warehouse, PARTITION_METADATA) if row["topic"] in PAIRS]
    assert {(row["topic"], row["partition"]): row["latest_tiered_offset"] for row in known} == {
        (place.topic, place.partition): segment.end_offset for place, segment in WINNERS.items()
    }

    asked: list[tuple[object, ...]] = []
    expected: list[tuple[int | None, int | None]] = []
    for place, segment in WINNERS.items():
        records = segment.placed_records
        times = [*(record.timestamp_ms for record in records), records[-1].timestamp_ms + 1, LOST_MS]
        asked += [(place.topic, place.partition, timestamp_ms) for timestamp_ms in times]
        expected += [*((record.offset, record.leader_epoch) for record in records), (None, None), (None, None)]
    answers = find_offsets_for_timestamps(uploads.warehouse, requests_from_rows(asked)).to_pylist()
    assert [(answer["offset"], answer["leader_epoch"]) for answer in answers] == expected
