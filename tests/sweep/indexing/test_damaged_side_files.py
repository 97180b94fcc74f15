"""Test that each damaged side file becomes one row with the position of the damage, or changes no answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker
from coldlog.errors import Reason
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from damage.damaged_archives import (
    INDEXED,
    PARTITION,
    PATTERNS,
    SIDE_FILES,
    Built,
    Partition,
    build,
    build_between_neighbours,
    flips,
    options,
    plan_of,
    quarantined,
    undamaged,
)

_MAY_DIFFER = {".leader_epoch_checkpoint": {"leader_epoch_checkpoint"}}
"""By suffix: columns of the outcome that may differ if the damage of the side file was not noticed."""


def _require_harmless(suffix: str, built: Built, depth: IndexDepth) -> None:
    """Check that damage that was not noticed changes no row, except in columns that no answer uses."""
    whole = undamaged(depth, is_indexed=True)
    differing = {key for key, value in built.outcome.items() if value != whole[1].outcome[key]}
    assert differing <= _MAY_DIFFER.get(suffix, set())
    tables = built.encoded.keys() | whole[1].encoded.keys()
    assert all(built.encoded.get(name) == whole[1].encoded.get(name) for name in tables - {TXN_INDEX.name})
    # Kafka writes 0 in some entries; the SQL functions return this column, but decide by the offsets.
    aborted, truly = ([{**row, "last_stable_offset": 0} for row in each.rows(TXN_INDEX)] for each in (built, whole[1]))
    assert aborted == truly
    # Of the checkpoints, the newest of a partition counts.
    assert plan_of([whole[0], built, whole[2]]) == plan_of(whole)


_LAST_STABLE_OFFSETS = frozenset({*range(26, 34), *range(60, 68)})


@pytest.mark.parametrize("depth", list(IndexDepth))
@pytest.mark.parametrize("suffix", SIDE_FILES)
def test_every_flipped_byte_of_a_side_file_is_reported_or_changes_no_answer(suffix: str, depth: IndexDepth) -> None:
    passed = set()
    for at, content in flips(INDEXED.content(suffix), PATTERNS):
        damaged = INDEXED.with_content(suffix, content)
        built = build_between_neighbours(damaged, depth, is_indexed=True)
        row = quarantined(built, suffix)
        if row is None:
            _require_harmless(suffix, built, depth)
            passed.add(at)
        elif suffix in (".index", ".timeindex", ".txnindex"):
            entry_bytes = {".index": 8, ".timeindex": 12, ".txnindex": 34}[suffix]
            # Entries that no longer ascend show at the next one.
            assert row["position"] in (at // entry_bytes * entry_bytes, (at // entry_bytes + 1) * entry_bytes)
    if suffix in (".index", ".snapshot"):
        assert passed == set()
    elif suffix == ".timeindex":
        # A timestamp (those of the tables come from the log), or an offset made another one of the same batch.
        assert {at % 12 for at in passed} <= {*range(8), 11}
    elif suffix == ".txnindex":
        assert passed <= _LAST_STABLE_OFFSETS
    else:
        assert INDEXED.content(suffix) == b"0\n3\n0 0\n1 3\n2 11\n"
        assert passed <= {6, 10, 14, 15}, "a digit of an offset that leaves the lines ascending"


@pytest.mark.parametrize("depth", list(IndexDepth))
@pytest.mark.parametrize("suffix", SIDE_FILES)
def test_every_cut_side_file_is_reported_or_changes_no_answer(suffix: str, depth: IndexDepth) -> None:
    content, passed = INDEXED.content(suffix), []
    for length in range(len(content)):
        damaged = INDEXED.with_content(suffix, content[:length])
        built = build_between_neighbours(damaged, depth, is_indexed=True)
        if quarantined(built, suffix) is not None:
            continue
        passed.append(length)
        _require_harmless(suffix, built, depth)
    size = len(content)
    whole_entries = {".index": range(0, size, 8), ".timeindex": range(12, size, 12)}
    assert passed == list(whole_entries.get(suffix, ()))


def test_a_wrong_offset_in_the_newest_checkpoint_is_reported() -> None:
    """All segments are compared with this lineage; one that does not fit it is reported as outside the lineage."""
    whole = undamaged(IndexDepth.BATCH)
    suffix, passed = ".leader_epoch_checkpoint", 0
    for _, content in flips(PARTITION.content(suffix, segment=2), (0x01, 0x02)):
        built = build(PARTITION.with_content(suffix, content, segment=2), options(IndexDepth.BATCH))
        assert tuple(built[:2]) == whole[:2]
        if quarantined(built[2], suffix) is not None:
            continue
        plan, passed = plan_of(built), passed + 1
        served = [(each.from_offset, each.to_offset) for each in plan.segments]
        if served != [(each.from_offset, each.to_offset) for each in plan_of(whole).segments]:
            is_log_start_higher = plan.log_start is not None and plan.log_start.offset > 0
            assert is_log_start_higher or not all(each.is_within_lineage for each in plan.segments)
    assert passed > 0


def _write(base_offset: int) -> Batch:
    return Batch(
        base_offset=base_offset,
        records=(Record(timestamp_ms=100 + base_offset),),
        is_transactional=True,
        producer_id=7,
        producer_epoch=0,
        base_sequence=base_offset,
    )


def _end(offset: int, make_marker: Callable[..., Batch]) -> Batch:
    return make_marker(offset=offset, timestamp_ms=100 + offset, producer_id=7, producer_epoch=0, leader_epoch=0)


@pytest.mark.parametrize(
    ("first_offset", "is_told"), [(6, False), (5, True), (8, True), (9, True)], ids=["true", "lower", "own", "next"]
)
def test_start_of_a_transaction_of_an_earlier_segment_is_compared(first_offset: int, is_told: bool) -> None:
    """The producer snapshot of the segment before has it."""
    partition = Partition.of(
        Segment(batches=(_write(0), _end(1, commit_marker), _write(6), _write(7))),
        Segment(batches=(_end(8, abort_marker), _write(9), _end(10, abort_marker))),
    )
    index = bytearray(partition.content(".txnindex"))
    assert index[10:18] == (6).to_bytes(8, "big")
    index[10:18] = first_offset.to_bytes(8, "big")
    built = build(partition.with_content(".txnindex", bytes(index)), options(IndexDepth.BATCH))
    row = quarantined(built[1], ".txnindex")
    assert (row is not None) == is_told
    if row is None:
        assert [entry["first_offset"] for entry in built[1].rows(TXN_INDEX)] == [first_offset, 9]
    else:
        assert (row["reason"], row["position"]) == (Reason.TXN_INDEX_INVALID, 0)
