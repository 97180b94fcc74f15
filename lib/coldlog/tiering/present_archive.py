"""Check that the archive is there before a job copies into it or expires it.

A mount point without its disk is an empty directory. A wrong bucket prefix is an empty archive. A copy into one of them
would split the archive in two. Expiry there would announce deletions of objects that still exist. So if the events name
finished segments of this broker and the archive has no partition directory, `present_archive` treats the archive as
unreachable. Usually one listing is enough: that of one such partition.

The archive of somebody else has partitions, but not these. So a partition that has finished segments and no directory
is left alone (`find_absent`; one listing of the root).
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
    """Return the archive, or a store that raises "the archive is not there" for each partition."""
    finished = next(_iter_finished(known, broker_id), None)
    if finished is None:
        return archive
    name = name_directory(finished)
    try:
        is_there = any(True for _ in archive.iter_objects(name)) or any(
            find_partition_directory(directory) for directory in archive.list_directories("")
        )
    except RetriableError as failed:
        # Do not return the archive itself: it may answer again before the first copy, and nobody has checked it.
        return UnreachableStore(uri=archive.uri, why=str(failed))
    if is_there:
        return archive
    why = (
        f"the archive at {archive.uri} has no partition, but finished segments of {name} were announced: check the "
        f"mount and archive.uri. If the objects are lost, make a directory {name} in the archive to continue"
    )
    return UnreachableStore(uri=archive.uri, why=why)


def find_absent(archive: WritableStore, known: KnownEventLog, broker_id: int) -> Mapping[TopicIdPartition, str]:
    """Return the partitions that must not be processed in this archive, each with the reason."""
    finished = tuple(_iter_finished(known, broker_id))
    try:
        names = set(archive.list_directories("")) if finished else set()
    except RetriableError as failed:
        return dict.fromkeys(finished, str(failed))
    return {
        partition: f"the archive at {archive.uri} has no directory {name_directory(partition)}, but finished segments "
        "of it were announced: check archive.uri. If the objects are lost, make that directory to continue"
        for partition in finished
        if name_directory(partition) not in names
    }


def _iter_finished(known: KnownEventLog, broker_id: int) -> Iterator[TopicIdPartition]:
    for partition in known.partitions():
        for segment in known.segments_of(partition):
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and segment.broker_id == broker_id:
                yield partition
                break
