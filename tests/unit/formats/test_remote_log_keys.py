"""Test that keys of both drafts of KIP-1266 are read, and that other keys are refused."""

from __future__ import annotations

import pytest

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.remote_log.remote_log_keys import EventKey, decode_event_key
from coldlog.model.ids import uuid_bytes

TOPIC_ID, SEGMENT_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "BBBBBBBBBBBBBBBBBBBBBA"


def binary(state: int, rest: bytes = b"") -> bytes:
    return uuid_bytes(TOPIC_ID) + (7).to_bytes(4, "big") + uuid_bytes(SEGMENT_ID) + bytes([state]) + rest


def text(end_offset: object, epoch: object, rest: str = "") -> bytes:
    return f"{TOPIC_ID}:orders.eu:7:{end_offset}:{epoch}{rest}".encode()


@pytest.mark.parametrize("state", range(4))
def test_binary_key_has_the_segment(state: int) -> None:
    assert decode_event_key(binary(state)) == EventKey(topic_id=TOPIC_ID, partition=7, segment_id=SEGMENT_ID)


@pytest.mark.parametrize("key", [text(99, 3), text(99, 3, ":UPDATE"), text(-1, -1)])
def test_text_key_has_the_topic(key: bytes) -> None:
    assert decode_event_key(key) == EventKey(topic_id=TOPIC_ID, partition=7, topic="orders.eu")


@pytest.mark.parametrize(
    "key",
    [b"", b"orders", binary(4), binary(0)[:-1], binary(0, b"x"), text("", 3), text(99, 3, ":DELETE"), text(99, "x")],
)
def test_other_key_is_refused(key: bytes) -> None:
    with pytest.raises(ArchiveError, match="record has no value and an unknown key") as refused:
        decode_event_key(key)
    assert refused.value.reason is Reason.METADATA_EVENT_INVALID
    assert str(len(key)) in refused.value.found
