"""Copy one partition of a log directory into the archive.

First the unfinished copies of earlier runs of this broker are deleted; under a lease, those of other brokers too, so
that a deposed leader that wakes up cannot finish a copy that its successor makes again. Then the eligible segments are
copied, the earliest first and one by one: each is read and verified, then copied when the broker's quota allows it. A
segment that cannot be copied ends the work on its partition, so that the copied part has no gap.

The log directory gives the last stable offset (`lookups.local.log_directory_tier`): nothing after the high watermark of
`replication-offset-checkpoint`, and no open transaction, is copied. If this file does not name the partition, it is
unknown what is committed. Then nothing is copied, unless `assumes_committed` treats closed segments as committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from coldlog.archive.layouts.local_tiered_storage import name_directory
from coldlog.archive.layouts.log_directory import (
    HIGH_WATERMARK_CHECKPOINT,
    LocalPartition,
    find_partition,
    read_checkpoint,
    read_lineage,
    read_topic_id,
)
from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.s3_location import is_s3_uri
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError
from coldlog.formats.kafka.leader_epoch_checkpoint import LeaderEpochEntry
from coldlog.formats.limits import DecodeLimits
from coldlog.index.leader_epoch_lineage import LeaderEpochLineage
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.event_logs import KnownEventLog
from coldlog.tiering.rules.copy_quota import CopyQuota
from coldlog.tiering.rules.eligible_segments import EligibleSegment, LocalLog, plan_copies
from coldlog.tiering.rules.remote_segments import join_lineage
from coldlog.tiering.rules.segment_copy import SegmentCopier
from coldlog.tiering.rules.source_segment import NotCopiableError, SegmentReader

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_LONGEST_FILE_NAME = 255
_CHANGED = frozenset({Reason.OBJECT_MISSING, Reason.LOG_SIZE_DIFFERS})
"""Reasons that a running broker can cause: it deletes and truncates segments while they are read."""


class CopyOutcome(StrEnum):
    """How the work on a partition ended. GAVE_UP_PLACE: it continues after the others. STOPPED: the run ends.
    HELD_BACK: something that a copy needs is missing. RETRIABLE: an error that the next run may not have. NOT_DUE: its
    time has not come, or another run holds it."""

    DONE = "done"
    GAVE_UP_PLACE = "gave_up_place"
    STOPPED = "stopped"
    HELD_BACK = "held_back"
    RETRIABLE = "retriable"
    DAMAGED = "damaged"
    REFUSED = "refused"
    NOT_DUE = "not_due"

    @property
    def is_failure(self) -> bool:
        """True if an operator has to look."""
        return self in (CopyOutcome.RETRIABLE, CopyOutcome.DAMAGED, CopyOutcome.REFUSED)


@dataclass(slots=True, kw_only=True)
class PartitionCopy:
    """A partition of a log directory, and the result of its copy so far. `waiting_count` segments are eligible and not
    copied. `why` explains `outcome`."""

    directory: str
    topic: str
    partition: int
    topic_id_partition: TopicIdPartition | None = None
    copied_count: int = 0
    copied_bytes: int = 0
    cleaned_count: int = 0
    waiting_count: int = 0
    gave_up_count: int = 0
    outcome: CopyOutcome = CopyOutcome.DONE
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCopier:
    """Copies partitions; threads of a process share it. `absent` are partitions that should be in this archive and are
    not, with the reason. `cleans_up_others`: a lease keeps all other copiers from the partition. `find_log_start`
    returns the log start that expiry has set; None: this run does not know it."""

    copier: SegmentCopier
    events: KnownEventLog
    quota: CopyQuota
    limits: DecodeLimits
    window_bytes: int
    is_fair: bool
    assumes_committed: bool
    allows_gaps: bool
    stopping: threading.Event
    keep_leases: Callable[[], None]
    absent: Mapping[TopicIdPartition, str]
    cleans_up_others: bool
    find_log_start: Callable[[TopicIdPartition], int] | None

    def run(self, work: PartitionCopy) -> None:
        """Copy until nothing is eligible or the work has to end. Note the result in `work`."""
        work.outcome, work.why = CopyOutcome.DONE, ""
        try:
            work.outcome = self._copy(work)
        except NotCopiableError as refused:
            work.outcome, work.why = CopyOutcome.HELD_BACK, refused.text_with_notes
        except RetriableError as failed:
            work.outcome, work.why = CopyOutcome.RETRIABLE, failed.text_with_notes
        except ArchiveError as wrong:
            is_changing = wrong.reason in _CHANGED
            work.outcome = CopyOutcome.RETRIABLE if is_changing else CopyOutcome.DAMAGED
            work.why = wrong.text_with_notes
        except ColdlogError as refused:
            work.outcome, work.why = CopyOutcome.REFUSED, refused.text_with_notes

    def _copy(self, work: PartitionCopy) -> CopyOutcome:
        store = LocalStore(root=work.directory, uri=work.directory)
        found = find_partition(store, work.topic, work.partition)
        if found is None:
            return CopyOutcome.DONE
        partition = identify(store, found)
        self._require_directory(partition)
        cleaned = self._clean_up(partition)
        work.cleaned_count += len(cleaned)
        lineage = read_lineage(store, found)
        finished = [each for each in self.events.segments_of(partition) if each.state is _FINISHED]
        reader = SegmentReader(
            store=store,
            partition=partition,
            lineage=lineage,
            archived_lineage=join_lineage([(each.leader_epoch, each.start_offset) for each in lineage], finished),
            limits=self.limits,
            window_bytes=self.window_bytes,
            allows_gaps=self.allows_gaps,
        )
        segments = {segment.base_offset: segment for segment in found.segments}
        eligible = self._plan(work, store, found, partition, lineage, cleaned)
        for number, segment in enumerate(eligible):
            work.waiting_count = len(eligible) - number
            if self.stopping.is_set():
                return CopyOutcome.STOPPED
            may_wait = not (self.is_fair and number)
            # Read first, so that a segment that cannot be copied uses no quota. Do not read if it would have to wait.
            source = reader.read(segments[segment.base_offset]) if may_wait or self.quota.has_room() else None
            if source is None or not self.quota.take(
                source.size_bytes, may_wait=may_wait, is_stopping=self._is_stopping
            ):
                if self.stopping.is_set():
                    return CopyOutcome.STOPPED
                work.gave_up_count += 1
                return CopyOutcome.GAVE_UP_PLACE
            self._require_finished(self.copier.copy(source))
            work.copied_count += 1
            work.copied_bytes += source.size_bytes
        work.waiting_count = 0
        return CopyOutcome.DONE

    def _require_directory(self, partition: TopicIdPartition) -> None:
        """Check the partition's directory in the archive before any event of it is appended."""
        if partition in self.absent:
            raise RetriableError(self.absent[partition])
        length = len(name_directory(partition))
        if length > _LONGEST_FILE_NAME and not is_s3_uri(self.copier.archive.uri):
            raise NotCopiableError(
                f"the archive directory of {partition.topic}-{partition.partition} would have a name of {length} "
                f"characters, at most {_LONGEST_FILE_NAME} are possible. Use a bucket, or exclude it in copy.topics"
            )

    def _require_finished(self, copied: RemoteLogSegmentId) -> None:
        """Raise if another run began to delete the copy meanwhile: then the FINISHED event did not count."""
        known = self.events.segments_of(copied.topic_id_partition)
        if not any(each.was_copied for each in known if each.segment_id == copied):
            raise RetriableError(
                f"another run deleted segment {copied.segment_id} while it was copied; the next run copies it again"
            )

    def _is_stopping(self) -> bool:
        """Return whether to stop waiting for the quota. Called at least every second; also renews the leases."""
        self.keep_leases()
        return self.stopping.is_set()

    def _clean_up(self, partition: TopicIdPartition) -> frozenset[RemoteLogSegmentId]:
        """Delete the unfinished copies, and finish deletions of such copies. Return their ids."""
        unfinished = [
            each
            for each in self.events.segments_of(partition)
            if (self.cleans_up_others or each.broker_id == self.copier.broker_id)
            and (each.state is _STARTED or (each.state is _DELETING and not each.was_copied))
        ]
        for segment in unfinished:
            self.copier.delete(segment)
        return frozenset(segment.segment_id for segment in unfinished)

    def _plan(
        self,
        work: PartitionCopy,
        store: LocalStore,
        found: LocalPartition,
        partition: TopicIdPartition,
        lineage: tuple[LeaderEpochEntry, ...],
        cleaned: frozenset[RemoteLogSegmentId],
    ) -> list[EligibleSegment]:
        high_watermarks = read_checkpoint(store, HIGH_WATERMARK_CHECKPOINT)
        if (found.topic, found.partition) not in high_watermarks and not self.assumes_committed:
            raise NotCopiableError(
                f"{HIGH_WATERMARK_CHECKPOINT} of {work.directory} does not name {found.name}, so it is unknown what is "
                "committed. Mirror this file too, or set copy.assume_committed=true to copy closed segments anyway"
            )
        tier = LogDirectoryTier(work.directory, self.limits, self.window_bytes)
        state = tier.read_state(found.topic, found.partition)
        if state is None:
            return []
        log = LocalLog(
            base_offsets=tuple(segment.base_offset for segment in found.segments),
            log_start_offset=state.log_start_offset,
            last_stable_offset=state.last_stable_offset,
            lineage=LeaderEpochLineage.of((entry.leader_epoch, entry.start_offset) for entry in lineage),
        )
        # A copy may have been finished while it was deleted here. Its offsets are not in the tier.
        remote = [each for each in self.events.segments_of(partition) if each.segment_id not in cleaned]
        find_log_start = self.find_log_start
        return plan_copies(log, remote, None if find_log_start is None else lambda: find_log_start(partition))


def identify(store: LocalStore, found: LocalPartition) -> TopicIdPartition:
    """Return the partition with its topic id; raise `NotCopiableError` if it has none."""
    topic_id = read_topic_id(store, found)
    if topic_id is None:
        raise NotCopiableError(
            f"{found.name} has no topic id: its partition.metadata is missing, damaged, or from a broker before 2.8"
        )
    return TopicIdPartition(topic=found.topic, partition=found.partition, topic_id=topic_id)
