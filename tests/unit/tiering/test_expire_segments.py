"""Test the deletion of expired segments: the rules, kills at any step, and copies that run at the same time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, LOG_STARTS, write_offset_checkpoint, write_partition
from builders.remote_segments import remote
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.local_tiered_storage import ROOT_DIRECTORY
from coldlog.archive.stores.local_writer import LocalWriter
from coldlog.errors import RetriableError
from coldlog.formats.kafka.remote_log.remote_log_events import SegmentUpdateEvent
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.tier.tier_partitions import TIER_PARTITIONS
from coldlog.tables.delta.small_table import SmallTable
from coldlog.tiering.copying.copy_partition import CopyOutcome
from coldlog.tiering.event_logs import KnownEventLog
from coldlog.tiering.expiry import expire_partition
from coldlog.tiering.expiry.expire_partition import ExpiryOutcome, PartitionExpiry, iter_reasons
from coldlog.tiering.expiry.expire_segments import ExpirySummary
from coldlog.tiering.rules.expiry import LogState, Retention, plan_expiry
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.remote_segments import join_lineage
from coldlog.tiering.tier_assignments import Assignments, Role
from coldlog.tiering.tier_schedule import TierSchedule, TierTask
from copying_tier import ORDERS, BreakAt, KilledError, Tier
from drawn_examples import sampled
from virtual_clock import VirtualClock

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
NOW = 1_700_000_000_000
DAY = 86_400_000
HOUR = 3_600_000


def segment(first: int, time_ms: int, leader_epoch: int = 0) -> Segment:
    records = tuple(Record(timestamp_ms=time_ms, value=b"v" * 50) for _ in range(10))
    return Segment(
        batches=(Batch(base_offset=first, records=records, leader_epoch=leader_epoch),), index_interval_bytes=0
    )


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Four copied segments of orders-0, an hour apart; the last one is of now."""
    found = Tier(root=tmp_path)
    write_partition(found.logs, "orders", 0, [segment(n * 10, NOW - (3 - n) * HOUR) for n in range(5)])
    write_offset_checkpoint(found.logs / HIGH_WATERMARKS, {("orders", 0): 50})
    found.copy()
    assert len(found.finished()) == 4
    return found


def only(summary: ExpirySummary) -> PartitionExpiry:
    (found,) = summary.partitions
    return found


def reasons(summary: ExpirySummary) -> dict[str, int]:
    return {reason: count for reason, count, _ in iter_reasons(only(summary))}


def retrieved(tier: Tier) -> tuple[object, object]:
    (row,) = SmallTable(uri=str(tier.warehouse), table=TIER_PARTITIONS).read()
    return row["earliest_remote_offset"], row["latest_remote_offset"]


# The rules.


def test_nothing_expires_without_a_retention(tier: Tier) -> None:
    assert only(tier.expire()).deleted_count == 0
    assert (len(tier.finished()), tier.log_start(), retrieved(tier)) == (4, None, (0, 39))


def test_segments_older_than_the_retention_are_deleted_and_the_log_starts_after_them(tier: Tier) -> None:
    summary = tier.expire(90 * 60_000)
    assert (reasons(summary), summary.deleted_count) == ({"time": 2}, 2)
    assert (tier.finished(), tier.log_start(), retrieved(tier)) == ([(20, 29), (30, 39)], 20, (20, 39))
    assert summary.deleted_bytes == 2 * tier.segments()[ORDERS][0].size_bytes
    tier.require_sound()
    assert tier.expire(90 * 60_000).deleted_count == 0


def test_expired_segments_are_not_copied_again(tier: Tier) -> None:
    tier.expire(90 * 60_000)
    assert tier.copy().copied_count == 0


def test_expired_segment_is_not_copied_again_because_a_deposed_leaders_copy_is_left(tmp_path: Path) -> None:
    """That copy ends outside the lineage. Kafka does not expire it before the log starts after it either."""
    tier = Tier(root=tmp_path)
    deposed = [segment(n * 10, NOW - 2 * HOUR) for n in range(2)]
    five = tuple(Record(timestamp_ms=NOW - 2 * HOUR, value=b"v") for _ in range(5))
    both = Segment(batches=(Batch(base_offset=0, records=five), Batch(base_offset=5, records=five, leader_epoch=1)))
    for segments in (deposed, [both, segment(10, NOW, leader_epoch=1), segment(20, NOW, leader_epoch=1)]):
        shutil.rmtree(tier.logs, ignore_errors=True)
        write_partition(tier.logs, "orders", 0, segments)
        write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30})
        tier.clock.time_ms += 61_000
        tier.copy(tier.schedule("copier"))
    assert reasons(tier.expire(HOUR)) == {"time": 1}
    assert (tier.finished(), tier.log_start()) == ([(0, 9), (10, 19)], 10)
    tier.clock.time_ms += 61_000
    assert tier.copy(tier.schedule("copier")).copied_count == 0


