"""Test which segments are copied next: not the active one, nothing undecided, nothing twice, the earliest first."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.remote_segments import remote
from coldlog.index.leader_epoch_lineage import LeaderEpochLineage
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.eligible_segments import LocalLog, plan_copies
from coldlog.tiering.rules.remote_segments import RemoteSegment

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
BASES = (0, 10, 20, 30, 40)
UNKNOWN = -1


def planned(
    *segments: RemoteSegment,
    bases: tuple[int, ...] = BASES,
    log_start: int = 0,
    stable: int = 1_000,
    epochs: dict[int, int] | None = None,
    expired_before: int | None = UNKNOWN,
) -> list[int]:
    """Return the base offsets of the segments to copy. `expired_before`: the log start that expiry has set; None: it
    must not be looked up."""
    lineage = LeaderEpochLineage.of((epochs or {0: 0}).items())
    log = LocalLog(base_offsets=bases, log_start_offset=log_start, last_stable_offset=stable, lineage=lineage)

    def find_log_start() -> int:
        assert expired_before is not None
        return expired_before

    found = plan_copies(log, segments, None if expired_before == UNKNOWN else find_log_start)
    return [each.base_offset for each in found]


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


@pytest.mark.parametrize(
    ("log_start", "copied"), [(0, [0, 10, 20, 30]), (10, [10, 20, 30]), (15, [10, 20, 30]), (20, [20, 30])]
)
def test_deleted_segment_is_copied_again_unless_expiry_moved_the_log_start_after_it(
    log_start: int, copied: list[int]
) -> None:
    deleted = remote(0, 9, state=DELETED), remote(10, 19, state=DELETING)
    assert planned(*deleted, expired_before=log_start) == copied
    assert planned(*deleted, remote(20, 29), expired_before=log_start) == [each for each in copied if each != 20]


def test_log_start_that_expiry_has_set_is_not_looked_up_if_nothing_local_can_have_expired() -> None:
    assert planned(remote(0, 9, state=DELETED), remote(10, 19), log_start=10, expired_before=None) == [20, 30]
    assert planned(remote(0, 9, state=DELETED, was_copied=False), expired_before=None) == [0, 10, 20, 30]


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
