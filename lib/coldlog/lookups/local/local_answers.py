"""Complete and limit the archive's answers with a local tier that knows the rest of the log.

Records that are not archived yet complete the answers. The current log start, and the offset up to which a consumer may
read, limit them. If the index is older than the log, the answer is STALE_INDEX, not a guess, unless the tier knows the
archived part too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coldlog.errors import NotSupportedError
from coldlog.lookups.index_rows import NOTHING, Int64s
from coldlog.lookups.local.local_tier import FoundOffset, LocalLogState, LocalTier
from coldlog.lookups.partition_facts import PartitionFacts
from coldlog.lookups.questions import Answers, Flags
from coldlog.model.list_offsets import UNKNOWN_EPOCH, ErrorCode, SpecialTimestamp

_OF_THE_TIER = (SpecialTimestamp.LATEST_TIERED, SpecialTimestamp.EARLIEST_PENDING_UPLOAD)


@dataclass(frozen=True, slots=True)
class LocalTail:
    """The local tier of one partition, next to its archive."""

    local: LocalTier
    topic: str
    partition: int
    facts: PartitionFacts | None
    state: LocalLogState
    broker_compatible: bool = False

    @property
    def search_from(self) -> int:
        """Return where the local search begins: after the archive, and not before the log start."""
        archived = 0 if self.facts is None else self.facts.local_start_offset
        return max(archived, self.state.log_start_offset)

    @property
    def has_hole(self) -> bool:
        """True if segments were archived and left the local tier since the index was built: neither has them."""
        return self.state.local_log_start_offset > self.search_from

    @property
    def is_tier_known(self) -> bool:
        """True if this tier says what is archived; otherwise the index does."""
        return self.state.highest_tiered_offset is not None

    def searched_from(self, timestamps_ms: Int64s, is_settled: Flags) -> Int64s:
        """Return from where each request searched, besides the archive. A broker searches its whole log."""
        from_offsets = np.full(len(timestamps_ms), self.search_from)
        if self.local.covers_archive:
            from_offsets[(timestamps_ms >= 0) & ~is_settled] = 0
        return from_offsets

    def search_passed_over(self, answers: Answers, at: int, timestamp_ms: int) -> bool:
        """Search the offsets that the archive passed over, if this tier has them; return whether it does."""
        from_offset = max(int(answers.passed_from[at]), self.state.log_start_offset)
        if self.state.local_log_start_offset > from_offset and not self.local.covers_archive:
            return False
        found = self.local.find_offset(self.topic, self.partition, timestamp_ms, from_offset)
        if found is not None and (answers.offsets[at] < 0 or found.offset < answers.offsets[at]):
            answers.find(at, found)
        return True

    def complete(self, answers: Answers, at: int, timestamp_ms: int) -> None:
        """Answer a time. The archive's answer stays unless the log now begins after it."""
        was_found = answers.offsets[at] >= 0
        from_offset = self.search_from
        if was_found or self.local.covers_archive:
            from_offset = self.state.log_start_offset
        elif self.broker_compatible:
            # By the broker's rule the archive's search may skip records that the log directory still has.
            from_offset = min(from_offset, self.state.local_log_start_offset)
        if self.state.local_log_start_offset > from_offset and not self.local.covers_archive:
            answers.refuse(np.array([at]), ErrorCode.STALE_INDEX)
            return
        found = self.local.find_offset(
            self.topic, self.partition, timestamp_ms, from_offset, broker_compatible=self.broker_compatible
        )
        if found is None:
            answers.refuse(np.array([at]), ErrorCode.NONE)
        else:
            answers.find(at, found)

    def answer_special(self, answers: Answers, at: int, special: SpecialTimestamp, fetchable: int) -> None:
        """Answer a special timestamp."""
        if special is SpecialTimestamp.LATEST:
            leader = self.state.leader_epoch
            answers.find(at, FoundOffset(offset=fetchable, timestamp_ms=NOTHING, leader_epoch=leader))
        elif special is SpecialTimestamp.MAX_TIMESTAMP:
            self._find_max_timestamp(answers, at)
        else:
            self._find_position(answers, at, special, fetchable)

    def _find_position(self, answers: Answers, at: int, special: SpecialTimestamp, fetchable: int) -> None:
        if special in _OF_THE_TIER and self.state.highest_tiered_offset is None and self.has_hole:
            answers.refuse(np.array([at]), ErrorCode.STALE_INDEX)
            return
        if special is SpecialTimestamp.EARLIEST_PENDING_UPLOAD and self._may_have_no_tier:
            # Nothing is fetchable, so there is no offset in any case, tiered or not.
            is_known = self.state.log_start_offset >= fetchable
            answers.refuse(np.array([at]), ErrorCode.NONE if is_known else ErrorCode.LOCAL_REQUIRED)
            return
        offsets: dict[SpecialTimestamp, int | None] = {
            SpecialTimestamp.EARLIEST: self.state.log_start_offset,
            SpecialTimestamp.EARLIEST_LOCAL: self.state.local_log_start_offset,
            SpecialTimestamp.LATEST_TIERED: self._highest_tiered,
            SpecialTimestamp.EARLIEST_PENDING_UPLOAD: self._first_pending,
        }
        offset = offsets[special]
        if offset is not None:
            epoch = self.local.leader_epoch_at(self.topic, self.partition, offset)
            if epoch < 0 and self.facts is not None:
                known_epoch = self.facts.leader_epoch_at(offset)
                epoch = UNKNOWN_EPOCH if known_epoch is None else known_epoch
            answers.find(at, FoundOffset(offset=offset, timestamp_ms=NOTHING, leader_epoch=epoch))

    @property
    def _highest_tiered(self) -> int | None:
        highest = self.state.highest_tiered_offset
        if highest is not None:
            return None if highest < 0 else highest
        return None if self.facts is None else self.facts.latest_tiered_offset

    @property
    def _may_have_no_tier(self) -> bool:
        """True if nothing of the partition is archived, and it is unknown whether it is tiered."""
        is_pending_known = self.state.earliest_pending_offset is not None
        return self.facts is None and self._highest_tiered is None and not is_pending_known

    @property
    def _first_pending(self) -> int | None:
        tiered, state = self._highest_tiered, self.state
        if state.earliest_pending_offset is not None:
            return state.earliest_pending_offset if state.earliest_pending_offset >= 0 else None
        if tiered is not None:
            return max(tiered + 1, state.log_start_offset)
        return state.log_start_offset if state.local_log_start_offset == state.log_start_offset else None

    def _find_max_timestamp(self, answers: Answers, at: int) -> None:
        """Take the larger of the archive's timestamp, found before, and the local tier's; the lower offset on ties."""
        is_cut_off = 0 <= answers.offsets[at] < self.state.log_start_offset
        if self.state.local_log_start_offset > (self.state.log_start_offset if is_cut_off else self.search_from):
            # A broker also knows only the largest timestamp of its local segments.
            answers.refuse(np.array([at]), ErrorCode.STALE_INDEX)
            return
        try:
            found = self.local.find_max_timestamp(self.topic, self.partition)
        except NotSupportedError:
            answers.refuse(np.array([at]), ErrorCode.UNSUPPORTED_VERSION)
            return
        if is_cut_off:
            answers.refuse(np.array([at]), ErrorCode.NONE)
        if found is not None and (answers.offsets[at] < 0 or found.timestamp_ms > answers.timestamps_ms[at]):
            answers.find(at, found)
