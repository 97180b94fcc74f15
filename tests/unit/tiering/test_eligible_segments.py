"""Test which segments are copied next: not the active one, nothing undecided, nothing twice, the earliest first."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from builders.remote_segments import remote
from coldlog.index.leader_epoch_lineage import LeaderEpochLineage
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.eligible_segments import LocalLog, plan_copies
from coldlog.tiering.rules.remote_segments import RemoteSegment

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
BASES = (0, 10, 20, 30, 40)


def planned(
    *segments: RemoteSegment,
    bases: tuple[int, ...] = BASES,
    log_start: int = 0,
    stable: int = 1_000,
    epochs: dict[int, int] | None = None,
) -> list[int]:
    """Return the base offsets of the segments to copy."""
    lineage = LeaderEpochLineage.of((epochs or {0: 0}).items())
    log = LocalLog(base_offsets=bases, log_start_offset=log_start, last_stable_offset=stable, lineage=lineage)
    return [each.base_offset for each in plan_copies(log, segments)]


def test_all_but_the_active_segment_are_copied_the_earliest_first() -> None:
    assert planned() == [0, 10, 20, 30]
    assert planned(bases=(7,)) == []
    assert planned(bases=()) == []


def test_segment_must_end_below_the_last_stable_offset() -> None:
    """The next segment may begin at it, as in Kafka."""
    assert planned(stable=30) == [0, 10, 20]
    assert planned(stable=29) == [0, 10]
    assert planned(stable=0) == []


def test_segment_that_was_copied_is_not_copied_again() -> None:
    assert planned(remote(0, 9), remote(10, 19)) == [20, 30]
    assert planned(remote(0, 24)) == [20, 30]
    assert planned(remote(0, 4), remote(5, 12)) == [10, 20, 30]
    assert planned(remote(0, 8)) == [0, 10, 20, 30], "its last record is not copied"
    assert planned(remote(0, 9), remote(10, 18)) == [10, 20, 30], "its last record is not copied"
    assert planned(remote(0, 19), remote(5, 9)) == [20, 30]


def test_gap_below_the_copied_segments_is_closed() -> None:
    assert planned(remote(0, 9), remote(20, 29)) == [10, 30]


def test_unfinished_copy_does_not_count_as_copied_and_an_expired_one_does() -> None:
    assert planned(remote(0, 9, state=STARTED)) == [0, 10, 20, 30]
    assert planned(remote(0, 9, state=DELETED, was_copied=False)) == [0, 10, 20, 30]
    assert planned(remote(0, 9, state=DELETED), remote(10, 19, state=DELETING)) == [20, 30]
    assert planned(remote(0, 9, state=DELETED), remote(10, 19)) == [20, 30]


def test_segment_that_was_lost_after_an_existing_one_is_copied_again() -> None:
    """Expiry deletes the earliest first."""
    assert planned(remote(0, 9), remote(10, 19, state=DELETED), remote(20, 29)) == [10, 30]
    deposed = remote(0, 9, epochs={7: 0})
    assert planned(deposed, remote(0, 9, state=DELETED), remote(10, 19)) == [20, 30], "not of this log"


def test_segments_below_the_log_start_are_not_copied_and_the_one_that_contains_it_is() -> None:
    assert planned(log_start=10) == [10, 20, 30]
    assert planned(log_start=15) == [10, 20, 30]
    assert planned(remote(15, 19), log_start=15) == [20, 30]


def test_copies_of_a_deposed_leader_count_up_to_the_start_of_its_successor() -> None:
    lineage = {0: 0, 3: 20}
    assert planned(remote(0, 39), epochs=lineage) == [20, 30]
    assert planned(remote(0, 24), epochs={0: 0, 3: 15}) == [10, 20, 30]
    assert planned(remote(0, 39, epochs={1: 0}), epochs=lineage) == [0, 10, 20, 30]


@given(
    bases=st.lists(st.integers(0, 60), unique=True, max_size=9).map(lambda each: tuple(sorted(each))),
    copied=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=6),
    log_start=st.integers(0, 70),
    stable=st.integers(0, 70),
)
def test_plan_agrees_with_a_model_that_checks_each_offset(
    bases: tuple[int, ...], copied: list[tuple[int, int]], log_start: int, stable: int
) -> None:
    remotes = [remote(start, start + length, number=n) for n, (start, length) in enumerate(copied)]
    covered = {offset for start, length in copied for offset in range(start, start + length + 1)}
    expected = [
        base
        for base, following in pairwise(bases)
        if following <= stable and any(o >= log_start and o not in covered for o in range(base, following))
    ]
    assert planned(*remotes, bases=bases, log_start=log_start, stable=stable) == expected
