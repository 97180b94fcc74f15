"""Test plans of partitions whose leaders were elected uncleanly and uploaded again and again: the log is served."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.index.partition_plan import IncarnationPlan, plan_partition
from coldlog.index.segment_facts import SegmentFacts
from drawn_examples import sampled

Log = list[int]
"""The leader epoch of each offset. As in Kafka, logs that have the same epoch at an offset are the same up to there."""


@dataclass(slots=True)
class Cluster:
    """Three replicas of a partition. Any of them may be elected, whatever it has, and uploads segments of its log."""

    random: Random
    logs: list[Log] = field(default_factory=lambda: [[], [], []])
    uploads: list[tuple[int, Log]] = field(default_factory=list)
    """The first offset of each segment, and the log up to its end."""

    def live(self) -> Log:
        """Return the log of the last leader, which has uploaded all of it."""
        for epoch in range(self.random.randrange(2, 7)):
            leader = self.random.choice(self.logs)
            leader += [epoch] * self.random.randrange(1, 8)
            self._upload(leader, self.random.randrange(len(leader)))
            for follower in self.logs:
                if self.random.random() < 0.6:
                    known = next(
                        (at for at, pair in enumerate(zip(leader, follower, strict=False)) if pair[0] != pair[1]), None
                    )
                    common = min(len(leader), len(follower)) if known is None else known
                    follower[:] = leader[: self.random.randrange(common, len(leader) + 1)]
        self._upload(leader, 0)
        return leader

    def _upload(self, log: Log, first: int) -> None:
        while first < len(log):
            end = min(first + self.random.randrange(1, 10), len(log))
            self.uploads.append((first, log[:end]))
            first = end


def _epoch_starts(log: Log, first: int) -> tuple[EpochStart, ...]:
    return tuple((log[at], at) for at in range(first, len(log)) if at == first or log[at] != log[at - 1])


def _plan(uploads: list[tuple[int, Log]], log: Log) -> IncarnationPlan:
    facts = [
        SegmentFacts(
            topic_id="T",
            segment_id=str(number),
            start_offset=first,
            written_ms=number,
            is_usable=True,
            end_offset=len(copied) - 1,
            leader_epochs=_epoch_starts(copied, first),
        )
        for number, (first, copied) in enumerate(uploads)
    ]
    (found,) = plan_partition(facts, None, {"T": _epoch_starts(log, 0)}, {})
    return found


def _served(plan: IncarnationPlan, uploads: list[tuple[int, Log]]) -> list[tuple[int, int]]:
    """The offsets that are served, and the epochs that the uploads have there."""
    found = []
    for each in plan.segments:
        if each.from_offset is not None and each.to_offset is not None:
            _, copied = uploads[int(each.segment.segment_id)]
            found += [(offset, copied[offset]) for offset in range(each.from_offset, each.to_offset + 1)]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_each_offset_of_the_log_is_served_with_the_record_of_the_log(seed: int) -> None:
    random = Random(seed)
    for _ in sampled(range(100)):
        cluster = Cluster(random)
        log = cluster.live()
        assert _served(_plan(cluster.uploads, log), cluster.uploads) == list(enumerate(log)), cluster