def test_oldest_segments_are_deleted_if_the_topic_with_its_local_bytes_is_too_large(tier: Tier) -> None:
    size = tier.segments()[ORDERS][0].size_bytes
    limit = {"orders": Retention(retention_bytes=2 * size)}
    assert reasons(tier.expire(retentions=limit)) == {"size": 2}
    assert tier.finished() == [(20, 29), (30, 39)]
    # The active segment has the same size and is not in the tier.
    assert reasons(tier.expire(retentions=limit, sources={"directories": [str(tier.logs)]})) == {"size": 1}


def test_topic_with_its_own_retention_uses_it_and_others_use_the_default(tier: Tier) -> None:
    own = {"orders": Retention(), "payments": Retention(retention_ms=1)}
    assert tier.expire(1, retentions=own).deleted_count == 0
    assert tier.expire(1, retentions={"payments": Retention()}).deleted_count == 3


def test_segments_below_a_supplied_log_start_are_deleted(tier: Tier) -> None:
    summary = tier.expire(sources={"supplied_log_starts": {("orders", 0): 25, ("payments", 0): 99}})
    assert reasons(summary) == {"log_start": 2}
    assert tier.finished() == [(20, 29), (30, 39)]
    # The log starts after the deleted segment, and the next segment is still complete.
    assert (only(summary).log_start_offset, tier.log_start(), retrieved(tier)) == (20, 20, (20, 39))


@pytest.mark.parametrize(("old_id", "new_id"), [("A", "B"), ("B", "A")])
def test_supplied_log_start_counts_only_for_the_newest_topic_with_that_name(
    tmp_path: Path, old_id: str, new_id: str
) -> None:
    """The file names topics, not their ids; all segments of the new topic have expired already."""
    tier = Tier(root=tmp_path)
    old, new = (replace(ORDERS, topic_id=each * 21 + "A") for each in (old_id, new_id))
    for each in (old, new):
        shutil.rmtree(tier.logs, ignore_errors=True)
        write_partition(tier.logs, "orders", 0, [segment(n * 10, NOW) for n in range(4)], topic_id=each.topic_id)
        write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 40})
        tier.copy()
        tier.clock.time_ms += HOUR
    for supplied, left in ((25, [(20, 29)]), (40, [])):
        tier.expire(sources={"supplied_log_starts": {("orders", 0): supplied}})
        assert tier.finished(new) == left
        assert tier.finished(old) == [(0, 9), (10, 19), (20, 29)]


def test_log_start_is_written_before_segments_below_a_supplied_one_are_deleted(tier: Tier) -> None:
    seen = list[int | None]()
    tier.break_at = lambda step: seen.append(tier.log_start()) if "delete" in step or "event" in step else None
    supplied = {"supplied_log_starts": {("orders", 0): 25}}
    assert tier.expire(sources=supplied).deleted_count == 2
    assert set(seen) == {20}
    tier.break_at = lambda _: None
    assert only(tier.expire(sources=supplied)).log_start_offset is None
    # A lower log start that is supplied later moves nothing back.
    assert tier.expire(sources={"supplied_log_starts": {("orders", 0): 5}}).deleted_count == 0
    assert tier.log_start() == 20


def test_log_start_of_a_broker_without_tiering_expires_nothing_unless_a_setting_says_so(tier: Tier) -> None:
    """By its own retention it has moved to 30, and its checkpoint of leaders with it."""
    write_offset_checkpoint(tier.logs / LOG_STARTS, {("orders", 0): 30})
    (tier.logs / "orders-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 30\n")
    directories = {"directories": [str(tier.logs)]}
    assert tier.expire(sources=directories).deleted_count == 0
    wanted = tier.expire(sources={**directories, "takes_log_starts_of_directories": True})
    assert reasons(wanted) == {"log_start": 3}
    assert tier.finished() == [(30, 39)]


def test_leaders_before_a_checkpoint_begins_are_known_from_their_segments() -> None:
    finished = [
        remote(0, 9, epochs={1: 0}),
        remote(10, 19, epochs={1: 10, 3: 15}, number=2),
        remote(20, 29, epochs={3: 20}, number=3),
    ]
    assert join_lineage([(3, 25), (4, 40)], finished) == ((1, 0), (3, 15), (4, 40))
    deposed = remote(12, 30, epochs={2: 18}, number=4)
    assert join_lineage([(3, 15)], [*finished, deposed]) == ((1, 0), (3, 15))
    assert join_lineage([], finished) == ((1, 0), (3, 15))


