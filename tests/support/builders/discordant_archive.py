"""Write an archive that differs from its events in every possible way.

`write_discordant` writes an archive and its events with every kind of discrepancy, one topic per case, and also topics
named `healthy`, which look unusual and are correct. `DISCREPANCIES` are the discrepancies that must be reported.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.segment_builder import Batch, Record, Segment, abort_marker, build_segment, uuid_text_of
from builders.side_files import build_leader_epoch_checkpoint, extend_lineage
from coldlog.formats.kafka.crc import batch_crc
from coldlog.formats.kafka.remote_log.remote_log_events import Event, SegmentMetadataEvent, SegmentUpdateEvent
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.discrepancies import DiscrepancyKind

WRITTEN_MS, EVENT_MS = 1_700_000_000_000, 1_700_000_010_000
LONG_AGO_MS = EVENT_MS - 2 * 60 * 60 * 1000
COPYING, COPIED, DELETING, DELETED = RemoteLogSegmentState


def _segment(
    start: int,
    *,
    epochs: tuple[int, int] = (0, 0),
    timestamp_ms: int = 5,
    modified_ms: int = WRITTEN_MS,
    stored_end_offset: int | None = None,
) -> Segment:
    """Two batches of four records."""
    batches = tuple(
        Batch(
            base_offset=start + 4 * number,
            records=tuple(Record(timestamp_ms=timestamp_ms, value=b"v" * 20) for _ in range(4)),
            leader_epoch=epoch,
        )
        for number, epoch in enumerate(epochs)
    )
    return Segment(
        batches=batches, index_interval_bytes=0, modified_ms=modified_ms, stored_end_offset=stored_end_offset
    )


_LOG = build_segment(_segment(0).batches)
LOG_BYTES = len(_LOG)
_TORN_LOG = _LOG[:-1] + b"!"


def _aborted(start: int, *, is_own: bool = True) -> Segment:
    """A transaction of two records and its abort marker; if not `is_own`, the records are of no transaction."""
    records = (Record(timestamp_ms=5), Record(timestamp_ms=6))
    wrote = Batch(base_offset=start, records=records)
    if is_own:
        wrote = replace(wrote, is_transactional=True, producer_id=9, producer_epoch=0)
    marker = abort_marker(offset=start + 2, timestamp_ms=7, producer_id=9, producer_epoch=0, leader_epoch=0)
    return Segment(batches=(wrote, marker), index_interval_bytes=0)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """An archive and its events; one topic per case, all in partition 0.

    `late_events` must be read after the build, because the build quarantines a segment that is longer than announced.
    `events_after_lost_ones` are events of a metadata partition whose first events retention has removed.
    """

    archive: Path
    events: list[Event] = field(default_factory=list)
    late_events: list[Event] = field(default_factory=list)
    events_after_lost_ones: list[Event] = field(default_factory=list)
    written: dict[str, list[WrittenSegment]] = field(default_factory=dict)

    def write(self, topic: str, *segments: Segment) -> list[WrittenSegment]:
        """Write the segments of a topic's only partition."""
        self.written[topic] = write_archive(self.archive, {TopicPartition(topic=topic, partition=0): segments})
        return self.written[topic]

    def announce(
        self, written: WrittenSegment, *states: RemoteLogSegmentState, at_ms: int = EVENT_MS, **changes: object
    ) -> None:
        """Write a broker's events for the segment, with `changes`; COPY_SEGMENT_FINISHED unless states are given."""
        self.events.append(replace(_first_event(written, at_ms), **changes))  # type: ignore[arg-type]  # its fields
        self.update(written, *(states or (COPIED,)), at_ms=at_ms)

    def update(self, written: WrittenSegment, *states: RemoteLogSegmentState, at_ms: int = EVENT_MS) -> None:
        """Write events for the segment's next states."""
        for state in states:
            if state is not COPYING:
                self.events.append(
                    SegmentUpdateEvent(
                        remote_log_segment_id=_id_of(written),
                        broker_id=1,
                        event_timestamp_ms=at_ms,
                        custom_metadata=None,
                        state=state,
                    )
                )


