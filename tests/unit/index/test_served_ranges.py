"""Test which of several overlapping uploads serves an offset."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coldlog.index.partition_plan import plan_partition
from coldlog.index.segment_facts import SegmentFacts
from coldlog.index.served_ranges import NO_LEADER_EPOCH, Candidate, NotServedReason, ServedRange, plan_served_ranges

LAST = 60
DUPLICATE, OLDER, BELOW = (
    NotServedReason.DUPLICATE,
    NotServedReason.OLDER_LEADER_EPOCH,
    NotServedReason.BELOW_LOG_START,
)


def copy_of(name: str, start: int, end: int, *epochs: int) -> Candidate:
    """A complete copy of the offsets `start` to `end`, with no epoch, one epoch, or a first and a last epoch."""
    known = epochs or (NO_LEADER_EPOCH,)
    return Candidate(
        segment_id=name,
        start_offset=start,
        end_offset=end,
        first_leader_epoch=known[0],
        last_leader_epoch=known[-1],
    )


def served(copies: list[Candidate], log_start: int | None = None) -> dict[str, tuple[int, int] | NotServedReason]:
    """The offsets that each copy serves, or the reason why it serves none."""
    return {
        each.segment.segment_id: each.reason or (each.from_offset, each.to_offset)
        for each in plan_served_ranges(copies, log_start)
    }


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        (copy_of("A", 0, 9, 3), copy_of("B", 0, 99, 2)),
        (copy_of("A", 0, 9, 1, 3), copy_of("B", 0, 99, 2, 2)),
        (copy_of("A", 0, 9, 0), copy_of("B", 0, 99)),
        (copy_of("A", 0, 99, 3), copy_of("B", 0, 98, 3)),
        (copy_of("A", 0, 99, 1, 3), copy_of("B", 0, 98, 2, 3)),
        (copy_of("A", 0, 99), copy_of("B", 0, 98)),
        (copy_of("B", 0, 99, 3), copy_of("A", 0, 99, 3)),
        (copy_of("a", 0, 99), copy_of("B", 0, 99)),
    ],
    ids=[
        "higher epoch before longer",
        "the last epoch counts, not the first",
        "an epoch before none",
        "longer before greater id",
        "longer before greater id, whatever the first epoch",
        "longer, of no epoch",
        "greater id",
        "greater id, as its characters are numbered",
    ],
)
def test_same_copy_of_one_start_offset_wins_in_any_order_of_the_listing(winner: Candidate, loser: Candidate) -> None:
    expected = {winner.segment_id: (winner.start_offset, winner.end_offset), loser.segment_id: DUPLICATE}
    assert served([winner, loser]) == served([loser, winner]) == expected


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (copy_of("A", 0, 99, 2), copy_of("Z", 10, 90, 2), {"A": (0, 99), "Z": DUPLICATE}),
        (copy_of("A", 0, 99, 2), copy_of("Z", 10, 99, 1), {"A": (0, 99), "Z": DUPLICATE}),
        (copy_of("A", 0, 99), copy_of("Z", 10, 99), {"A": (0, 99), "Z": DUPLICATE}),
        (copy_of("A", 0, 99, 2), copy_of("Z", 10, 90, 3), {"A": (0, 9), "Z": (10, 90)}),
        (copy_of("A", 0, 99, 2), copy_of("Z", 10, 100, 2), {"A": (0, 9), "Z": (10, 100)}),
        (copy_of("A", 0, 99, 2), copy_of("Z", 10, 100, 1, 2), {"A": (0, 9), "Z": (10, 100)}),
        (copy_of("A", 0, 99, 2), copy_of("Z", 10, 100, 1), {"A": (0, 99), "Z": OLDER}),
        (copy_of("A", 0, 99, 2), copy_of("Z", 100, 120, 1), {"A": (0, 99), "Z": OLDER}),
        (copy_of("A", 0, 99, 2), copy_of("Z", 100, 120), {"A": (0, 99), "Z": (100, 120)}),
    ],
    ids=[
        "within, of the same epoch",
        "within, of an earlier epoch",
        "within, of no epoch",
        "within, of a later epoch: the log was cut there",
        "begins inside and goes further",
        "begins inside in an earlier epoch and goes on as long",
        "begins inside and is of a deposed leader",
        "follows and is of a deposed leader",
        "follows, of no epoch",
    ],
)
def test_copy_that_begins_later_is_taken_unless_its_leader_is_older(
    earlier: Candidate, later: Candidate, expected: dict[str, object]
) -> None:
    assert served([earlier, later]) == served([later, earlier]) == expected


def test_partition_serves_the_winning_copy_with_its_timestamps() -> None:
    """As in the pipeline: offsets and timestamps of the other copies do not count, even if they are higher."""
    winner, longer, other = (facts("A", 9, 3, 500), facts("B", 99, 2, 9_000), facts("C", 9, 3, 8_000))
    (plan,) = plan_partition([longer, winner], None, {}, {})
    assert [(each.segment.segment_id, each.reason) for each in plan.segments] == [("A", None), ("B", DUPLICATE)]
    assert (plan.earliest_offset, plan.latest_tiered_offset, plan.max_timestamp_ms) == (0, 9, 500)
    (plan,) = plan_partition([winner, longer, other], None, {}, {})
    assert [each.segment.segment_id for each in plan.segments if each.reason is None] == ["C"]
    assert plan.max_timestamp_ms == 8_000


def facts(segment_id: str, end_offset: int, leader_epoch: int, max_timestamp_ms: int) -> SegmentFacts:
    """A usable segment from offset 0 on."""
    return SegmentFacts(
        topic_id="T",
        segment_id=segment_id,
        start_offset=0,
        written_ms=1,
        is_usable=True,
        end_offset=end_offset,
        leader_epochs=((leader_epoch, 0),),
        counted_from_offset=0,
        counted_max_timestamp_ms=max_timestamp_ms,
        counted_max_timestamp_offset=end_offset,
    )


@st.composite
def copies(draw: st.DrawFn, *, epochs: st.SearchStrategy[int]) -> list[Candidate]:
    """Copies with any ranges and epochs, in any order, each with its own id."""
    ids = draw(st.lists(st.text("ABab01_-", min_size=4, max_size=4), unique=True, max_size=7))
    drawn = []
    for segment_id in ids:
        start = draw(st.integers(0, LAST))
        first, last = sorted((draw(epochs), draw(epochs)))
        drawn.append(copy_of(segment_id, start, draw(st.integers(start, LAST)), first, last))
    return drawn


KNOWN = st.integers(0, 3)
ANY = st.integers(NO_LEADER_EPOCH, 3)
LOG_STARTS = st.one_of(st.none(), st.integers(0, LAST + 2))


def owners(ranges: list[ServedRange], offset: int) -> list[Candidate]:
    return [each.segment for each in ranges if each.reason is None and each.from_offset <= offset <= each.to_offset]


@given(drawn=copies(epochs=ANY), log_start=LOG_STARTS, chance=st.randoms(use_true_random=False))
def test_every_offset_is_served_by_at_most_one_segment_that_contains_it(
    drawn: list[Candidate], log_start: int | None, chance: random.Random
) -> None:
    ranges = plan_served_ranges(drawn, log_start)
    for offset in range(LAST + 1):
        holding = owners(ranges, offset)
        assert len(holding) <= 1
        assert all(each.start_offset <= offset <= each.end_offset for each in holding)
        assert not holding or log_start is None or offset >= log_start
    assert sorted(each.segment.segment_id for each in ranges) == sorted(each.segment_id for each in drawn)
    assert plan_served_ranges(chance.sample(drawn, len(drawn)), log_start) == ranges, "the order of a listing"


WHOLE = copy_of("W", 0, 99, 2)


@pytest.mark.parametrize(
    ("torn", "other", "expected"),
    [
        (copy_of("Z", 0, 99, 2), WHOLE, {"Z": DUPLICATE, "W": (0, 99)}),
        (copy_of("A", 0, 99, 2), copy_of("B", 0, 60, 2), {"B": (0, 60), "A": (61, 99)}),
        (copy_of("A", 0, 99, 2), copy_of("B", 30, 99, 2), {"A": (0, 29), "B": (30, 99)}),
        (copy_of("A", 0, 99, 2), copy_of("B", 60, 99, 2), {"A": (0, 99), "B": DUPLICATE}),
        (copy_of("A", 0, 99, 2), copy_of("B", 30, 70, 2), {"A": (0, 99), "B": DUPLICATE}),
        (copy_of("A", 30, 120, 2), WHOLE, {"W": (0, 99), "A": (100, 120)}),
        (copy_of("A", 0, 99, 2), copy_of("B", 30, 120, 2), {"A": (0, 29), "B": (30, 120)}),
    ],
    ids=[
        "the same offsets",
        "the first offsets",
        "the last offsets",
        "the last offsets, behind the hole",
        "offsets in the middle: one range each",
        "from an earlier segment",
        "from a later segment",
    ],
)
def test_lost_offsets_are_served_by_another_copy(
    torn: Candidate, other: Candidate, expected: dict[str, object]
) -> None:
    torn = replace(torn, lost=((40, 49),))
    assert served([torn, other]) == served([other, torn]) == expected


def test_copy_that_has_lost_less_is_taken() -> None:
    copies = [replace(copy_of(name, 0, 9, 2), lost=((0, last),)) for name, last in (("A", 3), ("B", 2), ("Z", 8))]
    assert served(copies) == {"A": DUPLICATE, "B": (0, 9), "Z": DUPLICATE}


@given(drawn=copies(epochs=st.just(2)), data=st.data())
def test_no_offset_is_missing_because_another_copy_has_it(drawn: list[Candidate], data: st.DataObject) -> None:
    """And of two copies, the choice is never worse than one that does not look at the holes."""
    torn = []
    for copy in drawn:
        first = data.draw(st.integers(copy.start_offset, copy.end_offset))
        last = data.draw(st.integers(first, copy.end_offset))
        torn.append(replace(copy, lost=((first, last),) if data.draw(st.booleans()) else ()))
    ranges = plan_served_ranges(torn, None)
    before = {each.segment_id: each for each in torn}

    def has(copy: Candidate, offset: int) -> bool:
        return not before[copy.segment_id].count_lost(offset, offset)

    found = [[each for each in owners(ranges, offset) if has(each, offset)] for offset in range(LAST + 1)]
    as_if_whole = plan_served_ranges(drawn, None)
    assert all(len(each) <= 1 for each in found)
    assert all(each.from_offset <= each.to_offset for each in ranges)
    assert [bool(owners(ranges, at)) for at in range(LAST + 1)] == [
        bool(owners(as_if_whole, at)) for at in range(LAST + 1)
    ]
    kept = sum(1 for at in range(LAST + 1) for each in owners(as_if_whole, at) if has(each, at))
    assert len(drawn) > 2 or sum(map(bool, found)) >= kept


@given(drawn=copies(epochs=ANY), log_start=st.integers(0, LAST + 2))
def test_log_start_removes_offsets_below_it_and_gives_none_to_another_copy(
    drawn: list[Candidate], log_start: int
) -> None:
    whole, cut = plan_served_ranges(drawn, None), plan_served_ranges(drawn, log_start)
    for offset in range(LAST + 1):
        assert owners(cut, offset) == (owners(whole, offset) if offset >= log_start else [])
    below = {each.segment.segment_id for each in cut if each.reason is BELOW}
    served = [each for each in whole if each.reason is None]
    assert below == {each.segment.segment_id for each in served if each.to_offset < log_start}


@given(epoch=st.one_of(st.just(NO_LEADER_EPOCH), KNOWN), data=st.data())
def test_copies_of_one_leader_serve_every_offset_that_any_of_them_contains(epoch: int, data: st.DataObject) -> None:
    drawn = data.draw(copies(epochs=st.just(epoch)))
    ranges = plan_served_ranges(drawn, None)
    for offset in range(LAST + 1):
        is_held = any(each.start_offset <= offset <= each.end_offset for each in drawn)
        assert bool(owners(ranges, offset)) == is_held


@given(drawn=copies(epochs=KNOWN))
@example([copy_of("long", 0, 50, 1), copy_of("shor", 20, 30, 2)])
def test_offset_in_a_copy_is_unserved_only_after_the_start_of_a_later_leader(drawn: list[Candidate]) -> None:
    """The log of the later leader replaced everything from its start on; later records of earlier leaders do not
    belong to the log."""
    ranges = plan_served_ranges(drawn, None)
    taken = [each.segment for each in ranges if each.reason is None]
    for copy in drawn:
        for offset in range(copy.start_offset, copy.end_offset + 1):
            is_replaced = any(
                other.start_offset <= offset and other.last_leader_epoch > copy.first_leader_epoch for other in taken
            )
            assert owners(ranges, offset) or is_replaced


@given(drawn=copies(epochs=KNOWN))
def test_leader_epochs_never_decrease_along_served_ranges(drawn: list[Candidate]) -> None:
    served = [each.segment.last_leader_epoch for each in plan_served_ranges(drawn, None) if each.reason is None]
    assert served == sorted(served)