@pytest.mark.parametrize("rolls_at_epoch", [False, True])
def test_leader_that_was_elected_with_fewer_records_hides_no_earlier_leader(rolls_at_epoch: bool) -> None:
    """Epoch 1 began in an empty log, and its replica was then cut to what the leader of epoch 2 had. The broker has
    removed the local segments, and the beginning of its checkpoint with them."""
    epochs = {2: 10} if rolls_at_epoch else {0: 10, 2: 12}
    finished = [remote(0, 9), remote(0, 3, epochs={1: 0}, number=2), remote(10, 19, epochs=epochs)]
    lineage = join_lineage([(2, 20)], finished)
    assert lineage == ((0, 0), (2, 10 if rolls_at_epoch else 12))
    log = LogState(epochs=lineage, log_start_offset=0, log_end_offset=20)
    assert plan_expiry(finished, log, Retention(), now_ms=NOW).expired == ()


def test_segments_of_older_leaders_are_deleted_when_the_log_begins_with_a_later_one(tmp_path: Path) -> None:
    tier = Tier(root=tmp_path)
    old = [segment(n * 10, NOW, leader_epoch=n // 2) for n in range(5)]
    write_partition(tier.logs, "orders", 0, old)
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 50})
    tier.copy()
    assert tier.expire().deleted_count == 0
    summary = tier.expire(sources={"supplied_log_starts": {("orders", 0): 35}})
    assert reasons(summary) == {"log_start": 1, "older_epochs": 2}
    assert tier.finished() == [(30, 39)]


def test_lineage_of_a_log_directory_that_is_older_than_the_newest_copy_is_not_used(tmp_path: Path) -> None:
    """The broker of this machine went down. Another one became leader uncleanly, and wrote offsets 10 to 29 anew."""
    tier = Tier(root=tmp_path)
    written = [segment(n * 10, NOW - 2 * HOUR) for n in range(4)]
    successor = [written[0], *(segment(n * 10, NOW, leader_epoch=1) for n in range(1, 4))]
    for segments in (written, successor):
        if tier.logs.exists():
            tier.logs.rename(tmp_path / "deposed")
        write_partition(tier.logs, "orders", 0, segments)
        write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 40})
        tier.copy()
    deposed = {"directories": [str(tmp_path / "deposed")]}
    assert reasons(tier.expire(HOUR, sources=deposed)) == {"time": 1}
    assert tier.log_start() == 10
    tier.expire(HOUR, sources=deposed)
    assert [each.leader_epochs for each in tier.segments()[ORDERS] if each.state is FINISHED] == [
        ((1, 10),),
        ((1, 20),),
    ]


def test_log_start_moves_back_if_a_replica_with_fewer_records_becomes_the_leader(tmp_path: Path) -> None:
    """It was down for longer than the retention, and was elected uncleanly. It ends before all that has expired."""
    tier = Tier(root=tmp_path)
    old = [segment(n * 10, NOW - 2 * HOUR) for n in range(5)]
    records = tuple(Record(timestamp_ms=NOW, value=b"v") for _ in range(5))
    mixed = Segment(
        batches=(Batch(base_offset=10, records=records), Batch(base_offset=15, records=records, leader_epoch=1))
    )
    new = [old[0], mixed, *(segment(n * 10, NOW, leader_epoch=1) for n in (2, 3))]
    for segments, log_start, left in ((old, 40, []), (new, 15, [(10, 19), (20, 29)])):
        shutil.rmtree(tier.logs, ignore_errors=True)
        write_partition(tier.logs, "orders", 0, segments)
        write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 50})
        for _ in range(2):
            tier.clock.time_ms += 61_000
            tier.copy(tier.schedule("copier"))
            tier.expire(HOUR)
            assert (tier.log_start(), tier.finished()) == (log_start, left)