def _id_of(written: WrittenSegment) -> RemoteLogSegmentId:
    topic = written.topic_partition.topic
    partition = TopicIdPartition(topic=topic, topic_id=uuid_text_of(topic), partition=0)
    return RemoteLogSegmentId(topic_id_partition=partition, segment_id=written.segment_id)


def _first_event(written: WrittenSegment, at_ms: int) -> SegmentMetadataEvent:
    segment = written.segment
    return SegmentMetadataEvent(
        remote_log_segment_id=_id_of(written),
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        broker_id=1,
        max_timestamp_ms=segment.metadata_max_timestamp_ms,
        event_timestamp_ms=at_ms,
        segment_leader_epochs=tuple(extend_lineage([], segment.batches)),
        size_bytes=written.log.stat().st_size,
        custom_metadata=None,
        state=COPYING,
        txn_index_empty=None if _path(written, ".txnindex").exists() else True,
    )


def _path(written: WrittenSegment, suffix: str) -> Path:
    return written.stem.with_name(written.stem.name + suffix)


def remove_objects(written: WrittenSegment) -> None:
    """All files of the segment."""
    for path in written.stem.parent.glob(f"{written.stem.name}.*"):
        path.unlink()


def _write_healthy(cluster: Cluster) -> None:
    """Cases that look unusual and are correct."""
    ends_early, untimed, aborted = cluster.write(
        "healthy", _segment(0, stored_end_offset=9), _segment(10, timestamp_ms=-1), _aborted(18)
    )
    cluster.announce(ends_early)
    cluster.announce(untimed, max_timestamp_ms=WRITTEN_MS - 777)  # the file's time on the broker
    cluster.announce(aborted)
    [gone, kept] = cluster.write("healthy.retention", _segment(0), _segment(8))
    cluster.announce(gone, COPIED, DELETING, DELETED)
    cluster.announce(kept)
    remove_objects(gone)
    # Brokers without the field omit it for every segment.
    [old, new] = cluster.write("healthy.upgraded", _segment(0), _segment(8))
    cluster.announce(old, txn_index_empty=None)
    cluster.announce(new)
    # The log start offset is after the first segment, which the broker has not deleted yet.
    below, above = cluster.write("healthy.below", _segment(0), _segment(8, epochs=(1, 1)))
    _path(above, ".leader_epoch_checkpoint").write_bytes(build_leader_epoch_checkpoint([(1, 8)]))
    cluster.announce(below)
    cluster.announce(above)
    cluster.write("healthy.unannounced", _segment(0), _aborted(8))


def _write_objects_astray(cluster: Cluster) -> None:
    [missing] = cluster.write("missing", _segment(0))
    cluster.announce(missing)
    shutil.copytree(missing.stem.parent, cluster.archive / "parked")
    remove_objects(missing)
    [partial] = cluster.write("partial", _segment(0))
    cluster.announce(partial)
    _path(partial, ".timeindex").unlink()
    [announced, _] = cluster.write("orphan", _segment(0), _segment(8))
    cluster.announce(announced)
    [before, _] = cluster.write("arriving", _segment(0), _segment(8, modified_ms=EVENT_MS + 5_000))
    cluster.announce(before)
    [incomplete] = cluster.write("incomplete", _segment(0))
    _path(incomplete, ".index").unlink()
    [deleted] = cluster.write("deleted", _segment(0))
    cluster.announce(deleted, COPIED, DELETING, DELETED)


def _write_unfinished(cluster: Cluster) -> None:
    [failed, retry] = cluster.write("unfinished", _segment(0), replace(_segment(0), segment_id=uuid_text_of("retry")))
    _path(failed, ".index").unlink()
    cluster.announce(failed, COPYING, at_ms=EVENT_MS - 1_000)
    cluster.announce(retry)
    [given_up] = cluster.write("given.up", _segment(0))
    cluster.announce(given_up, COPYING, at_ms=LONG_AGO_MS, size_bytes=LOG_BYTES + 1)
    [copying] = cluster.write("copying", _segment(0))
    cluster.announce(copying, COPYING, at_ms=EVENT_MS - 1_000)
    [deleting] = cluster.write("deleting", _segment(0))
    cluster.announce(deleting, COPIED, DELETING)
    [stuck] = cluster.write("stuck", _segment(0))
    cluster.announce(stuck, COPIED, DELETING, at_ms=LONG_AGO_MS)


