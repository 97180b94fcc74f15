"""Make segments of a metadata topic from a few arguments."""

from __future__ import annotations

from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition, uuid_text
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.rules.remote_segments import RemoteSegment

PARTITION = TopicIdPartition(topic="orders", partition=0, topic_id=uuid_text(b"\x01" * 16))
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def segment_id(number: int) -> RemoteLogSegmentId:
    """The id of a number; ids ascend with the numbers."""
    return RemoteLogSegmentId(topic_id_partition=PARTITION, segment_id=uuid_text(b"\x04" + number.to_bytes(15, "big")))


def remote(
    start: int,
    end: int,
    *,
    epochs: dict[int, int] | None = None,
    max_ms: int = 0,
    size: int = 100,
    state: RemoteLogSegmentState = FINISHED,
    number: int | None = None,
    was_copied: bool | None = None,
) -> RemoteSegment:
    """A segment from `start` to `end`, inclusive; its epoch is 0 unless others are given."""
    return RemoteSegment(
        segment_id=segment_id(start if number is None else number),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=max_ms,
        size_bytes=size,
        leader_epochs=tuple((epochs or {0: start}).items()),
        state=state,
        broker_id=1,
        event_timestamp_ms=0,
        was_copied=state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED if was_copied is None else was_copied,
    )