def test_segment_with_a_future_timestamp_holds_back_others_until_it_may_be_deleted(tmp_path: Path) -> None:
    tier = Tier(root=tmp_path)
    times = [NOW - 3 * HOUR, NOW + 9 * DAY, NOW - 2 * HOUR, NOW - HOUR, NOW]
    write_partition(tier.logs, "orders", 0, [segment(n * 10, at) for n, at in enumerate(times)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 50})
    tier.copy()
    held = only(tier.expire(HOUR // 2))
    assert (held.deleted_count, tier.finished()[0]) == (1, (10, 19))
    assert held.held_back is not None
    assert (held.held_back.by.start_offset, held.held_back.segment_count) == (10, 2)
    passed = tier.expire(HOUR // 2, passes_future_timestamps=True)
    assert reasons(passed) == {"future_timestamp": 1, "time": 2}
    assert (tier.finished(), tier.log_start()) == ([], 40)


def test_dry_run_reports_what_would_be_deleted_and_changes_nothing(tier: Tier) -> None:
    before = {path: path.read_bytes() for path in tier.root.rglob("*") if path.is_file()}
    plan = only(tier.expire(90 * 60_000, is_dry_run=True))
    assert plan.outcome is ExpiryOutcome.PLANNED
    assert [(each.start_offset, each.end_offset, each.reason) for each in plan.planned] == [
        (0, 9, "time"),
        (10, 19, "time"),
    ]
    assert (plan.log_start_offset, plan.deleted_count) == (20, 0)
    assert {path: path.read_bytes() for path in tier.root.rglob("*") if path.is_file()} == before


def test_partition_that_another_broker_tiers_is_left_alone_if_events_are_in_a_topic(tier: Tier) -> None:
    tier.options = replace(tier.options, broker_id=8)
    left = only(tier.expire(1, deletes_of_others=False))
    assert (left.outcome, left.deleted_count) == (ExpiryOutcome.NOT_OURS, 0)
    assert "broker 7 tiers this partition" in left.why
    assert tier.expire(1).deleted_count == 3


# Stopped at any step.


@pytest.mark.parametrize("failure", [KilledError(), RetriableError("the store is down")], ids=["killed", "failed"])
def test_deletion_that_stops_at_any_step_is_finished_by_the_next_run(tmp_path: Path, failure: BaseException) -> None:
    """Whatever the retention is then; the log start is there before anything else."""
    for step in sampled(count(1)):
        tier = Tier(root=tmp_path / str(step))
        write_partition(tier.logs, "orders", 0, [segment(n * 10, NOW - (2 - n) * HOUR) for n in range(3)])
        write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 30})
        tier.copy()
        breaks = BreakAt(step, failure)
        tier.break_at = breaks
        with suppress(KilledError):
            tier.expire(90 * 60_000)
        tier.break_at = lambda _: None
        if breaks.count < step:
            break
        (first, second) = tier.segments()[ORDERS]
        assert first.state is FINISHED or tier.log_start() == 10
        assert first.state is not DELETED or len(tier.objects()) == 1
        assert second.state is FINISHED
        tier.require_sound()
        # The lease of the killed run has to end first.
        tier.clock.time_ms += 60_000
        begun = first.state is DELETING
        tier.expire(-1 if begun else 90 * 60_000)
        assert tier.finished() == [(10, 19)], step
        assert len(tier.objects()) == 1
        tier.require_sound()
    assert step > 15


def test_segment_whose_deletion_has_begun_is_deleted_even_outside_the_lineage(tier: Tier) -> None:
    tier.break_at = BreakAt(6, RetriableError("down"))
    tier.expire(1)
    tier.break_at = lambda _: None
    left = [each for each in tier.segments()[ORDERS] if each.state is DELETING]
    assert len(left) == 1
    tier.expire(sources={"supplied_log_starts": {("orders", 0): 40}})
    assert not [each for each in tier.segments()[ORDERS] if each.state is DELETING]


def test_partition_that_fails_affects_no_other_and_is_retried_after_the_interval(tier: Tier) -> None:
    write_partition(tier.logs, "payments", 0, [segment(n * 10, NOW - (3 - n) * HOUR) for n in range(5)])
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 50, ("payments", 0): 50})
    tier.copy()
    payments = replace(ORDERS, topic="payments")
    down = RetriableError("the store is down")

    def fail_for_orders(step: str) -> None:
        if "delete orders" in step:
            raise down

    tier.break_at = fail_for_orders
    summary = tier.expire(1, schedule=tier.schedule(retry_interval_ms=5_000))
    assert [each.outcome for each in summary.partitions] == [ExpiryOutcome.RETRIABLE, ExpiryOutcome.DONE]
    assert tier.finished(payments) == [(30, 39)]
    entries = tier.schedule().entries(TierTask.EXPIRE)
    assert (entries[ORDERS].next_processing_ms, entries[ORDERS].last_error) == (NOW + 5_000, "the store is down")
    assert entries[payments].next_processing_ms == NOW + 30_000
    tier.break_at = lambda _: None
    tier.clock.time_ms += 5_000
    again = tier.expire(HOUR, schedule=tier.schedule())
    assert [each.outcome for each in again.partitions] == [ExpiryOutcome.DONE, ExpiryOutcome.NOT_DUE]
    assert tier.schedule().entries(TierTask.EXPIRE)[ORDERS].last_error is None
    tier.require_sound()


