"""What a real broker announced is read as Kafka reads it and written as Kafka wrote it; any other bytes are refused."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.metadata_events import events
from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.formats.record_batch import read_batch_headers
from coldlog.formats.records import iter_records
from coldlog.formats.remote_log_metadata import (
    Event,
    PartitionDeleteEvent,
    SegmentMetadataEvent,
    SegmentSnapshotEvent,
    SegmentUpdateEvent,
    UnknownTags,
    decode_event,
    encode_event,
)
from coldlog.formats.sections import SectionReader
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition, uuid_text
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState
from kafka_sample import KAFKA_SAMPLE

PARTITION = TopicIdPartition(topic="orders", topic_id=uuid_text(b"\xfb" * 16), partition=3)
SEGMENT_ID = RemoteLogSegmentId(topic_id_partition=PARTITION, segment_id=uuid_text(bytes(range(16))))
SEGMENT = SegmentMetadataEvent(
    remote_log_segment_id=SEGMENT_ID,
    start_offset=100,
    end_offset=199,
    broker_id=1,
    max_timestamp_ms=1_700_000_000_000,
    event_timestamp_ms=1_700_000_001_000,
    segment_leader_epochs=((4, 90), (5, 150)),
    size_bytes=4096,
    custom_metadata=b"abc",
    state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    txn_index_empty=True,
)
UPDATE = SegmentUpdateEvent(
    remote_log_segment_id=SEGMENT_ID,
    broker_id=1,
    event_timestamp_ms=1_700_000_002_000,
    custom_metadata=None,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)
DELETE = PartitionDeleteEvent(
    topic_id_partition=PARTITION,
    broker_id=1,
    event_timestamp_ms=1_700_000_003_000,
    state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
)
SNAPSHOT = SegmentSnapshotEvent(
    segment_id=SEGMENT_ID.segment_id,
    start_offset=100,
    end_offset=199,
    broker_id=1,
    max_timestamp_ms=-1,
    event_timestamp_ms=1_700_000_004_000,
    segment_leader_epochs=((4, 90),),
    size_bytes=4096,
    custom_metadata=b"",
    state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    txn_index_empty=None,
    unknown_tags=UnknownTags(event=((1, b"new"), (300, b"")), segment_leader_epochs=(((0, b"e"),),)),
)
EVENTS: tuple[Event, ...] = (SEGMENT, UPDATE, DELETE, SNAPSHOT)

# Where fields lie: of SEGMENT the first three, of DELETE the last.
TOPIC, START_OFFSET, EPOCH_COUNT, PARTITION_TAGS = 3, 48, 84, 30


@cache
def announced() -> list[tuple[int, int, bytes]]:
    """Metadata partition, offset and value of every record of the sample's metadata topic."""
    limits = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)
    found = []
    for path in sorted((KAFKA_SAMPLE / "rlmm").glob("__remote_log_metadata-*/*.log")):
        partition, log = int(path.parent.name.rpartition("-")[2]), memoryview(path.read_bytes())
        batches = read_batch_headers(log, position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 26)
        for record in iter_records(log, batches.headers, 0, SectionReader(limits=limits)):
            assert record.key is None
            if record.value is not None and not record.is_control:
                found.append((partition, record.offset, record.value))
    return found


def test_every_event_of_a_real_broker_is_read_as_kafka_reads_it() -> None:
    lines = (KAFKA_SAMPLE / "truth" / "rlmm-events.jsonl").read_text(encoding="utf-8").splitlines()
    truth = {(line["mp"], line["mo"]): line for line in map(json.loads, lines)}
    found = {(mp, mo): {"mp": mp, "mo": mo, **_as_truth(decode_event(value))} for mp, mo, value in announced()}
    assert len(found) == len(announced()) > 700
    assert found == truth
    assert {line["type"] for line in truth.values()} == {"segment", "segment_update"}


def test_every_event_of_a_real_broker_is_written_as_it_was() -> None:
    for _, _, value in announced():
        assert encode_event(decode_event(value)) == value
        assert decode_event(memoryview(value)) == decode_event(value)


