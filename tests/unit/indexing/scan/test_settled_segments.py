"""Test that a comparison without the segments that have ended or stand finds the same differences, over rows at
random."""

from __future__ import annotations

from random import Random

import pytest

from coldlog.indexing.events.announced_segments import EVENT_COLUMNS, fold_events
from coldlog.indexing.scan.differences import STORED_COLUMNS, find_differences
from coldlog.indexing.scan.settled_segments import Compared, without_settled
from coldlog.tables.delta.row_edits import Row
from tables.drawn_segments import (
    EPOCHS,
    LIFE,
    PARTITION_DELETED,
    draw_with_events,
    draw_without_events,
    drawn_key,
    listed_row,
    placed,
    tables_of,
)


def _compared(left: Compared, *, is_mirror: bool) -> list[str]:
    found = find_differences(
        left.listed.to_pylist(),
        fold_events(left.events.to_pylist()),
        left.stored.to_pylist(),
        is_mirror=is_mirror,
        governed=left.governed,
    )
    return sorted(map(str, found))


@pytest.mark.parametrize("seed", range(12))
def test_a_comparison_without_settled_segments_finds_the_same(seed: int) -> None:
    rows, events, listing = draw_with_events(Random(seed))
    left = without_settled(rows, events, listing)
    expected = _compared(Compared.all_of(rows, events, listing), is_mirror=seed % 2 == 1)
    assert _compared(left, is_mirror=seed % 2 == 1) == expected
    assert len(expected) > 100
    stand = len(listing) - len(left.listed)
    assert left.some_stand
    assert stand > 50
    left_ids, named = set(left.stored["segment_id"].to_pylist()), set(events["segment_id"].to_pylist())
    without_events = len(set(rows["segment_id"].to_pylist()) - left_ids - named)
    left_out = len(rows) - len(left.stored)
    assert left_out - stand > 200
    assert without_events > 50
    assert len(events) - len(left.events) == 4 * (left_out - without_events) - 2 * stand


@pytest.mark.parametrize("seed", range(4))
def test_without_events_a_comparison_without_settled_segments_finds_the_same(seed: int) -> None:
    rows, events, listing = draw_without_events(Random(seed))
    left = without_settled(rows, events, listing)
    expected = _compared(Compared.all_of(rows, events, listing), is_mirror=seed % 2 == 1)
    assert _compared(left, is_mirror=seed % 2 == 1) == expected
    assert len(expected) > 100
    assert len(listing) - len(left.listed) > 800
    assert left.governed == frozenset()


def _ended(key: Row) -> tuple[list[Row], list[Row]]:
    """The events of a usual life, and the row that they lead to."""
    life = [
        dict.fromkeys(EVENT_COLUMNS) | key | {"metadata_partition": 3, "event_kind": "segment_update", "state": state}
        for state in LIFE
    ]
    life[0] |= {"event_kind": "segment", "start_offset": 1, "segment_leader_epochs": EPOCHS[0]}
    told = placed(event | {"event_timestamp_ms": 7} for event in life)
    before = find_differences([], fold_events(told), [], is_mirror=False)
    return told, [{name: row.get(name) for name in STORED_COLUMNS} for row in before]


def test_where_all_segments_have_ended_an_unannounced_one_is_an_orphan() -> None:
    key = drawn_key(Random(1), 1)
    told, stored = _ended(key)
    other = listed_row(key | {"segment_id": "other"}, 2)
    left = without_settled(*tables_of(stored, told, [other]))
    assert (len(left.stored), len(left.events), len(left.listed)) == (0, 0, 1)
    (found,) = find_differences([other], {}, [], is_mirror=False, governed=left.governed)
    assert found["index_status"] == "orphan"


@pytest.mark.parametrize("column", ["topic", "partition", "topic_id"])
def test_events_of_two_partitions_are_compared(column: str) -> None:
    told, stored = _ended(drawn_key(Random(1), 1))
    told[2][column] = 9 if column == "partition" else "other"
    left = without_settled(*tables_of(stored, told))
    assert (len(left.stored), len(left.events)) == (1, 4)


def test_a_segment_whose_partition_was_deleted_is_compared() -> None:
    """The partition of the metadata topic in which its deletion lies may be another one."""
    key = drawn_key(Random(1), 1)
    told, stored = _ended(key)
    deletion = {name: key[name] for name in ("topic", "partition", "topic_id")} | {"event_kind": "partition_delete"}
    told = [dict.fromkeys(EVENT_COLUMNS) | deletion | {"metadata_partition": 2, "state": PARTITION_DELETED[0]}, *told]
    left = without_settled(*tables_of(stored, placed(told)))
    assert (len(left.stored), len(left.events)) == (1, 5)


def test_a_segment_that_was_indexed_before_it_was_deleted_is_left_out() -> None:
    """A build knows more of its transaction index than the event."""
    told, stored = _ended(drawn_key(Random(1), 1))
    stored[0] |= {"build_number": 3, "txn_index_empty": False}
    assert len(without_settled(*tables_of(stored, told)).stored) == 0


def test_a_log_whose_size_is_no_longer_known_is_compared() -> None:
    """A listing without the size of a log keeps the size that a build read only if it has the log's time."""
    listed = listed_row(drawn_key(Random(1), 1), 1) | {"log_modified_ms": None}
    (before,) = find_differences([listed], {}, [], is_mirror=False)
    stored = {name: before.get(name) for name in STORED_COLUMNS} | {"index_status": "indexed", "build_number": 3}
    for size_bytes in (10, None):
        assert len(without_settled(*tables_of([stored], [], [listed | {"size_bytes": size_bytes}])).stored) == 1
    timed = {"log_modified_ms": 1}
    assert len(without_settled(*tables_of([stored | timed], [], [listed | timed | {"size_bytes": None}])).stored) == 0
