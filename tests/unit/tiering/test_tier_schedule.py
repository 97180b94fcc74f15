"""Test the schedule table: due partitions, leases that many runs take at once, and copies that lose a lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.errors import RetriableError
from coldlog.model.ids import TopicIdPartition
from coldlog.tables.definitions.tier.tier_schedule import TIER_SCHEDULE
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tiering.copying.copy_partition import CopyOutcome
from coldlog.tiering.copying.copy_segments import CopySummary
from coldlog.tiering.event_logs import KnownEventLog
from coldlog.tiering.tier_schedule import (
    LeaseLostError,
    TierSchedule,
    TierTask,
)
from copying_tier import FINISHED, ORDERS, BreakAt, Tier
from virtual_clock import VirtualClock

A, B, C = (TopicIdPartition(topic=name, partition=0, topic_id="A" * 22) for name in "abc")
COPY, EXPIRE = TierTask.COPY, TierTask.EXPIRE


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Two closed segments of orders-0 and of payments-0."""
    found = Tier(root=tmp_path)
    for topic in ("orders", "payments"):
        write_partition(found.logs, topic, 0, [segment(0), segment(10), segment(20)])
    write_offset_checkpoint(found.logs / HIGH_WATERMARKS, {("orders", 0): 30, ("payments", 0): 30})
    return found


def segment(first: int) -> Segment:
    records = tuple(Record(timestamp_ms=first + at, value=b"v" * 50) for at in range(10))
    return Segment(batches=(Batch(base_offset=first, records=records),), index_interval_bytes=0)


def outcomes(summary: CopySummary) -> list[str]:
    return [each.outcome.value for each in summary.partitions]


# The table itself.


def test_run_takes_due_partitions_and_the_next_run_none_before_their_time(tier: Tier) -> None:
    leases = tier.schedule().take_due(COPY, {A, B})
    assert leases.partitions == (A, B)
    assert tier.schedule("two").take_due(COPY, {A, B}).partitions == ()
    leases.end(A, None)
    leases.end(B, "no answer")
    leases.close()
    entries, now_ms = tier.schedule().entries(COPY), tier.clock.now_ms()
    assert (entries[A].next_processing_ms, entries[A].last_error) == (now_ms + 30_000, None)
    assert (entries[B].last_error, entries[B].failed_ms) == ("no answer", now_ms)
    assert {each.lease for each in entries.values()} == {None}
    tier.clock.time_ms += 29_999
    assert tier.schedule("two").take_due(COPY, {A, B}).partitions == ()
    tier.clock.time_ms += 1
    assert tier.schedule("two", retry_interval_ms=1).take_due(COPY, {A, B}).partitions == (A, B)


def test_times_of_a_clock_that_was_ahead_do_not_block_a_partition(tier: Tier) -> None:
    """Its times are further away than any interval, and the lease of a killed run is longer than any lease."""
    now_ms = tier.clock.now_ms()
    tier.clock.time_ms += 30 * 86_400_000
    leases = tier.schedule().take_due(COPY, {A, B})
    leases.end(A, None)
    leases.end(B, "no answer")
    leases.close()
    tier.schedule("killed").take_due(EXPIRE, {A})
    tier.clock.time_ms = now_ms
    assert tier.schedule("two").take_due(COPY, {A, B}).partitions == (A, B)
    assert tier.schedule("two").take_due(EXPIRE, {A}).partitions == (A,)


def test_run_takes_more_partitions_when_half_are_done_and_none_twice(tier: Tier) -> None:
    for partition in (C, B):
        tier.schedule().take_due(COPY, {partition}).close()
    leases = tier.schedule(ignores_times=True).take_due(COPY, {A, B, C}, at_most=2)
    assert leases.partitions == (A, B)
    assert leases.refill(2) == ()
    leases.end(A, None)
    assert (leases.refill(1), leases.refill(1), leases.partitions) == ((C,), (), (B, C))
    leases.end(B, None)
    leases.end(C, None)
    leases.close()
    tier.clock.time_ms += 60_000
    assert leases.refill(0) == ()
    entries = tier.schedule().entries(COPY).values()
    assert [(each.lease, each.next_processing_ms) for each in entries] == [(None, tier.clock.now_ms() - 30_000)] * 3


