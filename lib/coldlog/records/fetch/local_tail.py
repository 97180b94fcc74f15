"""Fetch from a broker's log directory, or from the brokers, what the archive does not have yet.

The archive answers up to its end, for readers of committed records up to its last stable offset. From there on the
local log answers, up to the high watermark or the last stable offset that it shows. So each record is read once.
The state of a partition is kept until a fetch reaches its end: both ends only grow.

The log begins at the archive's log start: brokers that do not tier move theirs by their own retention, and the archive
still has those records. Only if the archive has no offsets, the local log start counts too.

If the local log begins after the archive's end, neither has the offsets between (`StaleArchive`): segments were
archived and left the directory since the index was built, or the offsets are lost. Brokers that tier have what left
their disks. If the leader epochs of both contradict each other, one of the two has records that the log no longer has
(`lookups.local.seam`): then newer tables may know more, too. If the topic was created again, the local log has another
topic, and the archive answers alone; so it does if the local log does not have the partition.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from coldlog.errors import ArchiveError, RetriableError
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.local.local_tier import FoundOffset, LocalLog, LocalLogState
from coldlog.lookups.local.seam import find_contradiction
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.records.aborted_transactions import NOTHING_ABORTED, aborted_in
from coldlog.records.fetch.archive_tables import ArchivedPartition
from coldlog.records.fetch.slice_reader import iter_records
from coldlog.records.fetch.slices import LogSlice

_OF_ANOTHER_LOG = "run run_pipeline when the newer one is archived, or read the archive alone"


@dataclass(frozen=True, slots=True)
class StaleArchive:
    """The answer, unless newer tables know more."""

    failure: FetchFailure


class LocalTail:
    """The log directory, or the brokers, behind an archive. Threads share it."""

    def __init__(self, tier: LocalLog, limits: DecodeLimits) -> None:
        self._tier = tier
        self._name = "the brokers" if tier.covers_archive else "the log directory"
        self._limits = limits
        self._states: dict[tuple[str, int], LocalLogState] = {}
        self._joined: dict[tuple[str, int], int] = {}
        """Ends of the archive that the local log is known to continue."""

    def ends(self, topic: str, partition: int, archived: ArchivedPartition | None) -> PartitionEnds | None:
        """Return where the whole log begins and ends now; None if nobody knows the partition."""
        state = self._read_state(self._tier, topic, partition, archived)
        return _joined(archived, state)

    def find_offset(
        self, topic: str, partition: int, timestamp_ms: int, archived: ArchivedPartition | None
    ) -> FoundOffset | None:
        """Return the first record at or after a time that is not archived yet. Raise `RetriableError` if an earlier one
        may have left the local log and is not indexed."""
        state = self._read_state(self._tier, topic, partition, archived)
        if state is None:
            return None
        first = max(_log_start(archived, state), 0 if archived is None else archived.ends.end_offset)
        if self._first_offset(state) > first:
            raise RetriableError(f"offsets of {topic}-{partition} are missing: {self._left(first, state)}")
        found = self._tier.find_offset(topic, partition, timestamp_ms, first)
        return None if found is None or found.offset >= state.high_watermark else found

    def go_on(
        self, request: FetchRequest, archived: ArchivedPartition | None, planned: LogSlice | FetchAnswer
    ) -> LogSlice | FetchAnswer | StaleArchive:
        """Return what the archive has planned, with the ends of the whole log, or from the archive's end on the
        local log's answer. Raise `RetriableError` if it does not answer in the request's time."""
        tier = self._tier.until(time.time() + request.timeout_ms / 1000)
        try:
            if archived is None or request.offset >= archived.ends.readable_end(is_committed=request.is_committed):
                return self._fetch(tier, request, archived) or planned
            place = (request.topic, request.partition)
            state = self._states.get(place) or self._read_state(tier, *place, archived)
        except ArchiveError as wrong:
            message = f"{request}: {wrong}, in {self._name}"
            return FetchFailure(error=FetchErrorCode.CORRUPT_MESSAGE, message=message)
        ends = _joined(archived, state)
        return planned if planned.ends is None or ends is None else replace(planned, ends=ends)

    def _fetch(
        self, tier: LocalLog, request: FetchRequest, archived: ArchivedPartition | None
    ) -> FetchAnswer | StaleArchive | None:
        place = (request.topic, request.partition)
        kept = self._states.get(place)
        is_joined = archived is None or self._is_joined(request, archived)
        if kept is not None and is_joined and self._first_offset(kept) <= request.offset < _readable_end(kept, request):
            answer = self._read(tier, request, kept, archived)
            if answer is not None:
                return answer
        state = self._read_state(tier, *place, archived)
        ends = _joined(archived, state)
        if state is None or ends is None:
            return None
        other = self._unread(tier, request, archived, state, ends)
        if other is not None:
            return other
        answer = self._read(tier, request, state, archived)
        if answer is None:
            raise RetriableError(
                f"{request}: {self._name} returned no records (as brokers do under a quota, or if their remote tier is "
                "slow), or changed meanwhile; try again"
            )
        return answer

    def _unread(
        self,
        tier: LocalLog,
        request: FetchRequest,
        archived: ArchivedPartition | None,
        state: LocalLogState,
        ends: PartitionEnds,
    ) -> FetchAnswer | StaleArchive | None:
        """Return the answer for an offset that is not to be read in the local log; None if it is."""
        if not ends.log_start_offset <= request.offset <= ends.end_offset:
            return self._out_of_range(request, ends, "")
        if request.offset >= _readable_end(state, request):
            return FetchedRecords(records=(), next_offset=request.offset, ends=ends, read_bytes=0)
        if request.offset < self._first_offset(state):
            return self._stale(request, archived, state, ends)
        if archived is None or self._is_joined(request, archived):
            return None
        place, end = (request.topic, request.partition), archived.ends.end_offset
        contradiction = find_contradiction(tier, *place, state, end, archived.lineage)
        if contradiction is not None:
            more = f", but that is another log: {contradiction}; {_OF_ANOTHER_LOG}"
            return StaleArchive(self._out_of_range(request, ends, more))
        if state.high_watermark >= end:
            self._joined[place] = end
        return None

    def _is_joined(self, request: FetchRequest, archived: ArchivedPartition) -> bool:
        """Return whether the local log is known to continue the archive."""
        return self._joined.get((request.topic, request.partition)) == archived.ends.end_offset

    def _read(
        self, tier: LocalLog, request: FetchRequest, state: LocalLogState, archived: ArchivedPartition | None
    ) -> FetchedRecords | None:
        """Return the records; None if the directory has changed, and has them no more, or another topic's."""
        place = request.topic, request.partition, request.offset, request.max_bytes
        found = tier.read_batches(*place, is_committed=request.is_committed)
        ends, until = _joined(archived, state), _readable_end(state, request)
        if found is None or ends is None or found.topic_id != state.topic_id:
            return None
        headers = found.headers.where(found.headers.base_offset < until)
        if not len(headers):
            return FetchedRecords(records=(), next_offset=until, ends=ends, read_bytes=len(found.content))
        first, last = int(headers.base_offset[0]), min(int(headers.last_offset[-1]), until - 1)
        aborted = aborted_in(found.txn_indexes).between(first, last) if request.is_committed else NOTHING_ABORTED
        records = iter_records(
            found.content,
            headers,
            position=int(headers.position[0]),
            bounds=RecordBounds(from_offset=request.offset, to_offset=last),
            aborted=aborted,
            limits=self._limits,
        )
        return FetchedRecords(
            records=tuple(records),
            next_offset=last + 1,
            ends=ends,
            read_bytes=len(found.content),
            aborted_transactions=tuple(aborted.rows()),
        )

    def close(self) -> None:
        """Close connections; no thread may ask any more."""
        self._tier.close_all()

    def _first_offset(self, state: LocalLogState) -> int:
        return state.log_start_offset if self._tier.covers_archive else state.local_log_start_offset

    def _stale(
        self, request: FetchRequest, archived: ArchivedPartition | None, state: LocalLogState, ends: PartitionEnds
    ) -> StaleArchive:
        first, known = ends.log_start_offset, 0
        if archived is not None:
            first = max(first, archived.ends.readable_end(is_committed=request.is_committed))
            known = min(archived.ends.end_offset, self._first_offset(state))
        reasons = []
        if first < known:
            reasons.append(
                f"a transaction is open where the archive ends, and {self._name} no longer has {first} to {known - 1}, "
                "which may be of it; run run_pipeline when its end is archived"
            )
        if max(first, known) < self._first_offset(state):
            reasons.append(self._left(max(first, known), state))
        failure = self._out_of_range(request, ends, f", but {'; '.join(reasons)}")
        return StaleArchive(replace(failure, resume_offset=self._first_offset(state)))

    def _left(self, first: int, state: LocalLogState) -> str:
        """Describe the offsets from `first` on that neither the archive nor the local log has."""
        return (
            f"{first} to {self._first_offset(state) - 1} left {self._name} and are not indexed; if they were archived, "
            "run run_pipeline"
        )

    def _out_of_range(self, request: FetchRequest, ends: PartitionEnds, more: str) -> FetchFailure:
        known = f"the archive and {self._name} have offsets {ends.log_start_offset} to {ends.end_offset - 1}"
        return FetchFailure(error=FetchErrorCode.OFFSET_OUT_OF_RANGE, message=f"{request}: {known}{more}", ends=ends)

    def _read_state(
        self, tier: LocalLog, topic: str, partition: int, archived: ArchivedPartition | None
    ) -> LocalLogState | None:
        state = tier.read_state(topic, partition)
        if state is not None and archived is not None and state.topic_id not in (None, archived.topic_id):
            state = None
        if state is None:
            self._states.pop((topic, partition), None)
        else:
            self._states[topic, partition] = state
        return state


def _readable_end(state: LocalLogState, request: FetchRequest) -> int:
    return state.last_stable_offset if request.is_committed else state.high_watermark


def _log_start(archived: ArchivedPartition | None, state: LocalLogState) -> int:
    """Return where the log begins: the archive's log start, unless the archive has no offsets."""
    if archived is None:
        return state.log_start_offset
    start = archived.ends.log_start_offset
    return start if start < archived.ends.end_offset else max(start, state.log_start_offset)


def _joined(archived: ArchivedPartition | None, state: LocalLogState | None) -> PartitionEnds | None:
    """Return where the archive and the directory together begin and end; None if neither has the partition."""
    if state is None:
        return None if archived is None else archived.ends
    ends = PartitionEnds(
        log_start_offset=state.log_start_offset,
        end_offset=state.high_watermark,
        last_stable_offset=state.last_stable_offset,
        topic_id=state.topic_id or "",
    )
    if archived is None:
        return ends
    return PartitionEnds(
        log_start_offset=_log_start(archived, state),
        end_offset=max(ends.end_offset, archived.ends.end_offset),
        last_stable_offset=max(ends.last_stable_offset, archived.ends.last_stable_offset),
        topic_id=archived.ends.topic_id,
    )
