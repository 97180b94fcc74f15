"""Read the keys of the metadata topic's records.

Kafka up to 4.4 writes no keys. KIP-1266, which is not released, adds keys so that the topic can be compacted. Two
drafts with different keys exist; both are read:

    apache/kafka pull request 22774   37 bytes: uuid topic_id · int32 partition · uuid segment_id · int8 state
    apache/kafka pull request 22459   text: topic_id:topic:partition:end_offset:broker_leader_epoch, followed by
                                      `:UPDATE` for every event except a segment's first

In the first draft each state of a segment has its own key, so compaction keeps one event of each state. In the second
draft all updates of a segment have the same key, and so have all uploads of a segment with the same end offset and
leader epoch: compaction keeps the newest. After a segment's deletion has finished, a record without a value (a
tombstone) is written for each of its keys. Only keys of the first draft have the segment id.

Refused (`METADATA_EVENT_INVALID`): any other key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.remote_log.flexible_encoding import FlexibleReader
from coldlog.model.states import RemoteLogSegmentState

_SEGMENT_KEY_BYTES = 37
_TEXT_KEY = re.compile(
    rb"(?P<topic_id>[A-Za-z0-9_-]{22}):(?P<topic>[A-Za-z0-9._-]{1,249}):(?P<partition>[0-9]{1,10}):"
    rb"(?P<end_offset>-?[0-9]{1,19}):(?P<broker_leader_epoch>-?[0-9]{1,10})(?P<update>:UPDATE)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKey:
    """The fields of a key; a binary key has no `topic`, a text key no `segment_id` (None)."""

    topic_id: str
    partition: int
    topic: str | None = None
    segment_id: str | None = None


def decode_event_key(key: bytes) -> EventKey:
    """The topic-partition of a key, and the segment if the key has it."""
    matched = _TEXT_KEY.fullmatch(key)
    if matched is not None:
        return EventKey(
            topic_id=matched["topic_id"].decode(),
            topic=matched["topic"].decode(),
            partition=int(matched["partition"]),
        )
    if len(key) == _SEGMENT_KEY_BYTES and key[-1] <= max(RemoteLogSegmentState):
        reader = FlexibleReader(buffer=memoryview(key), reason=Reason.METADATA_EVENT_INVALID)
        return EventKey(
            topic_id=reader.read_uuid("topic id"),
            partition=reader.read_int(4, "partition"),
            segment_id=reader.read_uuid("segment id"),
        )
    raise ArchiveError(
        Reason.METADATA_EVENT_INVALID,
        "record has no value and an unknown key",
        position=0,
        expected="a key of KIP-1266",
        found=f"{len(key)} bytes: {key[:40]!r}",
    )
