"""Answer as the leader of one partition, from batches in memory, without a connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from builders.segment_builder import Batch, build_batch
from builders.side_files import AbortedTransaction, ProducerStates
from coldlog.brokers.kafka_client import Cluster
from coldlog.brokers.offsets_client import (
    FetchedBatches,
    Leader,
    LeaderOffsets,
    ListedOffset,
    OffsetQuestion,
    OffsetsClient,
)
from coldlog.model.list_offsets import SpecialTimestamp

CLUSTER = Cluster(bootstrap_servers="127.0.0.1:9092", timeout_ms=500)


@dataclass(slots=True, kw_only=True)
class LogClient(OffsetsClient):
    """The leader of the log of `batches`, of which the first `decided` are below the high watermark. It notes
    its fetches, and the deadline of each question. `is_throttled`: it sends no records."""

    cluster: Cluster = CLUSTER
    batches: Sequence[Batch]
    decided: int
    topic_id: str = "A" * 21 + "Q"
    log_start: int = 0
    local_start: int = 0
    is_throttled: bool = False
    fetched: list[int] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)

    def newest_version(self) -> int:
        return SpecialTimestamp.LATEST_TIERED.since_version

    def list_offsets(
        self, topic: str, partition: int, questions: Sequence[OffsetQuestion], *, is_leader_asked: bool = False
    ) -> LeaderOffsets:
        self.deadlines.append(self.deadline)
        offsets = {-2: self.log_start, -4: self.local_start, -5: self.local_start - 1}
        answers = [
            ListedOffset(
                offset=offsets.get(each.timestamp_ms, self._end(is_committed=each.is_committed)),
                timestamp_ms=-1,
                leader_epoch=-1,
            )
            for each in questions
        ]
        return LeaderOffsets(leader=self._as_leader, answers=answers)

    def fetch_batches(
        self,
        topic: str,
        partition: int,
        from_offset: int,
        max_bytes: int,
        *,
        is_committed: bool = False,
        is_leader_asked: bool = False,
    ) -> FetchedBatches:
        """As a broker: the first batch whole, the last maybe cut, and the aborted transactions that overlap them."""
        self.fetched.append(from_offset)
        self.deadlines.append(self.deadline)
        end = self._end(is_committed=is_committed)
        found = [
            each for each in self.batches[: self.decided] if each.last_offset >= from_offset and each.base_offset < end
        ]
        content = b"".join(map(build_batch, found))
        content = content[: max(max_bytes, len(build_batch(found[0])))] if found and not self.is_throttled else b""
        until = found[-1].last_offset if found else from_offset
        overlapping = [
            (each.producer_id, each.first_offset)
            for each in self._transactions()[0]
            if each.last_offset >= from_offset and each.first_offset <= until
        ]
        return FetchedBatches(
            content=content,
            high_watermark=self._end(is_committed=False),
            topic_id=self.topic_id,
            aborted=tuple(overlapping) if is_committed else (),
        )

    @property
    def _as_leader(self) -> Leader:
        return Leader(node_id=1, leader_epoch=0, topic_id=self.topic_id)

    def _end(self, *, is_committed: bool) -> int:
        end = self.batches[self.decided - 1].last_offset + 1
        return min([end, *self._transactions()[1]]) if is_committed else end

    def _transactions(self) -> tuple[list[AbortedTransaction], list[int]]:
        """Return the aborted transactions, and the first offsets of the open ones."""
        states = ProducerStates()
        ended = [states.add(batch) for batch in self.batches[: self.decided]]
        firsts = (each.current_txn_first_offset for each in states.producers.values())
        return [each for each in ended if each is not None], [first for first in firsts if first >= 0]