def test_deletion_is_announced_once_even_if_it_is_retried_often(tier: Tier) -> None:
    down, announced = RetriableError("the store is down"), list[str]()

    def fail(step: str) -> None:
        announced.extend([step] if step.startswith("event") and not step.endswith("done") else [])
        if step.startswith("delete"):
            raise down

    tier.break_at = fail
    for _ in range(4):
        assert only(tier.expire(150 * 60_000)).outcome is ExpiryOutcome.RETRIABLE
    assert announced == [f"event {DELETING}"]
    tier.break_at = lambda _: None
    assert only(tier.expire(150 * 60_000)).deleted_count == 1
    assert tier.segments()[ORDERS][0].state is DELETED


def test_nothing_expires_if_the_lineage_cannot_be_read(tier: Tier) -> None:
    newest = max((tier.archive / ROOT_DIRECTORY).glob("*/*.leader_epoch_checkpoint"))
    newest.write_bytes(b"damaged")
    damaged = only(tier.expire(1))
    assert (damaged.outcome, damaged.deleted_count) == (ExpiryOutcome.DAMAGED, 0)
    assert newest.name in damaged.why
    assert len(tier.finished()) == 4


@pytest.mark.parametrize("task", ["copy", "expire"])
def test_archive_that_is_an_empty_mount_point_is_neither_copied_to_nor_expired(tier: Tier, task: str) -> None:
    """The disk is mounted at the archive's own folder."""
    grow(tier)
    tree, away = tier.archive / ROOT_DIRECTORY, tier.root / "away"
    tree.rename(away)
    tree.mkdir()
    before = tier.segments()
    directories = {"directories": [str(tier.logs)]}
    for _ in range(2):
        if task == "copy":
            (copied,) = tier.copy().partitions
            assert copied.outcome is CopyOutcome.RETRIABLE
            assert "check the mount" in copied.why
        else:
            expired = only(tier.expire(HOUR, sources=directories))
            assert (expired.outcome, expired.deleted_count) == (ExpiryOutcome.RETRIABLE, 0)
        assert not list(tree.iterdir())
    finished = {each.segment_id for each in before[ORDERS]}
    assert {each.segment_id for each in tier.segments()[ORDERS] if each.state is FINISHED} == finished
    tree.rmdir()
    away.rename(tree)
    assert tier.copy().copied_count == 1
    assert tier.expire(150 * 60_000, sources=directories).deleted_count == 1
    assert (len(tier.objects()), len(tier.finished())) == (4, 4)


@pytest.mark.parametrize("task", ["copy", "expire"])
def test_archive_that_has_only_other_partitions_is_neither_copied_to_nor_expired(tier: Tier, task: str) -> None:
    """Of a wrong archive.uri, say: a part of the log would lie in each."""
    grow(tier)
    (tier.root / "other" / ROOT_DIRECTORY / f"payments-0-{'C' * 21}A").mkdir(parents=True)
    before, tier.uri = tier.segments(), str(tier.root / "other")
    if task == "copy":
        (copied,) = tier.copy().partitions
        assert (copied.outcome, copied.copied_count) == (CopyOutcome.RETRIABLE, 0)
        assert "has no directory orders-0-" in copied.why
        assert "check archive.uri" in copied.why
    else:
        expired = only(tier.expire(HOUR, sources={"directories": [str(tier.logs)]}))
        assert (expired.outcome, expired.deleted_count) == (ExpiryOutcome.RETRIABLE, 0)
    assert tier.segments() == before
    assert len(list((tier.root / "other" / ROOT_DIRECTORY).iterdir())) == 1
    tier.uri = ""
    assert tier.copy().copied_count == 1


@pytest.mark.parametrize("failing", [{1}, {2}, {1, 2}], ids=str)
@pytest.mark.parametrize("task", ["copy", "expire"])
def test_store_that_fails_while_its_archive_is_checked_is_not_used(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, task: str, failing: set[int]
) -> None:
    """It answers again after the check, as after a short overload."""
    grow(tier)
    tree = tier.root / "other" / ROOT_DIRECTORY
    (tree / f"payments-0-{'C' * 21}A").mkdir(parents=True)
    before, tier.uri, listed = tier.segments(), str(tree), list[str]()
    list_directories = LocalWriter.list_directories

    def fail(store: LocalWriter, prefix: str) -> list[str]:
        listed.extend([prefix] if prefix == "" else [])
        if prefix == "" and len(listed) in failing:
            raise RetriableError("too many requests")
        return list_directories(store, prefix)

    monkeypatch.setattr(LocalWriter, "list_directories", fail)
    done = tier.copy() if task == "copy" else tier.expire(HOUR, sources={"directories": [str(tier.logs)]})
    assert [each.outcome.value for each in done.partitions] == [CopyOutcome.RETRIABLE.value]
    assert tier.segments() == before
    assert len(list(tree.iterdir())) == 1


