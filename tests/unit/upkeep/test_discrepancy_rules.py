"""Test the rule of each kind of discrepancy on a row that it names, and on one that it just does not."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pytest

from coldlog.tables.definitions.discrepancies import DiscrepancyKind
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.upkeep.discrepancies_by_columns import maybe_named, newest_event_ms, partition_facts
from coldlog.upkeep.discrepancy_rules import PATIENCE_MS, READ_COLUMNS, PartitionFacts, discrepancies_of

NEWEST_MS = 10 * PATIENCE_MS
EPOCHS: list[dict[str, object]] = [{"leader_epoch": 3, "start_offset": 100}]
OTHER_EPOCH: dict[str, object] = {"leader_epoch": 4, "start_offset": 100}
HOLE = {"from_offset": 110, "to_offset": 119, "position": 0, "end_position": 9, "reason": "crc_mismatch"}
SOUND: dict[str, object] = {
    **dict.fromkeys(READ_COLUMNS),
    "topic": "orders",
    "partition": 0,
    "topic_id": "id",
    "start_offset": 100,
    "segment_id": "one",
    "end_offset": 199,
    "max_timestamp_ms": 5,
    "metadata_max_timestamp_ms": 5,
    "size_bytes": 1_000,
    "segment_leader_epochs": EPOCHS,
    "state": "COPY_SEGMENT_FINISHED",
    "state_source": "events",
    "announced_start_offset": 100,
    "announced_end_offset": 199,
    "announced_max_timestamp_ms": 5,
    "announced_size_bytes": 1_000,
    "announced_leader_epochs": EPOCHS,
    "event_timestamp_ms": NEWEST_MS,
    "txn_index_empty": True,
    "is_listed": True,
    "object_count": 1,
    "missing_kinds": [],
    "log_modified_ms": 1,
    "index_status": "indexed",
    "abort_marker_count": 0,
    "is_within_lineage": True,
}
UNLISTED: dict[str, object] = {"is_listed": False, "object_count": 0, "index_status": "gone"}
UNANNOUNCED: dict[str, object] = {
    **{name: None for name in SOUND if name.startswith("announced_")},
    "state_source": "listing",
    "event_timestamp_ms": None,
}
ORPHAN: dict[str, object] = {**UNANNOUNCED, "state": "COPY_SEGMENT_FINISHED", "index_status": "orphan"}
COPYING: dict[str, object] = {"state": "COPY_SEGMENT_STARTED", "index_status": "incomplete"}
DELETING: dict[str, object] = {"state": "DELETE_SEGMENT_STARTED", "index_status": "gone"}
PLACED = PartitionFacts(placed_segment_count=1)
PASSED_BY = PartitionFacts(placed_segment_count=1, newest_copy_event_ms=NEWEST_MS + 1)
EMPTY_BEFORE = PartitionFacts(placed_segment_count=1, announces_empty_from_offset=99)
EMPTY_HERE = PartitionFacts(placed_segment_count=1, announces_empty_from_offset=100)
LATE_MS = NEWEST_MS - PATIENCE_MS - 1

KIND = DiscrepancyKind
NAMED: list[tuple[DiscrepancyKind, dict[str, object], PartitionFacts, str, str]] = [
    (KIND.SEGMENT_MISSING, UNLISTED, PLACED, "a log of 1000 bytes with its files", "no object"),
    (KIND.SEGMENT_MISSING, UNLISTED | {"announced_size_bytes": None}, PLACED,
     "a log of unknown size with its files", "no object"),
    (KIND.FILES_MISSING, {"missing_kinds": ["time_index"], "damaged_files": ["t"]}, PLACED,
     "every required file", "no time_index; the log is served without"),
    (KIND.FILES_MISSING, {"missing_kinds": ["log", "offset_index"], "index_status": "incomplete"}, PLACED,
     "every required file", "no log, offset_index"),
    (KIND.SIZE_DIFFERS, {"size_bytes": 999}, PLACED, "1000 bytes", "999 bytes"),
    (KIND.START_OFFSET_DIFFERS, {"start_offset": 101}, PLACED, "offset 100", "offset 101"),
    (KIND.END_OFFSET_DIFFERS, {"end_offset": 200}, PLACED, "at most offset 199", "offset 200"),
    (KIND.MAX_TIMESTAMP_DIFFERS, {"metadata_max_timestamp_ms": 6}, PLACED, "5 ms", "6 ms"),
    (KIND.LEADER_EPOCHS_DIFFER, {"announced_leader_epochs": [{"leader_epoch": 4, "start_offset": 100}]}, PLACED,
     "leader epochs 4", "leader epochs 3"),
    (KIND.TXN_INDEX_DENIED,
     {"announced_txn_index_empty": True, "txn_index_empty": False, "abort_marker_count": 2}, PLACED,
     "no aborted transaction", "2 abort markers and a transaction index"),
    (KIND.TXN_INDEX_DENIED,
     {"announced_txn_index_empty": True, "txn_index_empty": False, "abort_marker_count": None}, PLACED,
     "no aborted transaction", "a transaction index"),
    (KIND.TXN_INDEX_IN_DOUBT, {"abort_marker_count": 1, "txn_index_empty": None}, PLACED,
     "entries for 1 abort markers", "no entry"),
    (KIND.TXN_INDEX_PROMISED, {"announced_txn_index_empty": False}, PLACED, "aborted transactions", "no abort marker"),
    (KIND.TXN_INDEX_PROMISED, {}, EMPTY_BEFORE, "aborted transactions", "no abort marker"),
    (KIND.LOG_DAMAGED, {"holes": [HOLE, HOLE | {"to_offset": None}], "damaged_files": ["log: crc"]}, PLACED,
     "sound batches", "offsets 110 to 119, 110 to an unknown end lost; log: crc"),
    (KIND.SIDE_FILE_DAMAGED, {"damaged_files": ["index: order"]}, PLACED,
     "files that agree with the log", "index: order"),
    (KIND.OUTSIDE_LINEAGE, {"is_within_lineage": False}, PLACED,
     "leader epochs of the newest checkpoint", "leader epochs 3 from offset 100"),
    (KIND.ANNOUNCEMENT_LOST, {"announced_start_offset": None}, PLACED,
     "COPY_SEGMENT_STARTED with its offsets", "COPY_SEGMENT_FINISHED, 1 object"),
    (KIND.ANNOUNCEMENT_LOST, UNANNOUNCED, PLACED, "COPY_SEGMENT_STARTED with its offsets", "no event, 1 object"),
    (KIND.ORPHAN, ORPHAN | {"log_modified_ms": NEWEST_MS}, PLACED, "an event that announces it", "1 object"),
    (KIND.ORPHAN, ORPHAN | {"log_modified_ms": NEWEST_MS + PATIENCE_MS + 1}, PLACED,
     "an event that announces it", "1 object"),
    (KIND.COPY_UNDERWAY, ORPHAN | {"log_modified_ms": NEWEST_MS + PATIENCE_MS}, PLACED,
     "COPY_SEGMENT_FINISHED", "no event, 1 object"),
    (KIND.COPY_UNDERWAY, COPYING | {"event_timestamp_ms": LATE_MS + 1}, PLACED,
     "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 1 object"),
    (KIND.COPY_UNFINISHED, COPYING | {"event_timestamp_ms": LATE_MS}, PLACED,
     "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 1 object"),
    (KIND.COPY_UNFINISHED, COPYING, PASSED_BY, "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 1 object"),
    (KIND.COPY_INCOMPLETE, UNANNOUNCED | {"index_status": "incomplete", "missing_kinds": ["log"]}, PartitionFacts(),
     "every required file", "no log"),
    (KIND.DELETION_UNDERWAY, DELETING | {"event_timestamp_ms": LATE_MS + 1}, PLACED,
     "DELETE_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED, 1 object"),
    (KIND.DELETION_UNFINISHED, DELETING | {"event_timestamp_ms": LATE_MS}, PLACED,
     "DELETE_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED, 1 object"),
    (KIND.DELETED_BUT_LISTED, {"state": "DELETE_SEGMENT_FINISHED", "index_status": "gone"}, PLACED,
     "no object", "1 object"),
]  # fmt: skip
ALL_IS_WELL: list[tuple[dict[str, object], PartitionFacts]] = [
    ({}, PLACED),
    ({}, EMPTY_HERE),
    ({"end_offset": 150}, PLACED),
    ({"max_timestamp_ms": -1, "metadata_max_timestamp_ms": 6}, PLACED),
    ({"abort_marker_count": 1, "txn_index_empty": False}, PLACED),
    ({"announced_txn_index_empty": True}, EMPTY_BEFORE),
    ({"is_within_lineage": False, "not_served_reason": "below_log_start"}, PLACED),
    (UNANNOUNCED, PartitionFacts()),
    (UNLISTED | {"state": "DELETE_SEGMENT_FINISHED"}, PLACED),
    # What the build read does not count while other objects are listed.
    ({"index_status": "pending", "end_offset": 200, "metadata_max_timestamp_ms": 6, "damaged_files": ["x"]}, PLACED),
]


def test_each_kind_is_tried() -> None:
    assert {kind for kind, *_ in NAMED} == set(DiscrepancyKind)


@pytest.mark.parametrize(("kind", "changed", "of_partition", "expected", "found"), NAMED)
def test_a_row_is_named_once(
    kind: DiscrepancyKind, changed: dict[str, object], of_partition: PartitionFacts, expected: str, found: str
) -> None:
    row = SOUND | changed
    assert discrepancies_of(row, of_partition, NEWEST_MS) == [
        {name: row[name] for name in ("topic", "partition", "topic_id", "start_offset", "segment_id")}
        | {"kind": kind, "severity": kind.severity, "expected": expected, "found": found, "advice": kind.advice}
    ]


@pytest.mark.parametrize(("changed", "of_partition"), ALL_IS_WELL)
def test_a_row_is_not_named(changed: dict[str, object], of_partition: PartitionFacts) -> None:
    assert discrepancies_of(SOUND | changed, of_partition, NEWEST_MS) == []


def _table(rows: Sequence[dict[str, object]]) -> pa.Table:
    schema = pa.schema([SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in READ_COLUMNS])
    return pa.Table.from_pylist(list(rows), schema=schema)


def test_announced_segments_are_summed_up() -> None:
    rows = [
        SOUND | {"event_timestamp_ms": 5},
        SOUND | {"event_timestamp_ms": 7, "state": "DELETE_SEGMENT_STARTED", "announced_start_offset": None},
        SOUND | {"event_timestamp_ms": 6, "announced_txn_index_empty": True, "start_offset": 300},
        SOUND | {"event_timestamp_ms": 4, "announced_txn_index_empty": True, "start_offset": 200},
        SOUND | UNANNOUNCED | {"event_timestamp_ms": 9},
        SOUND | {"partition": 1, "event_timestamp_ms": 8},
    ]
    found = partition_facts(_table(rows))
    assert found == {
        ("orders", 0, "id"): PartitionFacts(
            placed_segment_count=3, newest_copy_event_ms=6, announces_empty_from_offset=200
        ),
        ("orders", 1, "id"): PartitionFacts(placed_segment_count=1, newest_copy_event_ms=8),
    }
    assert newest_event_ms(_table(rows)) == 8
    assert newest_event_ms(_table([])) is None
    assert partition_facts(_table([])) == {}


_VALUES: dict[str, tuple[object, ...]] = {
    "state": ("DELETE_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "COPY_SEGMENT_STARTED"),
    "is_listed": (False,),
    "is_within_lineage": (None, False),
    "not_served_reason": ("below_log_start",),
    "index_status": ("gone", "pending", "orphan", "incomplete", "quarantined"),
    "state_source": ("listing",),
    "start_offset": (90, 110),
    "end_offset": (None, 150, 250),
    "metadata_max_timestamp_ms": (None, 6),
    "max_timestamp_ms": (None, -1),
    "size_bytes": (None, 999),
    "segment_leader_epochs": (
        None,
        [],
        [EPOCHS[0], EPOCHS[0] | {"leader_epoch": 7}],
        [EPOCHS[0] | {"leader_epoch": 4}],
    ),
    "announced_leader_epochs": (None, [], [OTHER_EPOCH], [OTHER_EPOCH, *EPOCHS]),
    "announced_start_offset": (None, 101),
    "announced_end_offset": (None, 120),
    "announced_max_timestamp_ms": (None, 7),
    "announced_size_bytes": (None, 7),
    "announced_txn_index_empty": (None, False, True),
    "txn_index_empty": (None, False),
    "abort_marker_count": (None, 1),
    "missing_kinds": (["log"], ["offset_index"]),
    "holes": ([], [HOLE]),
    "damaged_files": ([], ["index: order"], ["index: order", "log: crc"]),
    "event_timestamp_ms": (None, LATE_MS),
    "log_modified_ms": (None, NEWEST_MS + 1),
}
"""Values beside those of `SOUND`."""


@pytest.mark.parametrize("seed", range(40))
def test_only_segments_that_no_rule_can_name_are_left_out(seed: int) -> None:
    random = Random(seed)
    base = SOUND | random.choice(({}, {"announced_txn_index_empty": True}, UNANNOUNCED))
    rows = []
    for number in range(300):
        names = random.sample(sorted(_VALUES), random.choice((0, 1, 1, 1, 2, 2, 3)))
        changed = {name: random.choice(_VALUES[name]) for name in names}
        if seed % 2:  # without these, all of some partitions are sound
            changed = {name: value for name, value in changed.items() if not name.startswith("announced_")}
        rows.append(base | changed | {"segment_id": str(number)})
    table = _table(rows)
    of_partition, newest_ms = partition_facts(table), newest_event_ms(table)
    left = set(maybe_named(table)["segment_id"].to_pylist())
    named = {
        row["segment_id"]
        for row in rows
        if discrepancies_of(row, of_partition.get(("orders", 0, "id"), PartitionFacts()), newest_ms)
    }
    assert named <= left
    if seed % 2:
        assert len(rows) - len(left) > 50, "sound segments are left out"