def _as_truth(event: Event) -> dict[str, object]:
    assert isinstance(event, SegmentMetadataEvent | SegmentUpdateEvent)
    of_partition = event.remote_log_segment_id.topic_id_partition
    common: dict[str, object] = {
        "event_ts": event.event_timestamp_ms,
        "broker": event.broker_id,
        "topic": of_partition.topic,
        "topic_id": of_partition.topic_id,
        "partition": of_partition.partition,
        "type": "segment_update",
        "state": event.state.name,
        "segment_id": event.remote_log_segment_id.segment_id,
        "custom": None if event.custom_metadata is None else event.custom_metadata.hex(),
    }
    if isinstance(event, SegmentUpdateEvent):
        return common
    return common | {
        "type": "segment",
        "start_offset": event.start_offset,
        "end_offset": event.end_offset,
        "max_ts": event.max_timestamp_ms,
        "size": event.size_bytes,
        "leader_epochs": {str(epoch): offset for epoch, offset in event.segment_leader_epochs},
        "txn_idx_empty": bool(event.txn_index_empty),
    }


@given(events())
def test_what_was_written_is_read_and_written_again_alike(event: Event) -> None:
    value = encode_event(event)
    assert decode_event(value) == event
    assert encode_event(decode_event(value)) == value


@pytest.mark.parametrize("segment", [SEGMENT, SNAPSHOT])
def test_an_absent_field_a_false_one_and_a_true_one_are_told_apart(
    segment: SegmentMetadataEvent | SegmentSnapshotEvent,
) -> None:
    absent, false, true = (encode_event(replace(segment, txn_index_empty=each)) for each in (None, False, True))
    assert len(absent) + 3 == len(false) == len(true)
    assert [encode_event(decode_event(each)) for each in (absent, false, true)] == [absent, false, true]


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
        for flip in range(1, 256)
    ]
    assert {True, False} == set(outcomes)


@given(st.sampled_from((b"", b"\x01", b"\x01\x00\x00", b"\x01\x01\x00", b"\x01\x02\x00", b"\x01\x03\x00")), st.binary())
def test_random_bytes_are_read_or_refused(start: bytes, rest: bytes) -> None:
    _outcome(start + rest)


def _outcome(value: bytes) -> bool:
    """Whether the bytes were read; what was read can be written and read again."""
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
    yield "version", _changed(SEGMENT, 2, b"\x00", b"\x01"), 2, "0", "1"
    yield "rest", encode_event(SEGMENT) + b"\x00", end, "the end", "1 bytes"
    yield "ten-byte number", b"\x01\x00\x00" + b"\x80" * 9 + b"\x01", TOPIC, "5 bytes at most", "more"
    yield "number above int32", b"\x01\x00\x00\xff\xff\xff\xff\x0f", TOPIC, "2147483647 at most", "4294967295"
    yield "null topic", _changed(SEGMENT, TOPIC, b"\x07", b"\x00"), TOPIC, "a length", "null"
    yield "topic that leaves", _changed(SEGMENT, TOPIC, b"\x07", b"\xff\x01"), TOPIC + 2, "254 bytes", "120 bytes"
    yield "long topic", _changed(SEGMENT, TOPIC, b"\x07", b"\x81\x80\x02"), TOPIC, "32767 bytes at most", "32768"
    yield "not UTF-8", _changed(SEGMENT, TOPIC + 1, b"ord", b"o\xc3d"), TOPIC, "UTF-8", "c3"
    yield "surrogate", _changed(SEGMENT, TOPIC + 1, b"ord", b"\xed\xa0\x80"), TOPIC, "UTF-8", "ed"
    yield "negative start", _changed(SEGMENT, START_OFFSET, b"\x00", b"\xff"), START_OFFSET, "0 <= start <= end", ""
    yield "end below start", encode_event(SEGMENT).replace(b"\xc7", b"\x63", 1), START_OFFSET, "", "100 to 99"
    yield "null epochs", _changed(SEGMENT, EPOCH_COUNT, b"\x03", b"\x00"), EPOCH_COUNT, "a length", "null"
    yield "claimed epochs", _changed(SEGMENT, EPOCH_COUNT, b"\x03", b"\x80\x01"), EPOCH_COUNT, "39 at most", "127"
    yield "no epoch", _without_epochs(), EPOCH_COUNT, "1 at least", "0"
    yield "segment state", _changed(SEGMENT, end - 5, b"\x00", b"\x04"), end - 5, "0 to 3", "4"
    yield "negative state", _changed(SEGMENT, end - 5, b"\x00", b"\xff"), end - 5, "0 to 3", "-1"
    yield "partition state", encode_event(DELETE)[:-2] + b"\x03\x00", len(encode_event(DELETE)) - 2, "0 to 2", "3"
    yield (
        "tags alike",
        encode_event(UPDATE)[:-1] + b"\x02\x05\x00\x05\x00",
        len(encode_event(UPDATE)) + 2,
        "above 5",
        "5",
    )
    yield (
        "tags descend",
        encode_event(UPDATE)[:-1] + b"\x02\x05\x00\x04\x00",
        len(encode_event(UPDATE)) + 2,
        "above 5",
        "4",
    )
    yield "nested tags alike", _nested_tags_alike(), PARTITION_TAGS + 3, "above 1", "1"
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
def test_damage_is_refused_at_its_place(damage: tuple[str, bytes, int, str, str]) -> None:
    _, value, position, expected, found = damage
    with pytest.raises(ArchiveError) as refused:
        decode_event(value)
    _assert_complete(refused.value)
    assert refused.value.position == position
    assert expected in ("", refused.value.expected)
    assert found in ("", refused.value.found)


