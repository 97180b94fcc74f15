"""Test plans of partitions whose leaders were elected uncleanly and uploaded again and again: the log is served."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.index.partition_plan import plan_partition
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


def _segments(
    cluster: Cluster, removed: set[EpochStart], *, are_announced: bool
) -> dict[str, tuple[SegmentFacts, Log]]:
    """The uploads without what compaction removed. Brokers announce epochs and ends without looking at it."""
    found = {}
    for number, (first, log) in enumerate(cluster.uploads):
        starts, kept = _epoch_starts(log, first), [at for at in range(first, len(log)) if (log[at], at) not in removed]
        if not kept:
            continue
        batches = {log[at]: at for at in reversed(kept)}
        facts = SegmentFacts(
            topic_id="T",
            segment_id=str(number),
            start_offset=first,
            written_ms=number,
            is_usable=True,
            end_offset=len(log) - 1 if are_announced else kept[-1],
            leader_epochs=starts if are_announced else tuple(sorted(batches.items())),
            may_be_compacted=not are_announced,
        )
        found[facts.segment_id] = facts, log
    return found


def _served(segments: dict[str, tuple[SegmentFacts, Log]], checkpoint: tuple[EpochStart, ...]) -> list[EpochStart]:
    """The leader epochs and offsets of the records that are served, as the uploads have them."""
    (plan,) = plan_partition((facts for facts, _ in segments.values()), None, {"T": checkpoint}, {})
    served = []
    for each in plan.segments:
        if each.from_offset is not None and each.to_offset is not None:
            _, log = segments[each.segment.segment_id]
            served += [(log[offset], offset) for offset in range(each.from_offset, each.to_offset + 1)]
    return served


@pytest.mark.parametrize("are_announced", [True, False])
@pytest.mark.parametrize("removed_share", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_each_record_of_the_log_is_served_and_no_other(seed: int, removed_share: float, are_announced: bool) -> None:
    random = Random(seed)
    for _ in sampled(range(100)):
        cluster = Cluster(random)
        log = [(epoch, offset) for offset, epoch in enumerate(cluster.live())]
        # If batches were missing outside the log too, nothing would show where an upload leaves it.
        removed = {each for each in log if random.random() < removed_share}
        segments = _segments(cluster, removed, are_announced=are_announced)
        if segments:
            served = _served(segments, _epoch_starts([epoch for epoch, _ in log], 0))
            expected = [each for each in log if each not in removed]
            assert [each for each in served if each not in removed] == expected, (cluster.uploads, removed)
