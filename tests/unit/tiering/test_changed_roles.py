"""Test that a follower that becomes leader goes on with the copies of the old leader, wherever those were."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.copying.copy_partition import CopyOutcome, PartitionCopy
from coldlog.tiering.tier_assignments import Assignments, Role
from coldlog.tiering.tier_schedule import ScheduleOptions
from copying_tier import OPTIONS, ORDERS, BreakAt, KilledError, Tier
from virtual_clock import VirtualClock

STARTED, FINISHED, _, DELETED = RemoteLogSegmentState
SWAPS = 10
FIRST_STEP, STEPS_OF_A_COPY = 3, 14
"""The lease is taken in two steps. Then two events and five objects of each segment, before and after each."""
RECORDS, CLOSED_PER_EPOCH = 4, 3
LEASE_MS = ScheduleOptions(holder="").lease_ms


@dataclass(slots=True, kw_only=True)
class Host(Tier):
    """A broker's host: a replica's log directory of its own; the archive, the events and the warehouse are shared."""

    @property
    def logs(self) -> Path:
        return self.root / f"logs of {self.options.broker_id}"

    def copy_orders(self, role: Role) -> PartitionCopy | None:
        """Run the job in this role; None if it has no partition to copy."""
        assignments = Assignments(roles={("orders", 0): role})
        schedule = self.schedule(f"{self.options.broker_id}", broker_id=self.options.broker_id, ignores_times=True)
        summary = self.copy(schedule, assignments=assignments)
        return summary.partitions[0] if summary.partitions else None


def replicas(root: Path) -> tuple[Host, Host]:
    clock = VirtualClock()
    first, second = (
        Host(
            root=root,
            clock=clock,
            options=replace(OPTIONS, broker_id=broker_id, threads=1),
            breaks_tables=True,
            may_drop_events=True,
        )
        for broker_id in (1, 2)
    )
    return first, second


def write_logs(hosts: tuple[Host, Host], epoch: int) -> int:
    """Write the log up to the end of a leader epoch to both replicas; return the offset up to which it is closed."""
    count = (epoch + 1) * CLOSED_PER_EPOCH
    records = tuple(Record(timestamp_ms=0, value=b"v" * 20) for _ in range(RECORDS))
    segments = [
        Segment(
            batches=(Batch(base_offset=number * RECORDS, records=records, leader_epoch=number // CLOSED_PER_EPOCH),),
            index_interval_bytes=0,
        )
        for number in range(count)
    ]
    active = Batch(base_offset=count * RECORDS, records=records[:1], leader_epoch=epoch)
    for host in hosts:
        shutil.rmtree(host.logs, ignore_errors=True)
        write_partition(host.logs, "orders", 0, [*segments, Segment(batches=(active,), index_interval_bytes=0)])
        write_offset_checkpoint(host.logs / HIGH_WATERMARKS, {("orders", 0): count * RECORDS})
    return count * RECORDS


def require_whole(host: Host, closed_offset: int) -> None:
    """Check that the tier has each offset once up to `closed_offset`, and no object of an unfinished copy."""
    finished = sorted(host.finished())
    assert finished == [(first, first + RECORDS - 1) for first in range(0, closed_offset, RECORDS)]
    assert {each.state for each in host.segments()[ORDERS]} <= {FINISHED, DELETED}
    host.require_sound()


def act_at(step: int, action: Callable[[], None]) -> Callable[[str], None]:
    """Call the action at the step of that number, once."""
    count = 0

    def hook(_: str) -> None:
        nonlocal count
        count += 1
        if count == step:
            action()

    return hook


@pytest.mark.parametrize("first_step", [FIRST_STEP, FIRST_STEP + STEPS_OF_A_COPY])
def test_new_leader_continues_ten_times_where_the_killed_one_was(tmp_path: Path, first_step: int) -> None:
    hosts = leader, follower = replicas(tmp_path)
    for epoch in range(SWAPS):
        closed_offset = write_logs(hosts, epoch)
        leader.break_at = BreakAt(first_step + 3 * epoch, KilledError())
        with pytest.raises(KilledError):
            leader.copy_orders(Role.LEADER)
        assert follower.copy_orders(Role.FOLLOWER) is None, "it is still a follower"
        leader.break_at = lambda _: None
        leader, follower = follower, leader
        held = leader.copy_orders(Role.LEADER)
        assert held is not None
        assert held.outcome is CopyOutcome.NOT_DUE, "the lease of the killed one has not ended"
        leader.clock.time_ms += LEASE_MS
        left_count = closed_offset // RECORDS - len(leader.finished())
        done = leader.copy_orders(Role.LEADER)
        assert done is not None
        assert (done.outcome, done.copied_count) == (CopyOutcome.DONE, left_count)
        assert follower.copy_orders(Role.FOLLOWER) is None
    require_whole(leader, closed_offset)


@pytest.mark.parametrize("first_step", [0, 2])
def test_old_leader_that_wakes_up_after_its_lease_copies_nothing_twice(tmp_path: Path, first_step: int) -> None:
    hosts = leader, follower = replicas(tmp_path)
    for epoch in range(SWAPS):
        closed_offset = write_logs(hosts, epoch)

        def take_over(successor: Host = follower) -> None:
            successor.clock.time_ms += LEASE_MS
            done = successor.copy_orders(Role.LEADER)
            assert done is not None
            assert done.outcome is CopyOutcome.DONE

        leader.break_at = act_at(FIRST_STEP + (first_step + 3 * epoch) % STEPS_OF_A_COPY, take_over)
        woken = leader.copy_orders(Role.LEADER)
        leader.break_at = lambda _: None
        assert woken is not None
        assert woken.outcome is CopyOutcome.RETRIABLE
        assert "lease" in woken.why
        leader, follower = follower, leader
    # What it put after its successor had deleted the copy.
    for path in leader.archive.glob("*/*/*"):
        os.utime(path, (0, 0))
    leader.expire()
    require_whole(leader, closed_offset)
