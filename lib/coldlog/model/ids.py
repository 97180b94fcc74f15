"""Identify topic-partitions and segments.

Kafka's Uuid text is 22 characters of URL-safe base64 without padding for 16 bytes; it may begin with or contain `-` and
`_` (org.apache.kafka.common.Uuid). Ids are texts here, because they are keys of tables and parts of object names.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from coldlog.errors import UsageError

_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TopicIdPartition:
    """A partition of one incarnation of a topic: a topic that was deleted and created again has another id."""

    topic: str
    partition: int
    topic_id: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} ({self.topic_id})"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RemoteLogSegmentId:
    """One upload of one segment; a copy that failed and its retry have different ids."""

    topic_id_partition: TopicIdPartition
    segment_id: str


def uuid_text(raw: bytes) -> str:
    """Kafka's text form of 16 raw bytes."""
    if len(raw) != 16:
        raise UsageError(f"a uuid has 16 bytes, not {len(raw)}")
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def uuid_bytes(text: str) -> bytes:
    """The 16 raw bytes of Kafka's text form."""
    if not _UUID_TEXT.fullmatch(text):
        raise UsageError(f"not the text of a Kafka uuid: {text!r}; use 22 characters of A-Z a-z 0-9 - _")
    try:
        return base64.urlsafe_b64decode(text + "==")
    except binascii.Error as broken:
        raise UsageError(f"not the text of a Kafka uuid: {text!r}: {broken}") from broken
