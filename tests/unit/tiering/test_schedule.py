"""Test when a partition is processed: at once if new, again after its interval, never by two runs at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coldlog.model.ids import TopicIdPartition, uuid_text
from coldlog.tiering.rules.schedule import (
    Lease,
    ScheduledPartition,
    assign,
    end_failed,
    end_processed,
    longest_due_first,
    take,
)

A, B, C = (TopicIdPartition(topic=name, partition=0, topic_id=uuid_text(bytes(16))) for name in "abc")


def entry(partition: TopicIdPartition = A, **changes: object) -> ScheduledPartition:
    return replace(ScheduledPartition(partition=partition), **changes)  # type: ignore[arg-type]  # a test names a field


def held(until_ms: int, holder: str = "one") -> Lease:
    return Lease(holder=holder, expires_ms=until_ms)


def test_new_partition_is_due_at_once() -> None:
    entries = assign([], {B, A}, now_ms=5)
    assert [(each.partition, each.next_processing_ms) for each in entries] == [(A, 0), (B, 0)]
    assert [each.is_due(5) for each in entries] == [True, True]


def test_known_partition_keeps_its_time_when_it_is_assigned_again() -> None:
    known = entry(next_processing_ms=900, last_error="no answer", failed_ms=3)
    assert assign([known], {A}, now_ms=5) == [known]


def test_unassigned_partition_is_removed_and_one_in_progress_is_marked() -> None:
    entries = [entry(A), entry(B, lease=held(100)), entry(C, lease=held(50))]
    (marked,) = assign(entries, set(), now_ms=60)
    assert (marked.partition, marked.is_marked_deleted) == (B, True)
    assert assign([marked], set(), now_ms=100) == []


def test_marked_partition_is_removed_when_its_processing_ends_unless_assigned_again() -> None:
    (marked,) = assign([entry(lease=held(100))], set(), now_ms=60)
    assert end_processed(marked, "one", now_ms=70, process_interval_ms=10) is None
    assert end_failed(marked, "one", "no answer", now_ms=70, retry_interval_ms=10) is None
    (back,) = assign([marked], {A}, now_ms=65)
    ended = end_processed(back, "one", now_ms=70, process_interval_ms=10)
    assert ended == entry(next_processing_ms=80)


def test_success_and_error_set_the_next_time_and_the_error_is_kept_until_a_success() -> None:
    taken = take(entry(), "one", now_ms=1_000, lease_ms=100)
    assert taken is not None
    failed = end_failed(taken, "one", "no answer", now_ms=1_050, retry_interval_ms=300)
    assert failed == entry(next_processing_ms=1_350, last_error="no answer", failed_ms=1_050)
    again = take(failed, "two", now_ms=1_350, lease_ms=100)
    assert again is not None
    assert again.last_error == "no answer"
    assert end_processed(again, "two", now_ms=1_400, process_interval_ms=5_000) == entry(next_processing_ms=6_400)


def test_longest_due_partition_is_first() -> None:
    entries = [entry(A, next_processing_ms=20), entry(C, next_processing_ms=10), entry(B, next_processing_ms=10)]
    assert [each.partition for each in longest_due_first(entries)] == [B, C, A]


def test_held_marked_or_later_partitions_are_not_due() -> None:
    later, held_one, marked = entry(next_processing_ms=31), entry(lease=held(31)), entry(is_marked_deleted=True)
    assert [each.is_due(30) for each in (later, held_one, marked, entry(next_processing_ms=30))] == [False] * 3 + [True]


def test_lease_excludes_others_until_it_ends_and_its_holder_may_extend_it() -> None:
    taken = take(entry(), "one", now_ms=0, lease_ms=100)
    assert taken is not None
    assert take(taken, "two", now_ms=99, lease_ms=100) is None
    longer = take(taken, "one", now_ms=99, lease_ms=100)
    assert longer is not None
    assert longer.lease == held(199)
    assert take(longer, "two", now_ms=199, lease_ms=1) is not None


def test_holder_of_an_ended_lease_changes_nothing() -> None:
    stolen = entry(lease=held(300, "two"))
    assert end_processed(stolen, "one", now_ms=250, process_interval_ms=10) == stolen
    assert end_failed(stolen, "one", "late", now_ms=250, retry_interval_ms=10) == stolen


@given(
    steps=st.lists(st.tuples(st.sampled_from(("one", "two", "three")), st.integers(0, 120), st.booleans()), max_size=60)
)
def test_two_runs_never_process_a_partition_at_once(steps: list[tuple[str, int, bool]]) -> None:
    """Everybody who was let in, and has not come back, is inside until the lease that they were given ends."""
    scheduled, inside, now_ms = entry(), dict[str, int](), 0
    for holder, pause_ms, is_coming_back in steps:
        now_ms += pause_ms
        inside = {name: until_ms for name, until_ms in inside.items() if until_ms > now_ms}
        if is_coming_back:
            ended = end_processed(scheduled, holder, now_ms=now_ms, process_interval_ms=30)
            assert ended is not None
            scheduled = ended
            inside.pop(holder, None)
            continue
        taken = take(scheduled, holder, now_ms=now_ms, lease_ms=100)
        if taken is not None:
            assert inside.keys() <= {holder}
            scheduled, inside[holder] = taken, now_ms + 100
