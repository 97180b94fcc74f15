"""Test that any bytes are either an event or an `ArchiveError` with position, expected and found."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.metadata_events import DELETE, EVENTS, SEGMENT, UPDATE
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.remote_log.remote_log_metadata import Event, UnknownTags, decode_event, encode_event
from drawn_examples import sampled

# Positions of fields: the first three of SEGMENT, the last of DELETE.
TOPIC, START_OFFSET, EPOCH_COUNT, PARTITION_TAGS = 3, 48, 84, 30
VERSION_1 = encode_event(replace(UPDATE, version=1, unknown_tags=UnknownTags(event=((0, b"\x00\x00\x00\x07"),))))


@pytest.mark.parametrize("event", EVENTS)
def test_every_truncation_is_refused(event: Event) -> None:
    value = encode_event(event)
    for end in range(len(value)):
        with pytest.raises(ArchiveError) as refused:
            decode_event(value[:end])
        _assert_complete(refused.value)


@pytest.mark.parametrize("event", EVENTS)
def test_every_changed_byte_is_read_or_refused(event: Event) -> None:
    value = encode_event(event)
    outcomes = [
        _outcome(value[:at] + bytes((value[at] ^ flip,)) + value[at + 1 :])
        for at in range(len(value))
        for flip in sampled(range(1, 256))
    ]
    assert {True, False} == set(outcomes)


@given(st.sampled_from((b"", b"\x01", b"\x01\x00\x00", b"\x01\x01\x00", b"\x01\x02\x00", b"\x01\x03\x00")), st.binary())
def test_random_bytes_are_read_or_refused(start: bytes, rest: bytes) -> None:
    _outcome(start + rest)


def _outcome(value: bytes) -> bool:
    """Whether the bytes were read; an event that was read can be written and read again."""
    try:
        event = decode_event(value)
    except ArchiveError as refused:
        _assert_complete(refused)
        return False
    assert decode_event(encode_event(event)) == event
    return True


def _assert_complete(refused: ArchiveError) -> None:
    assert refused.reason is Reason.METADATA_EVENT_INVALID
    assert refused.position >= 0
    assert refused.expected
    assert refused.found


def _changed(event: Event, at: int, old: bytes, new: bytes) -> bytes:
    value = encode_event(event)
    assert value[at : at + len(old)] == old
    return value[:at] + new + value[at + len(old) :]


def _damages() -> Iterator[tuple[str, bytes, int, str, str]]:
    """Damage, value, position, expected, found."""
    end = len(encode_event(SEGMENT))
    yield "empty", b"", 0, "1 bytes", "0 bytes"
    yield "frame version", _changed(SEGMENT, 0, b"\x01", b"\x00"), 0, "1", "0"
    yield "later frame version", _changed(SEGMENT, 0, b"\x01", b"\x02"), 0, "1", "2"
    yield "api key", _changed(SEGMENT, 1, b"\x00", b"\x04"), 1, "0 to 3", "4"
    yield "version", _changed(SEGMENT, 2, b"\x00", b"\x02"), 2, "0 or 1", "2"
    yield "epoch of 3 bytes", VERSION_1[:-7] + b"\x01\x00\x03abc", len(VERSION_1) - 1, "4 bytes", "3 bytes"
    yield "rest", encode_event(SEGMENT) + b"\x00", end, "the end", "1 bytes"
    yield "ten-byte number", b"\x01\x00\x00" + b"\x80" * 9 + b"\x01", TOPIC, "at most 5 bytes", "more"
    yield "number above int32", b"\x01\x00\x00\xff\xff\xff\xff\x0f", TOPIC, "at most 2147483647", "4294967295"
    yield "null topic", _changed(SEGMENT, TOPIC, b"\x07", b"\x00"), TOPIC, "a length", "null"
    yield "topic that leaves", _changed(SEGMENT, TOPIC, b"\x07", b"\xff\x01"), TOPIC + 2, "254 bytes", "120 bytes"
    yield "long topic", _changed(SEGMENT, TOPIC, b"\x07", b"\x81\x80\x02"), TOPIC, "at most 32767 bytes", "32768"
    yield "not UTF-8", _changed(SEGMENT, TOPIC + 1, b"ord", b"o\xc3d"), TOPIC, "UTF-8", "c3"
    yield "surrogate", _changed(SEGMENT, TOPIC + 1, b"ord", b"\xed\xa0\x80"), TOPIC, "UTF-8", "ed"
    yield "negative start", _changed(SEGMENT, START_OFFSET, b"\x00", b"\xff"), START_OFFSET, "0 <= start <= end", ""
    yield "end below start", encode_event(SEGMENT).replace(b"\xc7", b"\x63", 1), START_OFFSET, "", "100 to 99"
    yield "null epochs", _changed(SEGMENT, EPOCH_COUNT, b"\x03", b"\x00"), EPOCH_COUNT, "a length", "null"
    yield "claimed epochs", _changed(SEGMENT, EPOCH_COUNT, b"\x03", b"\x80\x01"), EPOCH_COUNT, "at most 39", "127"
    yield "no epoch", _without_epochs(), EPOCH_COUNT, "at least 1", "0"
    yield "segment state", _changed(SEGMENT, end - 5, b"\x00", b"\x04"), end - 5, "0 to 3", "4"
    yield "negative state", _changed(SEGMENT, end - 5, b"\x00", b"\xff"), end - 5, "0 to 3", "-1"
    yield "partition state", encode_event(DELETE)[:-2] + b"\x03\x00", len(encode_event(DELETE)) - 2, "0 to 2", "3"
    yield (
        "tags alike",
        encode_event(UPDATE)[:-1] + b"\x02\x05\x00\x05\x00",
        len(encode_event(UPDATE)) + 2,
        "more than 5",
        "5",
    )
    yield (
        "tags descend",
        encode_event(UPDATE)[:-1] + b"\x02\x05\x00\x04\x00",
        len(encode_event(UPDATE)) + 2,
        "more than 5",
        "4",
    )
    yield "nested tags alike", _nested_tags_alike(), PARTITION_TAGS + 3, "more than 1", "1"
    yield (
        "tag that leaves",
        encode_event(UPDATE)[:-1] + b"\x01\x05\x02x",
        len(encode_event(UPDATE)) + 2,
        "2 bytes",
        "1 bytes",
    )
    yield "boolean of 2 bytes", encode_event(SEGMENT)[:-2] + b"\x02\x01\x01", end - 4, "1 byte", "2 bytes"
    yield "boolean of 0 bytes", encode_event(SEGMENT)[:-2] + b"\x00", end - 4, "1 byte", "0 bytes"


def _without_epochs() -> bytes:
    value = encode_event(SEGMENT)
    return value[:EPOCH_COUNT] + b"\x01" + value[EPOCH_COUNT + 1 + 2 * 13 :]


def _nested_tags_alike() -> bytes:
    value = encode_event(DELETE)
    return value[:PARTITION_TAGS] + b"\x02\x01\x00\x01\x00" + value[PARTITION_TAGS + 1 :]


@pytest.mark.parametrize("damage", list(_damages()), ids=lambda damage: damage[0])
def test_damage_is_refused_at_its_position(damage: tuple[str, bytes, int, str, str]) -> None:
    _, value, position, expected, found = damage
    with pytest.raises(ArchiveError) as refused:
        decode_event(value)
    _assert_complete(refused.value)
    assert refused.value.position == position
    assert expected in ("", refused.value.expected)
    assert found in ("", refused.value.found)


@pytest.mark.parametrize("at", [TOPIC, EPOCH_COUNT])
def test_wrong_count_needs_no_memory(at: int) -> None:
    value = encode_event(SEGMENT)
    lying = value[:at] + b"\xff\xff\xff\xff\x07" + value[at + 1 :]
    tracemalloc.start()
    with pytest.raises(ArchiveError):
        decode_event(lying)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
