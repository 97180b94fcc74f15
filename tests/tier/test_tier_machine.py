"""A tier whose log grows, is committed, copied, expired and cut by its broker, with a kill or a store that fails at any
step: no live record is ever lost, no finished segment lacks an object, nothing is seen by halves, the quota is kept."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment, build_segment
from coldlog.archive.local_tiered_storage import ROOT_DIRECTORY
from coldlog.archive.open_archive import open_archive_for_writing
from coldlog.errors import RetriableError
from coldlog.model.states import RemoteLogSegmentState
from coldlog.operations.copy_segments import random_uuid
from coldlog.operations.event_logs import KnownEventLog
from coldlog.tier.expiry import ExpiryReason, LogState, Retention, plan_expiry
from coldlog.tier.quota_config import QuotaConfig
from coldlog.tier.remote_segments import RemoteSegment
from coldlog.tier.segment_copy import SegmentCopier
from copying_tier import OPTIONS, ORDERS, BreakableLog, BreakableStore, BreakAt, KilledError, Tier, stem_of
from virtual_clock import most_over_quota

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
BYTES_PER_SECOND = 400
BREAKS = st.one_of(st.none(), st.tuples(st.integers(1, 16), st.booleans()))
"""At which step, and whether it is a kill (else the store fails)."""


class TieredLog(RuleBasedStateMachine):
    """The model: every segment that was ever closed, and the offset before which retention let go of records."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.tier = Tier(root=self.root, options=replace(OPTIONS, threads=1))
        self.closed: list[Segment] = []
        self.high_watermark = 0
        self.local_from = 0
        self.let_go_before = 0
        for _ in range(3):
            self.roll(offsets=2, is_future=False)
        self.commit(behind=0)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    @rule(offsets=st.integers(1, 5), is_future=st.sampled_from((False, False, False, True)))
    def roll(self, offsets: int, is_future: bool) -> None:
        """The active segment is closed, and another begins."""
        now_ms = self.tier.clock.now_ms() + (1_000_000 if is_future else 0)
        records = tuple(Record(timestamp_ms=now_ms, value=b"v" * 20) for _ in range(offsets))
        batch = Batch(base_offset=self._end, records=records)
        self.closed.append(Segment(batches=(batch,), index_interval_bytes=0))
        self._write_log()

    @rule(behind=st.sampled_from((0, 0, 1, 6)))
    def commit(self, behind: int) -> None:
        """Followers come up to some offsets behind the end."""
        self.high_watermark = max(self.high_watermark, self._end - behind)
        self._write_log()

    @rule(seconds=st.sampled_from((1, 20, 60)))
    def wait(self, seconds: int) -> None:
        self.tier.clock.time_ms += seconds * 1_000

    @precondition(lambda self: self._has_something_to_copy)
    @rule(breaks=BREAKS)
    def copy(self, breaks: tuple[int, bool] | None) -> None:
        """A run of the job, whole or up to where it breaks; then the quota of the run is looked at."""
        before = {each.segment_id for each in self._segments()}
        self._break(breaks)
        try:
            self.tier.copy(quota=QuotaConfig(bytes_per_second=BYTES_PER_SECOND))
        except KilledError:
            pass
        else:
            assert breaks is not None or not self._has_something_to_copy
        finally:
            self._break(None)
        begun = [each for each in self._segments() if each.segment_id not in before]
        paced = sorted((each.event_timestamp_ms, each.size_bytes) for each in begun)
        largest = max((size_bytes for _, size_bytes in paced), default=0)
        assert most_over_quota(paced, BYTES_PER_SECOND) <= largest + 1

    @precondition(lambda self: self._segments())
    @rule(breaks=BREAKS, retention_s=st.sampled_from((0, 0, 10, 40)), passes=st.booleans())
    def expire(self, breaks: tuple[int, bool] | None, retention_s: int, passes: bool) -> None:
        """What the rules of expiry say, deleted in their order, whole or up to where it breaks."""
        log = LogState(epochs=((0, 0),), log_start_offset=self.let_go_before, log_end_offset=self._end)
        now_ms = self.tier.clock.now_ms()
        plan = plan_expiry(
            self._segments(),
            log,
            Retention(retention_ms=retention_s * 1_000),
            now_ms=now_ms,
            passes_future_timestamps=passes,
        )
        for each in plan.expired:
            by_time = each.reason in (ExpiryReason.TIME, ExpiryReason.FUTURE_TIMESTAMP)
            is_copy = each.segment.state is FINISHED
            # A run that was cut has moved the log start already.
            assert not is_copy or by_time or each.segment.end_offset < self.let_go_before
            assert not by_time or passes or each.segment.max_timestamp_ms < now_ms - retention_s * 1_000
        # The log start comes first.
        self.let_go_before = max(self.let_go_before, plan.log_start_offset or 0)
        self._break(breaks)
        try:
            with self.tier.opened_events() as events:
                store = BreakableStore(open_archive_for_writing(str(self.tier.archive)), self.tier.break_at)
                log_of_events = BreakableLog(events, self.tier.break_at)
                copier = SegmentCopier(
                    archive=store,
                    events=KnownEventLog(log_of_events, events.read_segments()),
                    clock=self.tier.clock,
                    new_id=random_uuid,
                    broker_id=OPTIONS.broker_id,
                )
                for each in plan.expired:
                    copier.delete(each.segment)
        except (KilledError, RetriableError):
            pass
        finally:
            self._break(None)

    @precondition(lambda self: self.closed)
    @rule(keeps=st.integers(0, 2))
    def cut_local_log(self, keeps: int) -> None:
        """The broker deletes closed segments of its own that are in the tier, but for the last few."""
        finished = [each for each in self._segments() if each.was_copied]
        covered = {offset for each in finished for offset in range(each.start_offset, each.end_offset + 1)}
        for each in self.closed[: len(self.closed) - keeps]:
            if each.start_offset == self.local_from and set(range(each.start_offset, each.end_offset + 1)) <= covered:
                self.local_from = each.end_offset + 1
        self._write_log()

    @invariant()
    def no_live_record_is_lost(self) -> None:
        if not hasattr(self, "root"):
            return
        remote = {
            offset
            for each in self._segments()
            if each.state is FINISHED
            for offset in range(each.start_offset, each.end_offset + 1)
        }
        for offset in range(self.let_go_before, self.local_from):
            assert offset in remote, f"{offset} is neither local nor in the tier"

    @invariant()
    def every_finished_segment_has_its_objects_and_none_is_without_an_event(self) -> None:
        if not hasattr(self, "root"):
            return
        objects, true = self.tier.objects(), {each.start_offset: each for each in self.closed}
        known = self._segments()
        for each in known:
            stem = stem_of(ORDERS, each)
            if each.state is FINISHED:
                log = (self.tier.archive / ROOT_DIRECTORY / f"{stem}.log").read_bytes()
                assert log == build_segment(true[each.start_offset].batches)
                assert len(objects[stem]) == 5
                assert each.end_offset < self.high_watermark
            assert each.state is not DELETED or stem not in objects
        assert objects.keys() <= {stem_of(ORDERS, each) for each in known}

    @invariant()
    def no_offset_is_served_twice(self) -> None:
        if not hasattr(self, "root"):
            return
        finished = [each for each in self._segments() if each.state is FINISHED]
        offsets = [offset for each in finished for offset in range(each.start_offset, each.end_offset + 1)]
        assert len(offsets) == len(set(offsets))

    @property
    def _has_something_to_copy(self) -> bool:
        known = {each.start_offset for each in self._segments() if each.was_copied}
        # What expiry began to delete is left to expiry.
        is_left = any(each.state in (STARTED, DELETING) and not each.was_copied for each in self._segments())
        return is_left or any(
            each.start_offset not in known and each.end_offset < self.high_watermark for each in self.closed
        )

    @property
    def _end(self) -> int:
        return self.closed[-1].end_offset + 1 if self.closed else 0

    def _segments(self) -> tuple[RemoteSegment, ...]:
        return self.tier.segments().get(ORDERS, ())

    def _break(self, breaks: tuple[int, bool] | None) -> None:
        if breaks is None:
            self.tier.break_at = lambda _: None
        else:
            failure = KilledError() if breaks[1] else RetriableError("the store is down")
            self.tier.break_at = BreakAt(breaks[0], failure)

    def _write_log(self) -> None:
        shutil.rmtree(self.tier.logs, ignore_errors=True)
        active = Segment(batches=(Batch(base_offset=self._end, records=(Record(timestamp_ms=0, value=b"a"),)),))
        gone = sum(each.end_offset < self.local_from for each in self.closed)
        write_partition(self.tier.logs, "orders", 0, [*self.closed, active], first=gone)
        write_offset_checkpoint(self.tier.logs / HIGH_WATERMARKS, {("orders", 0): self.high_watermark})


TieredLog.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestTieredLog = TieredLog.TestCase
