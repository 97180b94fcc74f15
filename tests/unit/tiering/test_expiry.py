"""Test the rules of expiry one by one, where the walk stops, what holds it back, and against a simple model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.remote_segments import remote, segment_id
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.expiry import ExpiryPlan, ExpiryReason, LogState, Retention, plan_expiry
from coldlog.tiering.rules.remote_segments import RemoteSegment

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
NOW = 100_000
TEN_S = Retention(retention_ms=10_000)
LOG = LogState(epochs=((0, 0),), log_start_offset=0, log_end_offset=1_000)
OLD, EDGE, NEW, FUTURE = 1_000, 90_000, 95_000, NOW + 1


def plan(
    *segments: RemoteSegment, log: LogState = LOG, retention: Retention = TEN_S, passes: bool = False
) -> ExpiryPlan:
    return plan_expiry(segments, log, retention, now_ms=NOW, passes_future_timestamps=passes)


def expired(found: ExpiryPlan) -> list[tuple[int, str]]:
    return [(each.segment.start_offset, each.reason.value) for each in found.expired]


def test_segment_older_than_the_retention_is_deleted_and_the_log_start_moves_after_it() -> None:
    found = plan(remote(0, 9, max_ms=OLD), remote(10, 19, max_ms=OLD), remote(20, 29, max_ms=NEW))
    assert expired(found) == [(0, "time"), (10, "time")]
    assert (found.log_start_offset, found.held_back) == (20, None)


def test_time_must_be_strictly_lower() -> None:
    assert expired(plan(remote(0, 9, max_ms=EDGE))) == []
    assert expired(plan(remote(0, 9, max_ms=EDGE - 1))) == [(0, "time")]


@pytest.mark.parametrize("retention", [Retention(), Retention(retention_ms=NOW + 1)])
def test_nothing_is_too_old_without_a_time_retention(retention: Retention) -> None:
    assert expired(plan(remote(0, 9, max_ms=-1), retention=retention)) == []


def test_size_takes_a_segment_only_when_all_of_it_is_in_the_excess() -> None:
    segments = [remote(0, 9, size=100), remote(10, 19, size=100), remote(20, 29, size=100)]
    for limit, gone in ((300, 0), (201, 0), (200, 1), (101, 1), (100, 2), (0, 3)):
        found = plan(*segments, retention=Retention(retention_bytes=limit))
        assert [reason for _, reason in expired(found)] == ["size"] * gone
        assert found.log_start_offset == (10 * gone if gone else None)


def test_size_counts_only_local_bytes_and_finished_segments_of_the_lineage() -> None:
    limit = Retention(retention_bytes=200)
    assert len(plan(remote(0, 9), log=replace(LOG, only_local_bytes=200), retention=limit).expired) == 1
    others = remote(0, 9, epochs={7: 0}, number=50), remote(900, 1_000, number=51), remote(1, 9, state=STARTED)
    assert plan(remote(0, 9), remote(10, 19), *others, retention=limit).expired == ()


def test_segment_deleted_by_time_reduces_the_excess() -> None:
    both = Retention(retention_ms=10_000, retention_bytes=100)
    segments = remote(0, 9, max_ms=OLD), remote(10, 19, max_ms=NEW), remote(20, 29, max_ms=NEW)
    assert expired(plan(*segments, retention=both)) == [(0, "time"), (10, "size")]
    assert expired(plan(*segments, retention=replace(both, retention_bytes=200))) == [(0, "time")]


def test_segment_below_the_log_start_is_deleted_whatever_its_age() -> None:
    log = replace(LOG, epochs=((3, 15),), log_start_offset=15)
    segments = remote(0, 9, epochs={1: 0, 3: 5}, max_ms=NEW), remote(10, 19, epochs={3: 10}, max_ms=NEW)
    found = plan(*segments, log=log)
    assert (expired(found), found.log_start_offset) == ([(0, "log_start")], None)


def test_segment_below_the_log_start_with_a_later_epoch_is_kept() -> None:
    log = replace(LOG, epochs=((3, 15),), log_start_offset=15)
    assert plan(remote(0, 9, epochs={3: 0, 4: 5}), log=log).expired == ()


def test_first_kept_segment_ends_the_walk_and_one_outside_the_lineage_does_not() -> None:
    assert expired(plan(remote(0, 9, max_ms=NEW), remote(10, 19, max_ms=OLD))) == []
    outside = remote(0, 9, epochs={0: 0, 5: 3}, max_ms=NEW)
    assert expired(plan(outside, remote(10, 19, max_ms=OLD))) == [(10, "time")]


@pytest.mark.parametrize("retention", [TEN_S, Retention(retention_bytes=120)], ids=["time", "size"])
@pytest.mark.parametrize("number", [1, 9])
def test_duplicate_does_not_expire_while_a_longer_copy_from_the_same_offset_is_kept(
    retention: Retention, number: int
) -> None:
    """A new leader copies its whole segment again, of which the old leader had copied the beginning."""
    short = remote(0, 9, max_ms=OLD, size=50, number=number)
    found = plan(short, remote(0, 19, max_ms=NEW, size=150, number=5), retention=retention)
    assert (expired(found), found.log_start_offset) == ([], None)


def test_unfinished_copy_is_visited_after_a_finished_one_from_the_same_offset() -> None:
    copying = replace(LOG, being_copied=frozenset({segment_id(5).segment_id}))
    segments = remote(0, 9, max_ms=OLD, number=9), remote(0, 19, max_ms=OLD, state=STARTED, number=5)
    assert expired(plan(*segments, log=copying)) == [(0, "time")]


def test_unfinished_copy_expires_by_the_same_rules() -> None:
    cut = remote(0, 9, max_ms=OLD, state=STARTED)
    assert expired(plan(cut)) == [(0, "time")]
    assert expired(plan(replace(cut, max_timestamp_ms=NEW))) == []


def test_unfinished_deletion_is_repeated_and_does_not_end_the_walk() -> None:
    segments = remote(0, 9, max_ms=NEW, state=DELETING), remote(10, 19, max_ms=OLD), remote(20, 29, state=DELETED)
    found = plan(*segments)
    assert expired(found) == [(0, "deletion_unfinished"), (10, "time")]
    assert found.log_start_offset == 20


def test_segment_that_is_being_copied_ends_the_walk() -> None:
    copying = replace(LOG, being_copied=frozenset({segment_id(10).segment_id}))
    segments = remote(0, 9, max_ms=OLD), remote(10, 19, max_ms=OLD, state=STARTED), remote(20, 29, max_ms=OLD)
    assert expired(plan(*segments, log=copying)) == [(0, "time")]


def test_segments_of_epochs_older_than_the_log_are_deleted_without_moving_the_log_start() -> None:
    log = replace(LOG, epochs=((5, 0),))
    found = plan(remote(0, 99, epochs={1: 0, 2: 50}, max_ms=NEW), remote(0, 9, epochs={5: 0}, max_ms=NEW), log=log)
    assert [(each.segment.leader_epochs, each.reason) for each in found.expired] == [
        (((1, 0), (2, 50)), ExpiryReason.OLDER_EPOCHS)
    ]
    assert found.log_start_offset is None
    assert plan(remote(0, 9, epochs={4: 0, 5: 5}, max_ms=NEW), log=log).expired == ()


def test_segment_of_several_epochs_is_deleted_once() -> None:
    log = replace(LOG, epochs=((0, 0), (1, 5), (2, 15)))
    segments = remote(0, 9, epochs={0: 0, 1: 5}, max_ms=OLD), remote(10, 19, epochs={1: 10, 2: 15}, max_ms=OLD)
    assert expired(plan(*segments, log=log)) == [(0, "time"), (10, "time")]


def test_timestamp_in_the_future_holds_back_later_segments_and_is_reported() -> None:
    segments = remote(0, 9, max_ms=FUTURE), remote(10, 19, max_ms=OLD, size=7), remote(20, 29, max_ms=NEW)
    found = plan(*segments)
    assert expired(found) == []
    assert found.held_back is not None
    held = found.held_back
    assert (held.by.start_offset, held.segment_count, held.size_bytes) == (0, 1, 7)
    assert plan(remote(0, 9, max_ms=FUTURE), remote(10, 19, max_ms=NEW)).held_back is None
    assert plan(remote(0, 9, max_ms=NOW), remote(10, 19, max_ms=OLD)).held_back is None
    assert plan(remote(0, 9, max_ms=NEW), remote(10, 19, max_ms=OLD)).held_back is None


def test_timestamp_in_the_future_is_deleted_on_request_if_the_next_segment_is_too_old() -> None:
    future, later = remote(0, 9, max_ms=FUTURE), remote(10, 19, max_ms=FUTURE)
    old, new = remote(20, 29, max_ms=OLD), remote(30, 39, max_ms=NEW)
    found = plan(future, later, old, new, passes=True)
    assert expired(found) == [(0, "future_timestamp"), (10, "future_timestamp"), (20, "time")]
    assert (found.log_start_offset, found.held_back) == (30, None)
    assert expired(plan(future, remote(10, 19, max_ms=NEW), old, passes=True)) == []
    assert expired(plan(future, later, passes=True)) == []


@given(
    kinds=st.lists(st.tuples(st.sampled_from((OLD, EDGE, NEW, FUTURE)), st.integers(1, 50)), max_size=12),
    limit=st.integers(-1, 300),
    local=st.integers(0, 100),
    retention_ms=st.sampled_from((-1, 10_000)),
)
def test_segments_of_one_epoch_expire_like_a_queue(
    kinds: list[tuple[int, int]], limit: int, local: int, retention_ms: int
) -> None:
    """Segments of one leader: a queue, from whose head whatever is too old or wholly in excess is taken."""
    segments = [remote(n * 10, n * 10 + 9, max_ms=ms, size=size) for n, (ms, size) in enumerate(kinds)]
    found = plan(
        *reversed(segments),
        log=replace(LOG, only_local_bytes=local),
        retention=Retention(retention_ms=retention_ms, retention_bytes=limit),
    )
    total, taken = local + sum(size for _, size in kinds), 0
    for ms, size in kinds:
        is_old = retention_ms >= 0 and ms < NOW - retention_ms
        if not is_old and not (limit >= 0 and total - size >= limit):
            break
        total, taken = total - size, taken + 1
    assert [each.segment for each in found.expired] == segments[:taken]
    assert found.log_start_offset == (taken * 10 if taken else None)