@pytest.mark.parametrize("at", [TOPIC, EPOCH_COUNT])
def test_a_claimed_count_takes_no_memory(at: int) -> None:
    value = encode_event(SEGMENT)
    lying = value[:at] + b"\xff\xff\xff\xff\x07" + value[at + 1 :]
    tracemalloc.start()
    with pytest.raises(ArchiveError):
        decode_event(lying)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_numbers_longer_than_they_need_to_be_are_read() -> None:
    value = encode_event(SEGMENT)
    longer = b"\x81\x00" + b"\x80\x80\x80\x80\x00" + b"\x80\x80\x00" + b"\x87\x80\x00" + value[4:]
    assert decode_event(longer) == SEGMENT


def test_any_byte_but_zero_is_true() -> None:
    assert decode_event(encode_event(SEGMENT)[:-1] + b"\x07") == SEGMENT


@pytest.mark.parametrize(
    "event",
    [
        replace(SEGMENT, start_offset=-1),
        replace(SEGMENT, end_offset=99),
        replace(SEGMENT, segment_leader_epochs=()),
        replace(SNAPSHOT, segment_leader_epochs=((1, 2), (3, 4))),
        replace(SEGMENT, size_bytes=1 << 31),
        replace(SEGMENT, unknown_tags=UnknownTags(event=((0, b"\x01"),))),
        replace(UPDATE, unknown_tags=UnknownTags(event=((2, b""), (2, b"")))),
        replace(UPDATE, unknown_tags=UnknownTags(event=((-1, b""),))),
        replace(UPDATE, unknown_tags=UnknownTags(event=((1 << 31, b""),))),
        replace(UPDATE, unknown_tags=UnknownTags(segment_leader_epochs=(((1, b""),),))),
        replace(DELETE, unknown_tags=UnknownTags(remote_log_segment_id=((1, b""),))),
        replace(SNAPSHOT, unknown_tags=UnknownTags(topic_id_partition=((1, b""),))),
        replace(DELETE, topic_id_partition=replace(PARTITION, topic="x" * 32768)),
        replace(DELETE, topic_id_partition=replace(PARTITION, topic="\ud800")),
        replace(DELETE, topic_id_partition=replace(PARTITION, topic_id="short")),
    ],
)
def test_events_that_could_not_be_read_back_are_not_written(event: Event) -> None:
    with pytest.raises(UsageError):
        encode_event(event)


def test_a_partition_is_deleted_one_step_at_a_time() -> None:
    states = list(RemotePartitionDeleteState)
    allowed = {(state, state) for state in states} | set(pairwise(states))
    assert {(one, other) for one in states for other in states if one.can_become(other)} == allowed
