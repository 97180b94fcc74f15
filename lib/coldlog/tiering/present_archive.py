"""present_archive: is the archive there of which the events tell?

A mount point without its disk is an empty directory, and a wrong prefix of a bucket an empty archive. To copy into it
would part the archive in two; to expire it would announce deletions of objects that are still there. So where finished
segments of a broker were announced and not one partition lies in its archive, the archive is one that cannot be reached
now. Usually one listing tells: that of one such partition.

The archive of others has partitions, but not ours. So a partition of which finished segments were announced, and which
has no directory, is left alone (`find_absent`; one look at the root).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coldlog.archive.layouts.local_tiered_storage import find_partition_directory, name_directory
from coldlog.archive.stores.object_writer import WritableStore
from coldlog.archive.stores.unreachable_store import UnreachableStore
from coldlog.errors import RetriableError
from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.event_logs import KnownEventLog


def present_archive(archive: WritableStore, known: KnownEventLog, broker_id: int) -> WritableStore:
    """The archive, or one that tells of each partition that it is not there."""
    finished = next(_iter_finished(known, broker_id), None)
    if finished is None:
        return archive
    name = name_directory(finished)
    try:
        is_there = any(True for _ in archive.iter_objects(name)) or any(
            find_partition_directory(each) for each in archive.list_directories("")
        )
    except RetriableError as failed:
        # Not the archive itself: it may answer again before the first copy, and nobody would have looked.
        return UnreachableStore(uri=archive.uri, why=str(failed))
    if is_there:
        return archive
    why = (
        f"the archive at {archive.uri} holds no partition, and finished segments of {name} were announced: is it "
        f"mounted, is archive.uri right? if what it held is lost, make a directory {name} in it to go on"
    )
    return UnreachableStore(uri=archive.uri, why=why)


def find_absent(archive: WritableStore, known: KnownEventLog, broker_id: int) -> Mapping[TopicIdPartition, str]:
    """Partitions that must not be worked on in this archive, and why."""
    finished = tuple(_iter_finished(known, broker_id))
    try:
        names = set(archive.list_directories("")) if finished else set()
    except RetriableError as failed:
        return dict.fromkeys(finished, str(failed))
    return {
        each: f"the archive at {archive.uri} holds nothing of {name_directory(each)}, and finished segments of it were "
        "announced: is archive.uri right? if what it held is lost, make a directory of that name in it to go on"
        for each in finished
        if name_directory(each) not in names
    }


def _iter_finished(known: KnownEventLog, broker_id: int) -> Iterator[TopicIdPartition]:
    for partition in known.partitions():
        for each in known.segments_of(partition):
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and each.broker_id == broker_id:
                yield partition
                break
