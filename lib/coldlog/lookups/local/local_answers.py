"""local_answers: what becomes of the archive's answers where a local tier knows the rest of the log?

They are completed (by what is not archived yet) and bounded (by where the log begins by now, and by what a consumer may
see). Where the index is older than the log, that is said (STALE_INDEX) rather than guessed, unless the tier knows the
archived part itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coldlog.errors import NotSupportedError
from coldlog.lookups.local.local_tier import FoundOffset, LocalLogState, LocalTier
from coldlog.lookups.questions import Answers
from coldlog.lookups.served_index import NOTHING, PartitionFacts
from coldlog.model.list_offsets import UNKNOWN_EPOCH, ErrorCode, SpecialTimestamp

_OF_THE_TIER = (SpecialTimestamp.LATEST_TIERED, SpecialTimestamp.EARLIEST_PENDING_UPLOAD)


@dataclass(frozen=True, slots=True)
class LocalTail:
    """One partition's local tier beside its archive."""

    local: LocalTier
    topic: str
    partition: int
    facts: PartitionFacts | None
    state: LocalLogState
    broker_compatible: bool = False

    @property
    def search_from(self) -> int:
        """Where the local search begins: behind the archive, and not before the log."""
        archived = 0 if self.facts is None else self.facts.local_start_offset
        return max(archived, self.state.log_start_offset)

    @property
    def has_hole(self) -> bool:
        """Segments were archived and left the local tier since the index was made: neither of both has them."""
        return self.state.local_log_start_offset > self.search_from

    def complete(self, answers: Answers, at: int, timestamp_ms: int) -> None:
        """The first at or after a time: the archive's answer stands unless the log begins behind it by now."""
        was_found = answers.offsets[at] >= 0
        from_offset = self.search_from
        if was_found or self.local.covers_archive:
            from_offset = self.state.log_start_offset
        elif self.broker_compatible:
            # The broker's rule may have passed over archived records that the log directory still has.
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
        """LATEST and the others."""
        if special is SpecialTimestamp.LATEST:
            leader = self.state.leader_epoch
            answers.find(at, FoundOffset(offset=fetchable, timestamp_ms=NOTHING, leader_epoch=leader))
        elif special is SpecialTimestamp.MAX_TIMESTAMP:
            self._find_max_timestamp(answers, at)
        else:
            self._find_place(answers, at, special, fetchable)

    def _find_place(self, answers: Answers, at: int, special: SpecialTimestamp, fetchable: int) -> None:
        if special in _OF_THE_TIER and self.state.highest_tiered_offset is None and self.has_hole:
            answers.refuse(np.array([at]), ErrorCode.STALE_INDEX)
            return
        if special is SpecialTimestamp.EARLIEST_PENDING_UPLOAD and self._may_have_no_tier:
            # Tiered or not, nobody is told of what lies where nobody may read.
            is_known = self.state.log_start_offset >= fetchable
            answers.refuse(np.array([at]), ErrorCode.NONE if is_known else ErrorCode.LOCAL_REQUIRED)
            return
        places: dict[SpecialTimestamp, int | None] = {
            SpecialTimestamp.EARLIEST: self.state.log_start_offset,
            SpecialTimestamp.EARLIEST_LOCAL: self.state.local_log_start_offset,
            SpecialTimestamp.LATEST_TIERED: self._highest_tiered,
            SpecialTimestamp.EARLIEST_PENDING_UPLOAD: self._first_pending,
        }
        offset = places[special]
        if offset is not None:
            epoch = self.local.leader_epoch_at(self.topic, self.partition, offset)
            if epoch < 0 and self.facts is not None:
                told = self.facts.leader_epoch_at(offset)
                epoch = UNKNOWN_EPOCH if told is None else told
            answers.find(at, FoundOffset(offset=offset, timestamp_ms=NOTHING, leader_epoch=epoch))

    @property
    def _highest_tiered(self) -> int | None:
        told = self.state.highest_tiered_offset
        if told is not None:
            return None if told < 0 else told
        return None if self.facts is None else self.facts.latest_tiered_offset

    @property
    def _may_have_no_tier(self) -> bool:
        """Nothing of the partition is archived, and whether it ever will be is not known."""
        is_told = self.state.earliest_pending_offset is not None
        return self.facts is None and self._highest_tiered is None and not is_told

    @property
    def _first_pending(self) -> int | None:
        tiered, state = self._highest_tiered, self.state
        if state.earliest_pending_offset is not None:
            return state.earliest_pending_offset if state.earliest_pending_offset >= 0 else None
        if tiered is not None:
            return max(tiered + 1, state.log_start_offset)
        return state.log_start_offset if state.local_log_start_offset == state.log_start_offset else None

    def _find_max_timestamp(self, answers: Answers, at: int) -> None:
        """The larger of the archive's, which was found before, and the local tier's; the lower offset on ties."""
        is_cut_off = 0 <= answers.offsets[at] < self.state.log_start_offset
        if self.state.local_log_start_offset > (self.state.log_start_offset if is_cut_off else self.search_from):
            # A broker, too, tells the largest of its local segments only.
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