def _write_other_content(cluster: Cluster) -> None:
    [size, start, end, newest, epochs] = [
        each for topic in ("size", "start", "end", "time", "epochs") for each in cluster.write(topic, _segment(0))
    ]
    cluster.announce(size, size_bytes=size.log.stat().st_size + 1)
    cluster.announce(start, start_offset=1)
    known = len(cluster.events)
    cluster.announce(end, end_offset=6)
    cluster.late_events += cluster.events[known:]
    del cluster.events[known:]
    cluster.announce(newest, max_timestamp_ms=6)
    # Its batches have epoch 0, its checkpoint and its event have epoch 1.
    _path(epochs, ".leader_epoch_checkpoint").write_bytes(build_leader_epoch_checkpoint([(1, 0)]))
    cluster.announce(epochs, segment_leader_epochs=((1, 0),))
    [index] = cluster.write("index", _segment(0))
    cluster.announce(index)
    _path(index, ".timeindex").write_bytes(b"torn")
    [torn] = cluster.write("torn", _segment(0))
    cluster.announce(torn)
    torn.log.write_bytes(_TORN_LOG)
    deposed = cluster.write("deposed", _segment(0), _segment(8, epochs=(1, 1)), _segment(8, epochs=(2, 2)))
    _path(deposed[2], ".leader_epoch_checkpoint").write_bytes(build_leader_epoch_checkpoint([(0, 0), (2, 8)]))
    for written in deposed:
        cluster.announce(written)


def _write_txn_indexes(cluster: Cluster) -> None:
    [denied] = cluster.write("denied", _aborted(0))
    cluster.announce(denied, txn_index_empty=True)
    [doubtful] = cluster.write("doubtful", _aborted(0, is_own=False))
    cluster.announce(doubtful)
    [told, promised] = cluster.write("promised", _segment(0), _segment(8))
    cluster.announce(told)
    cluster.announce(promised, txn_index_empty=None)


def _write_lost_announcements(cluster: Cluster) -> None:
    """The first segment has no event any more, the second and third only the last; a copy of the fourth failed."""
    known = len(cluster.events)
    failed = replace(_segment(24), segment_id=uuid_text_of("failed"))
    written = cluster.write("forgotten", *map(_segment, (0, 8, 16, 24)), failed)
    cluster.update(written[1], COPIED)
    cluster.update(written[2], COPIED)
    cluster.announce(written[3])
    remove_objects(written[2])
    cluster.events_after_lost_ones += cluster.events[known:]
    del cluster.events[known:]


def _write_other_problems(cluster: Cluster) -> None:
    """Discrepancies with the content of other tables."""
    [broken] = cluster.write("broken", _segment(0))
    os.truncate(broken.log, 30)
    cluster.write("gap", _segment(0), _segment(16))


def write_discordant(archive: Path) -> Cluster:
    """All cases."""
    cluster = Cluster(archive=archive)
    _write_healthy(cluster)
    _write_objects_astray(cluster)
    _write_unfinished(cluster)
    _write_other_content(cluster)
    _write_txn_indexes(cluster)
    _write_lost_announcements(cluster)
    _write_other_problems(cluster)
    return cluster


