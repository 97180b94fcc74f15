"""Test a tier in random steps: its log grows, is committed, copied, expired and cut by its broker, with a kill, a store
that fails or another run at any step. No live record is lost, no finished segment misses an object, no half copy is
visible, the quota is kept, and the schedule stays valid."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment, build_segment
from coldlog.archive.layouts.local_tiered_storage import ROOT_DIRECTORY
from coldlog.errors import RetriableError
from coldlog.formats.kafka.remote_log.remote_log_events import SegmentMetadataEvent
from coldlog.formats.kafka.remote_log.remote_log_metadata import decode_event
from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.copying.copy_partition import CopyOutcome
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.rules.remote_segments import RemoteSegment
from coldlog.tiering.tier_schedule import TierSchedule, TierTask
from copying_tier import OPTIONS, ORDERS, BreakAt, KilledError, Tier, stem_of
from drawn_examples import examples
from virtual_clock import most_over_quota

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
BYTES_PER_SECOND = 400
QUOTA = QuotaConfig(bytes_per_second=BYTES_PER_SECOND)
PAYMENTS = replace(ORDERS, topic="payments")
PLACES = (ORDERS, PAYMENTS)
BREAKS = st.one_of(st.none(), st.tuples(st.integers(1, 32), st.booleans()))
"""At which step, and whether it is a kill (else the store fails)."""
STEPS = st.integers(3, 32)
MEETINGS = st.sampled_from(
    [
        (sleeps, meets_copy, breaks)
        for sleeps in (True, False)
        for meets_copy in (True, False)
        for breaks in (None, None, (5, True), (9, False))
    ]
)
"""Whether a run sleeps over the end of its lease, whether it is a copy that runs meanwhile, where that one breaks."""

Meeting = tuple[bool, bool, tuple[int, bool] | None]


class TieredLog(RuleBasedStateMachine):
    """The model: every segment that was ever closed, and the offset before which retention deleted records. A second
    partition has the same records and is never cut by its broker; both share one quota and one schedule."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        options = replace(OPTIONS, threads=1)
        self.tier = Tier(root=self.root, options=options, breaks_tables=True, may_drop_events=True)
        self.closed: list[Segment] = []
        self.written = 0
        self.high_watermark = 0
        self.local_from = 0
        self.let_go_before = 0
        self.slept = 0
        self.runs = 0
        self.killed = set[str]()
        self.roll(offsets=2, is_future=False, count=3)
        self.commit(behind=0)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    @rule(offsets=st.integers(1, 5), is_future=st.sampled_from((False, False, False, True)), count=st.integers(1, 3))
    def roll(self, offsets: int, is_future: bool, count: int) -> None:
        """Close the active segment and begin another, so often."""
        now_ms = self.tier.clock.now_ms() + (1_000_000 if is_future else 0)
        for _ in range(count):
            records = tuple(Record(timestamp_ms=now_ms, value=b"v" * 20) for _ in range(offsets))
            batch = Batch(base_offset=self._end, records=records)
            self.closed.append(Segment(batches=(batch,), index_interval_bytes=0))
        self._write_log()

    @rule(behind=st.sampled_from((0, 0, 1, 6)))
    def commit(self, behind: int) -> None:
        """Move the high watermark to some offsets before the end."""
        self.high_watermark = max(self.high_watermark, self._end - behind)
        self._write_log()

    @rule(seconds=st.sampled_from((1, 20, 60, 90)))
    def wait(self, seconds: int) -> None:
        self.tier.clock.time_ms += seconds * 1_000

    @precondition(lambda self: self._has_something_to_copy)
    @rule(breaks=BREAKS, ignores_times=st.booleans())
    def copy(self, breaks: tuple[int, bool] | None, ignores_times: bool) -> None:
        """Run the job, completely or until it breaks."""
        self._copy(breaks, ignores_times)

    @precondition(lambda self: self._segments())
    @rule(breaks=BREAKS, retention_s=st.sampled_from((0, 0, 10, 40)), passes=st.booleans())
    def expire(self, breaks: tuple[int, bool] | None, retention_s: int, passes: bool) -> None:
        """Run the job; what it deletes is older than the retention, and whole segments from the beginning on."""
        self._expire(breaks, retention_s, passes)

    @precondition(lambda self: self._has_something_to_copy)
    @rule(step=STEPS, meeting=MEETINGS)
    def copy_that_meets_another_run(self, step: int, meeting: Meeting) -> None:
        """Run the job while another one runs at some step; only the invariants are checked."""
        with self._meeting(step, meeting):
            self.tier.copy(self._schedule(ignores_times=True), quota=QUOTA)

    @precondition(lambda self: self._segments())
    @rule(step=STEPS, meeting=MEETINGS)
    def expiry_that_meets_another_run(self, step: int, meeting: Meeting) -> None:
        """As `copy_that_meets_another_run`, for expiry."""
        with self._meeting(step, meeting):
            self.tier.expire(0, schedule=self._schedule(ignores_times=True))

    @contextmanager
    def _meeting(self, step: int, meeting: Meeting) -> Iterator[None]:
        """Run another job at a step of the run in the block, which may be suspended there until its lease has ended."""
        hook, count = self.tier.break_at, 0
        sleeps, meets_copy, breaks = meeting

        def run_another(_: str) -> None:
            nonlocal count
            count += 1
            if count != step:
                return
            self.tier.clock.time_ms += 61_000 * sleeps
            self.slept += sleeps
            if meets_copy:
                self._copy(breaks, ignores_times=True)
            else:
                self._expire(breaks, 0, passes=False)

        self.tier.break_at = run_another
        try:
            yield
        finally:
            self.tier.break_at = hook
        self._follow_log_start(retention_s=0, passes=False)

    def _copy(self, breaks: tuple[int, bool] | None, ignores_times: bool) -> None:
        hook = self.tier.break_at
        self._break(breaks)
        schedule = self._schedule(ignores_times=ignores_times)
        try:
            ended, _ = self.tier.copy(schedule, quota=QUOTA).partitions
        except KilledError:
            self.killed.add(schedule.options.holder)
        except RetriableError:
            # The schedule itself.
            assert breaks is not None
            self.killed.add(schedule.options.holder)
        else:
            is_over = ended.outcome is CopyOutcome.NOT_DUE or not self._has_something_to_copy
            assert breaks is not None or is_over
            assert breaks is None or ended.outcome is not CopyOutcome.DONE or is_over
        finally:
            self.tier.break_at = hook

    def _expire(self, breaks: tuple[int, bool] | None, retention_s: int, passes: bool) -> None:
        hook = self.tier.break_at
        self._break(breaks)
        schedule = self._schedule(ignores_times=True)
        try:
            self.tier.expire(retention_s * 1_000, schedule=schedule, passes_future_timestamps=passes)
        except KilledError:
            self.killed.add(schedule.options.holder)
        except RetriableError:
            assert breaks is not None
            self.killed.add(schedule.options.holder)
        finally:
            self.tier.break_at = hook
        self._follow_log_start(retention_s, passes)

    def _follow_log_start(self, retention_s: int, passes: bool) -> None:
        """Check that only records older than the retention were deleted."""
        start = self.tier.log_start() or 0
        assert start >= self.let_go_before
        for each in self.closed:
            if self.let_go_before <= each.end_offset < start:
                latest = max(record.timestamp_ms for batch in each.batches for record in batch.records)
                is_old = latest < self.tier.clock.now_ms() - retention_s * 1_000
                assert is_old or (passes and latest > self.tier.clock.now_ms())
        self.let_go_before = start

    def _schedule(self, *, ignores_times: bool) -> TierSchedule:
        """Return the schedule for a new run."""
        self.runs += 1
        return self.tier.schedule(f"run {self.runs}", ignores_times=ignores_times)

    @precondition(lambda self: self.closed)
    @rule(keeps=st.integers(0, 2))
    def cut_local_log(self, keeps: int) -> None:
        """Delete local closed segments that are in the tier, as a broker does, except the last few."""
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
        known, late = {stem_of(place, each): each for place in PLACES for each in self._segments(place)}, 0
        for stem, each in known.items():
            if each.state is FINISHED:
                log = (self.tier.archive / ROOT_DIRECTORY / f"{stem}.log").read_bytes()
                assert log == build_segment(true[each.start_offset].batches)
                assert len(objects[stem]) == 5
                assert each.end_offset < self.high_watermark
            late += each.state is DELETED and stem in objects
        # A run that is suspended in a put until its lease has ended puts this object, which no reader of events sees.
        assert late <= self.slept
        assert objects.keys() <= known.keys()

    @invariant()
    def no_offset_is_served_twice(self) -> None:
        if not hasattr(self, "root"):
            return
        for place in PLACES:
            finished = [each for each in self._segments(place) if each.state is FINISHED]
            offsets = [offset for each in finished for offset in range(each.start_offset, each.end_offset + 1)]
            assert len(offsets) == len(set(offsets))

    @invariant()
    def quota_is_kept_over_all_that_was_ever_begun(self) -> None:
        """Count all runs together, also those that met others or were killed."""
        if not hasattr(self, "root") or not self._segments():
            return
        begun = list[tuple[int, int]]()
        with self.tier.opened_events() as log:
            for _, value in log.open_reader().read_new():
                event = decode_event(value or b"")
                if isinstance(event, SegmentMetadataEvent):
                    begun.append((event.event_timestamp_ms, event.size_bytes))
        largest = max((size_bytes for _, size_bytes in begun), default=0)
        assert most_over_quota(sorted(begun), BYTES_PER_SECOND) <= largest

    @invariant()
    def schedule_is_sane(self) -> None:
        """Only killed runs hold leases, errors have a time, and no wait is longer than an interval."""
        if not hasattr(self, "root"):
            return
        now_ms = self.tier.clock.now_ms()
        for task in TierTask:
            for entry in self._schedule(ignores_times=False).entries(task).values():
                assert not entry.is_held(now_ms) or (entry.lease and entry.lease.holder in self.killed)
                assert (entry.last_error is None) == (entry.failed_ms is None)
                assert entry.next_processing_ms <= now_ms + 30_000
                assert not entry.is_marked_deleted

    @property
    def _has_something_to_copy(self) -> bool:
        known = {each.start_offset for each in self._segments() if each.was_copied}
        # A deletion that expiry has begun is finished by expiry.
        is_left = any(each.state in (STARTED, DELETING) and not each.was_copied for each in self._segments())
        return is_left or any(
            each.start_offset not in known and each.end_offset < self.high_watermark for each in self.closed
        )

    @property
    def _end(self) -> int:
        return self.closed[-1].end_offset + 1 if self.closed else 0

    def _segments(self, place: TopicIdPartition = ORDERS) -> tuple[RemoteSegment, ...]:
        return self.tier.segments().get(place, ())

    def _break(self, breaks: tuple[int, bool] | None) -> None:
        if breaks is None:
            self.tier.break_at = lambda _: None
        else:
            failure = KilledError() if breaks[1] else RetriableError("the store is down")
            self.tier.break_at = BreakAt(breaks[0], failure)

    def _write_log(self) -> None:
        active = Segment(batches=(Batch(base_offset=self._end, records=(Record(timestamp_ms=0, value=b"a"),)),))
        for place in PLACES:
            write_partition(self.tier.logs, place.topic, 0, [*self.closed, active], first=self.written)
        self.written = len(self.closed)
        for each in self.closed:
            if each.end_offset < self.local_from:
                for path in (self.tier.logs / f"{ORDERS.topic}-0").glob(f"{each.start_offset:020d}.*"):
                    path.unlink()
        names = (place.topic for place in PLACES)
        write_offset_checkpoint(self.tier.logs / HIGH_WATERMARKS, {(name, 0): self.high_watermark for name in names})


TieredLog.TestCase.settings = settings(examples(30), stateful_step_count=18)
TestTieredLog = TieredLog.TestCase