def test_table_that_does_not_answer_during_a_run_is_asked_again(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = tier.schedule().take_due(COPY, {A, B, C}, at_most=2)

    def fail(*_: object) -> None:
        raise RetriableError("the store is down")

    with monkeypatch.context() as broken:
        broken.setattr(SmallTable, "change", fail)
        assert leases.refill(1) == ()
        with pytest.raises(RetriableError):
            leases.refill(0)
    assert leases.refill(1) == (C,)


def test_each_task_of_a_partition_has_its_own_schedule(tier: Tier) -> None:
    assert tier.schedule().take_due(COPY, {A}).partitions == (A,)
    assert tier.schedule("two").take_due(EXPIRE, {A}).partitions == (A,)
    leases = [tier.schedule().entries(task)[A].lease for task in (COPY, EXPIRE)]
    assert [None if each is None else each.holder for each in leases] == ["one", "two"]


def test_times_are_ignored_on_request_and_leases_never(tier: Tier) -> None:
    leases = tier.schedule().take_due(COPY, {A, B})
    leases.end(A, None)
    leases.keep()
    tier.clock.time_ms += 20_001
    leases.keep()
    assert tier.schedule("two", ignores_times=True).take_due(COPY, {A, B}).partitions == (A,)


def test_entries_of_unassigned_partitions_are_removed_and_those_of_other_brokers_kept(tier: Tier) -> None:
    tier.schedule().take_due(COPY, {A, B}).close()
    tier.schedule(broker_id=8).take_due(COPY, {C}).close()
    held = tier.schedule().take_due(COPY, {A})
    assert set(tier.schedule().entries(COPY)) == {A, C}
    tier.schedule("two").take_due(COPY, set()).close()
    assert tier.schedule().entries(COPY)[A].is_marked_deleted
    held.end(A, None)
    held.close()
    assert set(tier.schedule().entries(COPY)) == {C}


def test_lease_is_kept_if_it_is_renewed_in_time_and_lost_otherwise(tier: Tier) -> None:
    leases = tier.schedule().take_due(COPY, {A})
    for _ in range(20):
        tier.clock.time_ms += 25_000
        leases.require(A)
    tier.clock.time_ms += 60_000
    with pytest.raises(LeaseLostError):
        leases.require(A)
    other = tier.schedule("two").take_due(COPY, {A})
    assert other.partitions == (A,)
    leases.end(A, "too late")
    leases.close()
    assert tier.schedule().entries(COPY)[A].lease is not None
    other.require(A)


def test_lease_that_was_not_renewed_in_time_is_lost_even_if_no_run_took_it(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = tier.schedule().take_due(COPY, {A})

    def fail(*_: object) -> None:
        raise RetriableError("the store is down")

    with monkeypatch.context() as broken:
        broken.setattr(SmallTable, "change", fail)
        tier.clock.time_ms += 59_999
        leases.require(A)
        tier.clock.time_ms += 1
        with pytest.raises(LeaseLostError):
            leases.require(A)


def test_lease_that_was_not_renewed_in_time_is_lost_even_if_the_clock_was_set_back(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = tier.schedule().take_due(COPY, {A})

    def fail(*_: object) -> None:
        raise RetriableError("the store is down")

    monkeypatch.setattr(SmallTable, "change", fail)
    monkeypatch.setattr(VirtualClock, "now_ms", lambda clock: clock.time_ms - 3_600_000)
    tier.clock.time_ms += 59_999
    leases.require(A)
    tier.clock.time_ms += 1
    with pytest.raises(LeaseLostError):
        leases.require(A)


def test_other_engines_can_read_the_table_and_old_files_are_removed(tier: Tier) -> None:
    schedule = tier.schedule(process_interval_ms=1)
    for _ in range(60):
        tier.clock.time_ms += 5
        leases = schedule.take_due(COPY, {A})
        leases.end(A, None)
        leases.close()
    table = DeltaTable(tier.warehouse / "tier_schedule")
    assert table.version() == 120
    assert table.to_pyarrow_table().column_names == list(TIER_SCHEDULE.column_names)
    assert table.schema().fields[0].metadata["comment"] == TIER_SCHEDULE.columns[0].comment
    assert list((tier.warehouse / "tier_schedule" / "_delta_log").glob("*.checkpoint.parquet"))


def test_change_that_conflicts_with_another_is_applied_again_after_it(tmp_path: Path) -> None:
    table = SmallTable(uri=str(tmp_path), table=TIER_SCHEDULE)
    calls = list[int]()

    def add(name: str, between: Callable[[], object] = lambda: None) -> None:
        others = [between]

        def change(rows: list[dict[str, object]]) -> list[dict[str, object]]:
            calls.append(len(rows))
            if others:
                others.pop()()
            new = dict.fromkeys(TIER_SCHEDULE.column_names)
            new |= {"task": "copy", "topic": name, "partition": 0, "topic_id": "", "next_processing_ms": 0}
            return [*rows, {**new, "is_marked_deleted": False, "assigned_by": 0}]

        table.change(change)

    # The first change conflicts when there is no row to replace.
    add("a", between=lambda: add("b"))
    add("c", between=lambda: add("d"))
    assert calls == [0, 0, 1, 2, 2, 3]
    assert [row["topic"] for row in table.read()] == ["a", "b", "c", "d"]


# Scheduled copies.


def test_two_runs_share_the_due_partitions_until_none_is_due(tmp_path: Path) -> None:
    """One thread takes four of ten. While it works on the first, the other run takes all the others."""
    tier, names = Tier(root=tmp_path), [f"topic-{number}" for number in range(10)]
    for name in names:
        write_partition(tier.logs, name, 0, [segment(0), segment(10)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {(name, 0): 20 for name in names})
    shares = list[int]()

    def run_another(run: Callable[[TierSchedule], int]) -> int:
        others = ["two"]

        def meanwhile(_: str) -> None:
            for holder in others[:1]:
                others.clear()
                shares.append(run(tier.schedule(holder)))

        tier.break_at = meanwhile
        return run(tier.schedule("one"))

    def copy(schedule: TierSchedule) -> int:
        return tier.copy(schedule, threads=1).copied_count

    def expire(schedule: TierSchedule) -> int:
        tier.options = replace(tier.options, threads=1)
        return tier.expire(1, schedule=schedule).deleted_count

    assert (run_another(copy), shares) == (4, [6])
    tier.require_sound()
    assert (run_another(expire), shares) == (4, [6, 6])
    tier.clock.time_ms += 30_000
    assert outcomes(tier.copy(tier.schedule(), threads=1)) == ["done"] * 10
    assert outcomes(tier.copy(tier.schedule(), threads=1)) == ["not_due"] * 10
    assert outcomes(tier.copy(tier.schedule(ignores_times=True), threads=1)) == ["done"] * 10


def test_scheduled_copy_runs_when_it_is_due(tier: Tier) -> None:
    assert tier.copy(tier.schedule()).copied_count == 4
    again = tier.copy(tier.schedule())
    assert outcomes(again) == ["not_due", "not_due"]
    tier.clock.time_ms += 30_000
    assert outcomes(tier.copy(tier.schedule())) == ["done", "done"]


def test_partition_that_another_run_holds_is_not_copied(tier: Tier) -> None:
    tier.schedule("another").take_due(COPY, {ORDERS})
    assert outcomes(tier.copy(tier.schedule())) == ["not_due", "done"]
    assert tier.finished() == []


def test_failed_partition_is_retried_after_the_interval_and_its_error_kept_until_then(tier: Tier) -> None:
    down = RetriableError("the store is down")
    tier.break_at = lambda step: _raise(down) if "put orders" in step else None
    assert outcomes(tier.copy(tier.schedule(retry_interval_ms=5_000))) == ["retriable", "done"]
    entry = tier.schedule().entries(COPY)[ORDERS]
    assert "the store is down" in str(entry.last_error)
    assert entry.next_processing_ms == tier.clock.now_ms() + 5_000
    tier.break_at = lambda _: None
    tier.clock.time_ms += 5_000
    assert outcomes(tier.copy(tier.schedule())) == ["done", "not_due"]
    assert tier.schedule().entries(COPY)[ORDERS].last_error is None
    tier.require_sound()


def _raise(error: Exception) -> None:
    raise error


def test_longest_due_partition_is_copied_first_so_that_short_runs_reach_all(tier: Tier) -> None:
    down, put = RetriableError("the store is down"), list[str]()
    tier.break_at = lambda step: _raise(down) if "put " in step else None
    assert outcomes(tier.copy(tier.schedule(), topics=("payments",))) == ["retriable"]
    tier.clock.time_ms += 1
    assert outcomes(tier.copy(tier.schedule())) == ["retriable", "not_due"]
    tier.clock.time_ms += 600_000
    tier.break_at = lambda step: put.append(step) if "put " in step else None
    assert outcomes(tier.copy(tier.schedule(), threads=1)) == ["done", "done"]
    of_payments = ["payments" in step for step in put]
    assert of_payments == sorted(of_payments, reverse=True)
    assert len(set(of_payments)) == 2


@pytest.mark.parametrize("step", [1, 2, 3, 4, 7, 12, 13, 14, 15, 16, 20, 26, 27])
def test_copy_that_loses_its_lease_at_any_step_stops_and_the_other_run_finishes(tier: Tier, step: int) -> None:
    """The first run is suspended at a step: its lease ends, and another run copies the partition."""
    count, begun, done = 0, list[str](), list[CopySummary]()

    def sleep(name: str) -> None:
        nonlocal count
        count += 1
        if done:
            begun.append(name)
        if count == step:
            tier.break_at = lambda _: None
            tier.clock.time_ms += 60_000
            done.append(tier.copy(tier.schedule("two"), topics=("orders",)))
            tier.break_at = sleep

    tier.break_at = sleep
    slept = tier.copy(tier.schedule("one"), topics=("orders",), threads=1)
    tier.break_at = lambda _: None
    (other,) = done
    assert outcomes(slept) == ["retriable"]
    assert "another run may copy it now" in slept.partitions[0].why
    assert outcomes(other) == ["done"]
    # Only the step in which it was suspended is still done.
    assert len(begun) <= 1, begun
    with tier.opened_events() as events:
        known = KnownEventLog(events)
    finished = [each.start_offset for each in known.segments_of(ORDERS) if each.state is FINISHED]
    # It may still have written an event of its deleted copy, which no reader applies.
    assert (finished, known.dropped_count) == ([0, 10], int(step in (13, 27)))


def test_partition_of_a_killed_run_is_copied_when_its_lease_has_ended(
    tier: Tier,
) -> None:
    killed = KeyboardInterrupt()
    tier.break_at = BreakAt(5, killed)
    with pytest.raises(KeyboardInterrupt):
        tier.copy(replace(tier.schedule(), clock=tier.clock))
    tier.break_at = lambda _: None
    tier.clock.time_ms += 60_000
    assert set(outcomes(tier.copy(tier.schedule("two")))) == {CopyOutcome.DONE.value}
    tier.require_sound()
