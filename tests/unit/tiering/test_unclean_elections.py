"""Test the rules of copying and expiry together, in histories of replicas whose leaders are elected uncleanly.

The leader writes, copies, expires and cuts its local log, as a broker without tiered storage does; then its checkpoint
of leader epochs is cut too. After that each record that is in the leader's log and younger than the retention must
still be local, or in the tier at or after the log start. Only what an election itself has lost may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest

from builders.remote_segments import remote
from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.eligible_segments import LocalLog, plan_copies
from coldlog.tiering.rules.expiry import LogState, Retention, plan_expiry
from coldlog.tiering.rules.remote_segments import RemoteSegment, join_lineage
from coldlog.tiering.rules.valid_log_start import find_valid_log_start
from drawn_examples import sampled

_, FINISHED, _, DELETED = RemoteLogSegmentState


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A batch; two batches are the same only if one is a replica of the other."""

    base_offset: int
    end: int
    epoch: int
    time_ms: int


@dataclass(slots=True)
class Replica:
    """A log; before `local_start` it is only in the tier."""

    log: list[Written] = field(default_factory=list)
    local_start: int = 0

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else 0

    def lineage(self) -> list[EpochStart]:
        """The leader epoch checkpoint, cut at the local start."""
        begun = dict[int, int]()
        for batch in self.log:
            begun.setdefault(batch.epoch, batch.base_offset)
        return list(LeaderEpochLineage.of(begun.items(), self.local_start).entries)

    def follow(self, leader: Replica, random: Random) -> None:
        """Cut what the leader does not have, then fetch a part of the rest."""
        pairs = enumerate(zip(self.log, leader.log, strict=False))
        same = next((at for at, (a, b) in pairs if a is not b), min(len(self.log), len(leader.log)))
        self.local_start = min(self.local_start, leader.log[same - 1].end if same else 0)
        self.log = leader.log[: random.randint(same, len(leader.log))]


@dataclass(slots=True)
class History:
    """Three replicas and their tier."""

    seed: int
    replicas: list[Replica] = field(default_factory=lambda: [Replica(), Replica(), Replica()])
    leading: int = 0
    epoch: int = 0
    now_ms: int = 0
    log_start: int = 0
    segments: dict[int, RemoteSegment] = field(default_factory=dict)
    contents: dict[int, Sequence[Written]] = field(default_factory=dict)
    random: Random = field(init=False)
    retention: Retention = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.retention = Retention(retention_ms=self.random.choice((15, 40, -1)))

    @property
    def leader(self) -> Replica:
        return self.replicas[self.leading]

    def live(self, steps: int) -> None:
        """Do so many random steps; check after each that may lose something."""
        for _ in range(steps):
            chance = self.random.random()
            if chance < 0.52:
                self.now_ms += 1
                end = self.leader.end + self.random.randint(1, 4)
                self.leader.log.append(Written(self.leader.end, end, self.epoch, self.now_ms))
            elif chance < 0.67:
                for each in self.replicas:
                    if each is not self.leader and self.random.random() < 0.7:
                        each.follow(self.leader, self.random)
            elif chance < 0.79:
                self.copy()
            elif chance < 0.95:
                lost = self.find_lost()
                (self.expire if chance < 0.88 else self.cut)()
                assert not self.find_lost() - lost, self.seed
            else:
                self.leading, self.epoch = self.random.randrange(3), self.epoch + 1

    def local_segments(self) -> list[list[Written]]:
        """The leader's segments, as this replica has rolled them."""
        rolled: list[list[Written]] = []
        for batch in self.leader.log:
            chance = Random(f"{self.seed} {self.leading} {batch.base_offset} {batch.epoch}").random()
            if not rolled or chance < 0.35:
                rolled.append([])
            rolled[-1].append(batch)
        return [each for each in rolled if each[-1].end > self.leader.local_start]

    def find_uncopied(self) -> set[int]:
        """The base offsets of the segments to copy."""
        log = LocalLog(
            base_offsets=tuple(each[0].base_offset for each in self.local_segments()),
            log_start_offset=self.leader.local_start,
            last_stable_offset=self.leader.end,
            lineage=LeaderEpochLineage.of(self.leader.lineage()),
        )
        planned = plan_copies(log, tuple(self.segments.values()), lambda: self.log_start)
        return {each.base_offset for each in planned}

    def copy(self) -> None:
        """Copy what is to be copied; the run may stop after each segment."""
        uncopied, lineage = self.find_uncopied(), self.leader.lineage()
        for batches, following in pairwise(self.local_segments()):
            start, end = batches[0].base_offset, following[0].base_offset
            if start not in uncopied:
                continue
            first = [(epoch, start) for epoch, offset in lineage if offset <= start][-1:]
            epochs = dict([*first, *((epoch, offset) for epoch, offset in lineage if start < offset < end)])
            number = len(self.segments)
            self.segments[number] = remote(
                start, end - 1, epochs=epochs, max_ms=batches[-1].time_ms, number=self.random.getrandbits(40)
            )
            self.contents[number] = batches
            if self.random.random() < 0.2:
                return

    def expire(self) -> None:
        """Run the expiry of the leader, as `expiry_state` and `expire_partition` do."""
        finished = [each for each in self.segments.values() if each.state is FINISHED]
        if not finished or not self.leader.log:
            return
        lineage = join_lineage(self.leader.lineage(), finished)
        known = tuple(self.segments.values())
        start = find_valid_log_start(self.log_start, known, LeaderEpochLineage.of(lineage))
        log = LogState(
            epochs=LeaderEpochLineage.of(lineage, start).entries,
            log_start_offset=start,
            log_end_offset=max(each.end_offset for each in finished) + 1,
        )
        plan = plan_expiry(known, log, self.retention, now_ms=self.now_ms)
        self.log_start = max(start, plan.log_start_offset or 0)
        gone = {each.segment.segment_id for each in plan.expired}
        for number, each in self.segments.items():
            if each.segment_id in gone:
                self.segments[number] = replace(each, state=DELETED)

    def cut(self) -> None:
        """Delete local segments that need no copy, from the first on."""
        uncopied = self.find_uncopied()
        for batches in self.local_segments()[:-1]:
            if batches[0].base_offset in uncopied or self.random.random() < 0.3:
                return
            self.leader.local_start = batches[-1].end

    def find_lost(self) -> set[Written]:
        """What is in the leader's log and not too old, but neither local nor served from the tier."""
        finished = {number: each for number, each in self.segments.items() if each.state is FINISHED}
        lineage = LeaderEpochLineage.of(join_lineage(self.leader.lineage(), finished.values()))
        start = find_valid_log_start(self.log_start, self.segments.values(), lineage)
        served = {batch for number in finished for batch in self.contents[number] if batch.base_offset >= start}
        keeps_ms = self.retention.retention_ms
        live = (each for each in self.leader.log if keeps_ms < 0 or each.time_ms >= self.now_ms - keeps_ms)
        return {each for each in live if each.end <= self.leader.local_start} - served


@pytest.mark.parametrize("first", range(0, 700, 100))
def test_no_record_of_the_leaders_log_is_lost(first: int) -> None:
    for seed in sampled(range(first, first + 100)):
        history = History(seed)
        history.live(100)
