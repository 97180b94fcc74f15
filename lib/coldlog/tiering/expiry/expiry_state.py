"""expiry_state: where does a partition's log begin, and who led it, when its segments are to expire?

The log start is the highest of what was supplied (`log_start_offsets.*`) and what expiry moved it to before. That of a
broker's log directory counts only where that is wanted: a broker that does not tier moves it by its own retention, as a
rule a shorter one than the tier's, and the tier would go with it.

The lineage is that of the log directory, where the partition lies in one, else that of the newest finished copy. Either
begins where a broker's log began at that time. What the tier holds of older leaders is told by its finished segments:
their epochs are put before it, each from its first offset, as long as these descend. Then it is cut at the log start,
as a broker cuts its own: only so is anything older than it.

A checkpoint that cannot be read is an `ArchiveError`, and nothing of the partition expires.
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
from coldlog.formats.kafka.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from coldlog.formats.limits import DecodeLimits
from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.expiry import LogState
from coldlog.tiering.rules.remote_segments import RemoteSegment, join_lineage

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSources:
    """What tells of logs: the archive, log directories of this machine, log starts by topic and partition."""

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
        advanced_to: int | None,
        being_copied: Set[str],
    ) -> LogState:
        """The log of a partition that has these segments; `advanced_to` is where expiry let it begin."""
        finished = [each for each in segments if each.state is _FINISHED]
        local = self._find_local(partition)
        starts = [advanced_to or 0, self.supplied_log_starts.get((partition.topic, partition.partition), 0)]
        if local is not None and self.takes_log_starts_of_directories:
            state = LogDirectoryTier(local[0].root, self.limits).read_state(partition.topic, partition.partition)
            starts.append(0 if state is None else state.log_start_offset)
        checkpoint = self._checkpoint(local, finished)
        log_start = max(starts)
        behind_tier = max((each.end_offset for each in finished), default=-1) + 1
        return LogState(
            epochs=LeaderEpochLineage.of(join_lineage(checkpoint, finished), log_start).entries,
            log_start_offset=log_start,
            log_end_offset=behind_tier,
            only_local_bytes=0 if local is None else _bytes_behind(local[1], behind_tier),
            being_copied=being_copied,
        )

    def _find_local(self, partition: TopicIdPartition) -> tuple[LocalStore, LocalPartition] | None:
        for directory in self.directories:
            store = LocalStore(root=directory, uri=directory)
            found = find_partition(store, partition.topic, partition.partition)
            if found is not None and read_topic_id(store, found) == partition.topic_id:
                return store, found
        return None

    def _checkpoint(
        self, local: tuple[LocalStore, LocalPartition] | None, finished: Sequence[RemoteSegment]
    ) -> list[EpochStart]:
        if local is not None and (lineage := read_lineage(*local)):
            return [(entry.leader_epoch, entry.start_offset) for entry in lineage]
        newest = max(finished, key=lambda each: (_last_epoch(each), each.end_offset), default=None)
        if newest is None:
            return []
        name = name_object(newest.segment_id, newest.start_offset, SegmentFileKind.LEADER_EPOCH_CHECKPOINT)
        try:
            content = self.archive.read_range(name, 0, SMALL_FILE_LIMIT_BYTES)
            entries = read_leader_epoch_checkpoint(content).entries
        except ArchiveError as wrong:
            raise wrong if wrong.object_name else wrong.with_object_name(name) from wrong
        return [(entry.leader_epoch, entry.start_offset) for entry in entries]


def _bytes_behind(local: LocalPartition, offset: int) -> int:
    """Of segments that begin behind what is in the tier."""
    return sum(each.log.size_bytes for each in local.segments if each.base_offset >= offset)


def _last_epoch(segment: RemoteSegment) -> int:
    return max((epoch for epoch, _ in segment.leader_epochs), default=-1)