def test_lost_archive_is_continued_if_the_operator_makes_its_directory(tier: Tier) -> None:
    grow(tier)
    tree = tier.archive / ROOT_DIRECTORY
    tree.rename(tier.root / "lost")
    (tree / f"orders-0-{ORDERS.topic_id}").mkdir(parents=True)
    assert tier.copy().copied_count == 1


# Unfinished copies, and objects that belong to no segment.


def grow(tier: Tier) -> None:
    """Close the active segment and begin another."""
    grown = write_partition(tier.root / "grown", "orders", 0, [segment(n * 10, NOW) for n in range(6)])
    for path in grown.iterdir():
        (tier.logs / "orders-0" / path.name).write_bytes(path.read_bytes())
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 60})


def leave_started(tier: Tier) -> None:
    """Leave a copy that was killed before its last object, with its lease."""
    grow(tier)
    tier.break_at, tier.breaks_tables = BreakAt(10, KilledError()), True
    with pytest.raises(KilledError):
        tier.copy(tier.schedule("copier"), threads=1)
    tier.break_at, tier.breaks_tables = lambda _: None, False
    assert tier.segments()[ORDERS][-1].state is STARTED


def test_copy_in_progress_is_left_alone_while_its_lease_is_valid(tier: Tier) -> None:
    leave_started(tier)
    copying = tier.schedule("other", ignores_times=True)
    tier.clock.time_ms += 60_001
    leases = copying.take_due(TierTask.COPY, {ORDERS})
    assert leases.partitions == (ORDERS,)
    assert reasons(tier.expire()) == {}
    assert tier.segments()[ORDERS][-1].state is STARTED
    leases.end(ORDERS, "the store is down")
    leases.close()
    assert reasons(tier.expire()) == {"copy_unfinished": 1}
    assert tier.segments()[ORDERS][-1].state is DELETED
    assert len(tier.objects()) == 4


def test_copy_without_the_schedule_is_not_taken_for_one_that_an_old_lease_abandoned(tier: Tier) -> None:
    """The run uses another warehouse, or none, so the schedule knows only other runs."""
    assert [each.outcome.value for each in tier.copy(tier.schedule("copier")).partitions] == ["done"]
    grow(tier)
    tier.clock.time_ms += HOUR
    met = list[dict[str, int]]()

    def expire_meanwhile(step: str) -> None:
        if step.startswith("put") and step.endswith(".index done"):
            tier.break_at = lambda _: None
            tier.clock.time_ms += HOUR
            met.append(reasons(tier.expire()))
            tier.break_at = expire_meanwhile

    tier.break_at = expire_meanwhile
    (copied,) = tier.copy(threads=1).partitions
    assert (copied.outcome, copied.copied_count, met) == (CopyOutcome.DONE, 1, [{}])
    assert tier.finished()[-1] == (40, 49)


def test_copy_that_expiry_deleted_meanwhile_fails_and_is_repeated(tier: Tier) -> None:
    grow(tier)

    def expire_meanwhile(step: str) -> None:
        if step.startswith("put") and step.endswith(".snapshot done"):
            tier.break_at = lambda _: None
            tier.clock.time_ms += DAY + 1
            assert reasons(tier.expire()) == {"copy_unfinished": 1}

    tier.break_at = expire_meanwhile
    (copied,) = tier.copy(threads=1).partitions
    assert (copied.outcome, copied.copied_count) == (CopyOutcome.RETRIABLE, 0)
    assert "another run deleted segment " in copied.why
    (again,) = tier.copy(threads=1).partitions
    assert (again.outcome, again.copied_count) == (CopyOutcome.DONE, 1)
    with tier.opened_events() as events:
        known = KnownEventLog(events).segments_of(ORDERS)
    assert [each.state for each in known if each.start_offset == 40] in ([DELETED, FINISHED], [FINISHED, DELETED])


