"""Find the objects of a partition that belong to no segment, and decide which may be deleted.

`temporary`   `<an object's name>.<8 hexadecimal digits>.tmp`: a file that a killed writer left unfinished
`upload`      an upload of such a file to a bucket that a killed writer left unfinished
`leftover`    an object of a segment whose deletion was finished: a copy wrote it too late
`orphan`      an object of a segment that no event names

An object of a segment that exists, is being copied or is being deleted is none of these. All other names, for example
names that this layout does not write or a segment id at two offsets, cannot be explained: they are counted and never
touched.

These objects are deleted `min_age_ms` after they were modified, and not before the retention. An orphan is kept if
there is no retention, if events may have been lost or cannot be read (`is_complete` of the log), or if the log of a
finished segment of its partition is missing (`is_finished_log_missing`): the archive may belong to another event log
that still uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from coldlog.archive.layouts.layout import PartitionDirectory, SegmentFileKind
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout, name_directory, name_object
from coldlog.archive.stores.object_store import ObjectStore
from coldlog.archive.stores.object_writer import UnfinishedUpload
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.expiry import Retention
from coldlog.tiering.rules.remote_segments import RemoteSegment

_TEMPORARY = re.compile(r"(?P<object>.+)\.[0-9a-f]{8}\.tmp")
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class OrphanKind(StrEnum):
    """Why an object belongs to no segment."""

    TEMPORARY = "temporary"
    UPLOAD = "upload"
    LEFTOVER = "leftover"
    ORPHAN = "orphan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An object that belongs to no segment. `upload`: it is an upload, in no listing."""

    name: str
    size_bytes: int
    modified_ms: int
    kind: OrphanKind
    segment_id: str
    upload: UnfinishedUpload | None = None

    def is_due(self, retention: Retention, *, now_ms: int, min_age_ms: int) -> bool:
        """True if the object is old enough to be deleted."""
        if self.kind is OrphanKind.ORPHAN and retention.retention_ms < 0:
            return False
        keeps_ms = retention.retention_ms if self.kind is not OrphanKind.LEFTOVER else 0
        return now_ms - self.modified_ms > max(min_age_ms, keeps_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignObjects:
    """The objects in a partition's directory that belong to no segment, and the names that cannot be explained."""

    orphans: tuple[Orphan, ...]
    unexplained: tuple[str, ...]
    is_finished_log_missing: bool


def find_orphans(
    store: ObjectStore,
    partition: TopicIdPartition,
    known: Iterable[RemoteSegment],
    uploads: Iterable[UnfinishedUpload] = (),
) -> ForeignObjects:
    """List the partition's directory once, and compare it with the segments that are `known` from the events. Read the
    events again before you delete: a copy may have begun since. `uploads` are unfinished ones of its directory."""
    states = {segment.segment_id.segment_id: segment.state for segment in known}
    finished_without_log = {segment_id for segment_id, state in states.items() if state is _FINISHED}
    directory = PartitionDirectory(
        name=name_directory(partition),
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
    )
    listing = LocalTieredStorageLayout(store=store).list_segments(directory)
    orphans: list[Orphan] = []
    for segment in listing.segments:
        state = states.get(segment.segment_id)
        if segment.find_object(SegmentFileKind.LOG) is not None:
            finished_without_log.discard(segment.segment_id)
        kind = OrphanKind.ORPHAN if state is None else OrphanKind.LEFTOVER
        if state is None or state is _DELETED:
            orphans += [
                Orphan(
                    name=each.name,
                    size_bytes=each.size_bytes,
                    modified_ms=each.modified_ms,
                    kind=kind,
                    segment_id=segment.segment_id,
                )
                for each in segment.objects
            ]
    temporary = [] if not listing.unrecognized else _list_temporary(store, partition)
    names = {each.name for each in temporary}
    unexplained = tuple(each.name for each in listing.unrecognized if each.name not in names)
    begun = _uploads_of(partition, uploads)
    return ForeignObjects(
        orphans=(*orphans, *temporary, *begun),
        unexplained=unexplained,
        is_finished_log_missing=bool(finished_without_log),
    )


def _list_temporary(store: ObjectStore, partition: TopicIdPartition) -> list[Orphan]:
    found = []
    for info in store.iter_objects(name_directory(partition)):
        matched = _TEMPORARY.fullmatch(info.name)
        segment_id = None if matched is None else _segment_id_of(partition, matched["object"])
        if segment_id is not None:
            found.append(
                Orphan(
                    name=info.name,
                    size_bytes=info.size_bytes,
                    modified_ms=info.modified_ms,
                    kind=OrphanKind.TEMPORARY,
                    segment_id=segment_id,
                )
            )
    return found


def _uploads_of(partition: TopicIdPartition, uploads: Iterable[UnfinishedUpload]) -> list[Orphan]:
    """Return the uploads of segments' objects; other names are somebody else's."""
    named = ((upload, _segment_id_of(partition, upload.name)) for upload in uploads)
    return [
        Orphan(
            name=upload.name,
            size_bytes=0,
            modified_ms=upload.begun_ms,
            kind=OrphanKind.UPLOAD,
            segment_id=segment_id,
            upload=upload,
        )
        for upload, segment_id in named
        if segment_id is not None
    ]


def _segment_id_of(partition: TopicIdPartition, name: str) -> str | None:
    """Return the id of the segment whose object has that name; None if no object has it."""
    start_offset, segment_id = name.rpartition("/")[2][:20], name.rpartition("/")[2][21:43]
    if not start_offset.isdecimal():
        return None
    remote = RemoteLogSegmentId(topic_id_partition=partition, segment_id=segment_id)
    return segment_id if any(name == name_object(remote, int(start_offset), kind) for kind in SegmentFileKind) else None