KIND = DiscrepancyKind
TORN_INDEX = (
    f"time index ends inside an entry in index-0-{uuid_text_of('index')}/{0:020d}-CdAue9KKfCBvB_aOW-OX5g.timeindex at "
    "byte 0: expected a multiple of 12 bytes, found 4 bytes"
)
_SECOND = LOG_BYTES // 2
TORN_LOG = (
    f"offsets 4 to 7 lost; batch does not match its checksum in torn-0-{uuid_text_of('torn')}/"
    f"{0:020d}-ZBoiG00XDPmRf1kuS9wolQ.log at byte {_SECOND}: "
    f"expected crc 0x{_LOG[_SECOND + 17 : _SECOND + 21].hex()}, found crc "
    f"{batch_crc(memoryview(_TORN_LOG), _SECOND, _SECOND):#010x}"
)
OTHER_EPOCH = (
    "log holds a leader epoch that the checkpoint does not have at its offset in "
    f"epochs-0-{uuid_text_of('epochs')}/{0:020d}-WWU09RsHazANjkY3O4zxPw.leader_epoch_checkpoint: expected epoch 1, "
    "found epoch 0 at offset 0"
)
FIRST_EVENT = "COPY_SEGMENT_STARTED with its offsets"
DISCREPANCIES = [
    ("arriving", 8, KIND.COPY_UNDERWAY, "COPY_SEGMENT_FINISHED", "no event, 5 objects"),
    ("copying", 0, KIND.COPY_UNDERWAY, "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 5 objects"),
    ("deleted", 0, KIND.DELETED_BUT_LISTED, "no object", "5 objects"),
    ("deleting", 0, KIND.DELETION_UNDERWAY, "DELETE_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED, 5 objects"),
    ("denied", 0, KIND.TXN_INDEX_DENIED, "no aborted transaction", "1 abort markers and a transaction index"),
    ("deposed", 8, KIND.OUTSIDE_LINEAGE, "leader epochs of the newest checkpoint", "leader epochs 1 from offset 8"),
    ("doubtful", 0, KIND.TXN_INDEX_IN_DOUBT, "entries for 1 abort markers; announced as empty", "no entry"),
    ("end", 0, KIND.END_OFFSET_DIFFERS, "at most offset 6", "offset 7"),
    ("epochs", 0, KIND.LEADER_EPOCHS_DIFFER, "leader epochs 1", "leader epochs 0"),
    ("epochs", 0, KIND.SIDE_FILE_DAMAGED, "files that agree with the log", OTHER_EPOCH),
    ("forgotten", 0, KIND.ANNOUNCEMENT_LOST, FIRST_EVENT, "no event, 5 objects"),
    ("forgotten", 8, KIND.ANNOUNCEMENT_LOST, FIRST_EVENT, "COPY_SEGMENT_FINISHED, 5 objects"),
    ("forgotten", 24, KIND.ORPHAN, "an event that announces it", "5 objects"),
    ("given.up", 0, KIND.COPY_UNFINISHED, "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 5 objects"),
    ("incomplete", 0, KIND.COPY_INCOMPLETE, "every required file", "no offset_index"),
    ("index", 0, KIND.SIDE_FILE_DAMAGED, "files that agree with the log", TORN_INDEX),
    ("missing", 0, KIND.SEGMENT_MISSING, f"a log of {LOG_BYTES} bytes with its files", "no object"),
    ("orphan", 8, KIND.ORPHAN, "an event that announces it", "5 objects"),
    ("partial", 0, KIND.FILES_MISSING, "every required file", "no time_index; the log is served without"),
    ("promised", 8, KIND.TXN_INDEX_PROMISED, "aborted transactions", "no abort marker"),
    ("size", 0, KIND.SIZE_DIFFERS, f"{LOG_BYTES + 1} bytes", f"{LOG_BYTES} bytes"),
    ("start", 0, KIND.START_OFFSET_DIFFERS, "offset 1", "offset 0"),
    ("stuck", 0, KIND.DELETION_UNFINISHED, "DELETE_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED, 5 objects"),
    ("time", 0, KIND.MAX_TIMESTAMP_DIFFERS, "6 ms", "5 ms"),
    ("torn", 0, KIND.LOG_DAMAGED, "sound batches", TORN_LOG),
    ("unfinished", 0, KIND.COPY_UNFINISHED, "COPY_SEGMENT_FINISHED", "COPY_SEGMENT_STARTED, 4 objects"),
]
"""Topic, start offset, kind, expected, found; by topic."""
