"""Find where a partition's log begins and which leaders it had, for the expiry of its segments.

The log start is the highest of the supplied ones (`log_start_offsets.*`) and the one that expiry set before. A
supplied one names no topic id: if a topic was created again, it counts only for the newest topic with that name. The
log start of a broker's log directory counts only if a setting says so: a broker without tiered storage moves it by its
own retention, usually a shorter one than the tier's, and this would expire the tier too.

The lineage is that of the log directory that has the partition, else that of the newest finished copy. If this copy has
a later leader epoch, the directory is that of a replica that was down since, and does not count: a successor may have
been elected uncleanly, and its records are others. Each lineage begins where the broker's log began at that time. For
older leaders the finished segments are used (`join_lineage`). Then the lineage is cut at the log start, as a broker
does; without this cut no segment would be older than the lineage.

If a checkpoint cannot be read (`ArchiveError`), no segment of the partition expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from coldlog.archive.layouts.layout import SMALL_FILE_LIMIT_BYTES, SegmentFileKind
from coldlog.archive.layouts.local_tiered_storage import name_object
from coldlog.archive.layouts.log_directory import LocalPartition, find_partition, read_lineage, read_topic_id
from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.leader_epoch_checkpoint import LeaderEpochEntry, read_leader_epoch_checkpoint
from coldlog.formats.limits import DecodeLimits
from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.expiry import LogState
from coldlog.tiering.rules.remote_segments import RemoteSegment, join_lineage
from coldlog.tiering.rules.valid_log_start import find_valid_log_start

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSources:
    """The archive, the log directories of this machine, and the supplied log starts by topic and partition."""

    archive: ObjectStore
    limits: DecodeLimits
    directories: Sequence[str] = ()
    supplied_log_starts: Mapping[tuple[str, int], int]
    takes_log_starts_of_directories: bool = False

    def find(
        self,
        partition: TopicIdPartition,
        segments: Iterable[RemoteSegment],
        *,
        advanced_to: int,
        being_copied: Set[str],
        is_current: bool,
    ) -> LogState:
        """Return the log state of a partition with these segments. `advanced_to` is the log start that expiry set.
        `is_current`: no newer topic has the same name."""
        known = tuple(segments)
        finished = [each for each in known if each.state is _FINISHED]
        newest = max(finished, key=lambda each: (_last_epoch(each), each.end_offset), default=None)
        local = self._find_local(partition)
        checkpoint = [] if local is None else _epochs_of(read_lineage(*local))
        if newest is not None and checkpoint and checkpoint[-1][0] < _last_epoch(newest):
            local, checkpoint = None, []
        supplied = self.supplied_log_starts.get((partition.topic, partition.partition), 0)
        starts = [supplied if is_current else 0]
        if local is not None and self.takes_log_starts_of_directories:
            state = LogDirectoryTier(local[0].root, self.limits).read_state(partition.topic, partition.partition)
            starts.append(0 if state is None else state.log_start_offset)
        if newest is not None and not checkpoint:
            checkpoint = self._archived_checkpoint(newest)
        lineage = join_lineage(checkpoint, finished)
        expired_before = find_valid_log_start(advanced_to, known, LeaderEpochLineage.of(lineage))
        log_start = max(expired_before, *starts)
        tier_end = max((segment.end_offset for segment in finished), default=-1) + 1
        return LogState(
            epochs=LeaderEpochLineage.of(lineage, log_start).entries,
            log_start_offset=log_start,
            log_end_offset=tier_end,
            only_local_bytes=0 if local is None else _bytes_from(local[1], tier_end),
            being_copied=being_copied,
            expired_before=expired_before,
        )

    def _find_local(self, partition: TopicIdPartition) -> tuple[LocalStore, LocalPartition] | None:
        for directory in self.directories:
            store = LocalStore(root=directory, uri=directory)
            found = find_partition(store, partition.topic, partition.partition)
            if found is not None and read_topic_id(store, found) == partition.topic_id:
                return store, found
        return None

    def _archived_checkpoint(self, segment: RemoteSegment) -> list[EpochStart]:
        name = name_object(segment.segment_id, segment.start_offset, SegmentFileKind.LEADER_EPOCH_CHECKPOINT)
        try:
            content = self.archive.read_range(name, 0, SMALL_FILE_LIMIT_BYTES)
            return _epochs_of(read_leader_epoch_checkpoint(content).entries)
        except ArchiveError as wrong:
            raise wrong if wrong.object_name else wrong.with_object_name(name) from wrong


def _bytes_from(local: LocalPartition, offset: int) -> int:
    """Sum the bytes of the segments that begin at or after an offset."""
    return sum(segment.log.size_bytes for segment in local.segments if segment.base_offset >= offset)


def _epochs_of(entries: Iterable[LeaderEpochEntry]) -> list[EpochStart]:
    return [(entry.leader_epoch, entry.start_offset) for entry in entries]


def _last_epoch(segment: RemoteSegment) -> int:
    return max((epoch for epoch, _ in segment.leader_epochs), default=-1)