@pytest.mark.parametrize("look", ["find_orphans", "entries"])
def test_copy_that_finishes_while_expiry_plans_is_kept(tier: Tier, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    """Behind the events that a run begins with: while it waits for its threads, and when it has made its plan."""
    leave_started(tier)
    tier.clock.time_ms += 60_001
    before = tier.objects()
    (started,) = (each for each in tier.segments()[ORDERS] if each.state is STARTED)
    owner = expire_partition if look == "find_orphans" else TierSchedule
    original = getattr(owner, look)
    finishing = [started]

    def finish_meanwhile(*arguments: object) -> object:
        found = original(*arguments)
        for each in finishing[:1] if look == "find_orphans" or arguments[1] is TierTask.COPY else ():
            finishing.clear()
            with tier.opened_events() as events:
                events.append(
                    SegmentUpdateEvent(
                        remote_log_segment_id=each.segment_id,
                        broker_id=7,
                        event_timestamp_ms=tier.clock.now_ms(),
                        custom_metadata=None,
                        state=FINISHED,
                    )
                )
        return found

    monkeypatch.setattr(owner, look, finish_meanwhile)
    tier.expire(retry_interval_ms=60_000)
    assert not finishing
    assert tier.segments()[ORDERS][-1].state is FINISHED
    assert tier.objects() == before


def test_abandoned_copy_is_kept_for_the_retry_interval(tier: Tier) -> None:
    leave_started(tier)
    tier.clock.time_ms += 60_000
    assert reasons(tier.expire(retry_interval_ms=60_000)) == {}
    tier.clock.time_ms += 1
    assert reasons(tier.expire(retry_interval_ms=60_000)) == {"copy_unfinished": 1}


def test_copy_that_no_schedule_knows_is_kept_as_long_as_an_orphan(tier: Tier) -> None:
    leave_started(tier)
    tier.schedule().table.change(lambda rows: [row for row in rows if row["task"] != "copy"])
    tier.clock.time_ms += DAY
    assert reasons(tier.expire()) == {}
    tier.clock.time_ms += 1
    assert reasons(tier.expire()) == {"copy_unfinished": 1}


def put(tier: Tier, name: str, age_ms: int) -> Path:
    """Put an object of the partition that is so old."""
    directory = next((tier.archive / ROOT_DIRECTORY).iterdir())
    path = directory / name
    path.write_bytes(b"content")
    seconds = (tier.clock.now_ms() - age_ms) / 1000
    os.utime(path, (seconds, seconds))
    return path


UNKNOWN = f"{70:020d}-{'B' * 21}A"


def test_old_orphans_are_deleted_and_unexplained_objects_never(tier: Tier) -> None:
    known = next((tier.archive / ROOT_DIRECTORY).glob("*/*.log")).name
    old_orphan, young_orphan = put(tier, f"{UNKNOWN}.log", 3 * DAY), put(tier, f"{UNKNOWN}.index", DAY - HOUR)
    old_tmp, young_tmp = put(tier, f"{known}.0123abcd.tmp", 3 * DAY), put(tier, f"{known}.1123abcd.tmp", HOUR)
    unexplained = [
        put(tier, name, 99 * DAY)
        for name in (
            "notes.txt",
            f"{UNKNOWN}.backup",
            f"{known}.tmp",
            f"{UNKNOWN[:-1]}B.log.0123abcd.tmp.old",
            "x.0123abcd.tmp",
        )
    ]
    stray = tier.archive / ROOT_DIRECTORY / f"payments-0-{'C' * 21}A"
    stray.mkdir()
    (stray / f"{UNKNOWN}.log").write_bytes(b"of no event")
    os.utime(stray / f"{UNKNOWN}.log", (0, 0))
    tier.clock.time_ms = NOW
    summary = tier.expire(2 * DAY)
    found = only(summary)
    assert (found.removed_object_count, found.waiting_orphan_count) == (2, 2)
    assert not old_orphan.exists()
    assert not old_tmp.exists()
    assert young_orphan.exists()
    assert young_tmp.exists()
    assert all(path.exists() for path in unexplained)
    assert (stray / f"{UNKNOWN}.log").exists()
    assert summary.unexplained == (stray.name,)
    assert len(found.unexplained) == 5
    assert len(tier.finished()) == 4


@pytest.mark.parametrize(("retention_ms", "is_left"), [(-1, True), (5 * DAY, True), (2 * DAY, False)])
def test_orphan_is_kept_for_the_retention_and_forever_without_one(tier: Tier, retention_ms: int, is_left: bool) -> None:
    orphan, temporary = put(tier, f"{UNKNOWN}.log", 3 * DAY), put(tier, f"{UNKNOWN}.log.0123abcd.tmp", 9 * DAY)
    only(tier.expire(retention_ms))
    assert (orphan.exists(), temporary.exists()) == (is_left, False)


def test_object_that_a_copy_put_after_its_deletion_is_deleted_again(tier: Tier) -> None:
    first = tier.segments()[ORDERS][0]
    tier.expire(150 * 60_000)
    late = put(tier, f"{0:020d}-{first.segment_id.segment_id}.log", DAY + 1)
    assert only(tier.expire()).removed_object_count == 1
    assert not late.exists()


def test_orphans_are_kept_if_events_may_have_been_lost(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = put(tier, f"{UNKNOWN}.log", 30 * DAY)
    monkeypatch.setattr("coldlog.tiering.event_logs.DirectoryEventReader.is_complete", False)
    assert only(tier.expire(2 * DAY)).waiting_orphan_count == 1
    assert orphan.exists()


def test_orphans_are_kept_if_an_event_cannot_be_read(tier: Tier) -> None:
    """A newer broker may have announced the segment in a version that this coldlog does not know."""
    orphan = put(tier, f"{UNKNOWN}.log", 30 * DAY)
    with tier.opened_events() as events:
        events.writer.append(0, [b"\x01\x00\x01 version 1"], tier.clock.now_ms())
    tier.may_drop_events = True
    assert only(tier.expire(2 * DAY)).waiting_orphan_count == 1
    assert orphan.exists()


def test_archive_of_another_event_log_loses_nothing(tier: Tier, tmp_path: Path) -> None:
    """archive.uri is that of the brokers, say, which hold the same topic; its segments are orphans to our events."""
    other = Tier(root=tmp_path / "other")
    shutil.copytree(tier.logs, other.logs)
    other.copy()
    held = other.objects()
    for path in other.archive.rglob("*.*"):
        os.utime(path, (0, 0))
    tier.uri = str(other.archive)
    found = only(tier.expire(2 * HOUR + 30 * 60_000, sources={"directories": [str(tier.logs)]}))
    assert (found.removed_object_count, found.waiting_orphan_count) == (0, 20)
    assert other.objects() == held


# Leaders, followers and other runs.


def test_follower_only_retrieves_the_offsets_of_the_tier(tier: Tier) -> None:
    summary = tier.expire(1, assignments=Assignments({("orders", 0): Role.FOLLOWER}))
    assert only(summary).outcome is ExpiryOutcome.FOLLOWED
    assert (len(tier.finished()), retrieved(tier)) == (4, (0, 39))
    assert tier.expire(1, assignments=Assignments({})).partitions == ()


def test_two_runs_that_expire_at_once_share_no_partition(tier: Tier) -> None:
    held = tier.schedule("another").take_due(TierTask.EXPIRE, {ORDERS})
    assert only(tier.expire(1)).outcome is ExpiryOutcome.NOT_DUE
    held.close()
    assert tier.expire(1).deleted_count == 3


@dataclass(slots=True)
class WatchedClock(VirtualClock):
    """`on_wait` is called at the first wait, while the waiting copy holds its turn and its lease."""

    on_wait: Callable[[], None] = lambda: None

    def wait_ms(self, duration_ms: int) -> None:
        first, self.on_wait = self.on_wait, lambda: None
        first()
        VirtualClock.wait_ms(self, duration_ms)


def test_copy_that_waits_for_its_quota_does_not_block_expiry(tmp_path: Path) -> None:
    tier, clock = Tier(root=tmp_path), WatchedClock(time_ms=NOW)
    tier.clock = clock
    write_partition(tier.logs, "orders", 0, [segment(n * 10, NOW - (4 - n) * HOUR) for n in range(5)])
    for committed in (20, 50):
        write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): committed})
        if committed == 20:
            tier.copy(tier.schedule("copier"))
    expired = list[tuple[int, int, list[int]]]()

    def expire_once() -> None:
        copied = [start for start, _ in tier.finished()]
        expired.append((tier.expire(150 * 60_000).deleted_count, clock.time_ms, copied))

    clock.on_wait = expire_once
    summary = tier.copy(tier.schedule("another", ignores_times=True), threads=1, quota=QuotaConfig(bytes_per_second=1))
    # One segment was copied at once; the second waits until the first is paid for.
    assert expired == [(2, NOW, [0, 10, 20])]
    assert (summary.copied_count, summary.throttle.waited_count, clock.waits[0]) == (2, 1, 1_000)
    assert tier.finished() == [(20, 29), (30, 39)]
    tier.require_sound()


def test_expiry_goes_on_between_any_two_steps_of_a_copy(tier: Tier) -> None:
    leave_started(tier)
    tier.clock.time_ms += 60_000
    expired = list[int]()

    def expire_meanwhile(_: str) -> None:
        tier.break_at = lambda _: None
        expired.append(tier.expire(30 * 60_000).deleted_count)
        tier.break_at = expire_meanwhile

    tier.break_at = expire_meanwhile
    copied = tier.copy(tier.schedule("copier", ignores_times=True), threads=1)
    assert [each.outcome.value for each in copied.partitions] == ["done"]
    # Both delete the last one, which is the unfinished copy.
    assert (expired[0], sum(expired)) == (3, 4)
    assert len(expired) > 10
    with tier.opened_events() as events:
        known = KnownEventLog(events)
    finished = [each for each in known.segments_of(ORDERS) if each.state is FINISHED]
    assert [each.start_offset for each in finished] == [30, 40]
    assert known.dropped_count <= 2
    assert len(tier.objects()) == 2
