"""Test that events of a real broker are read as Kafka reads them and written as Kafka wrote them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given

from builders.metadata_events import DELETE, PARTITION, SEGMENT, SNAPSHOT, UPDATE, events
from coldlog.errors import ArchiveError, UsageError
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.formats.kafka.records import iter_records
from coldlog.formats.kafka.remote_log.remote_log_metadata import (
    Event,
    SegmentMetadataEvent,
    SegmentSnapshotEvent,
    SegmentUpdateEvent,
    UnknownTags,
    decode_event,
    encode_event,
)
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.model.states import RemotePartitionDeleteState
from worlds.kafka_sample import KAFKA_SAMPLE


@cache
def announced() -> list[tuple[int, int, bytes]]:
    """Metadata partition, offset and value of every record in the sample's metadata topic."""
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


def test_every_event_of_a_real_broker_is_encoded_to_the_same_bytes() -> None:
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
def test_encoded_events_round_trip(event: Event) -> None:
    value = encode_event(event)
    assert decode_event(value) == event
    assert encode_event(decode_event(value)) == value


@pytest.mark.parametrize("segment", [SEGMENT, SNAPSHOT])
def test_missing_false_and_true_fields_differ(
    segment: SegmentMetadataEvent | SegmentSnapshotEvent,
) -> None:
    absent, false, true = (encode_event(replace(segment, txn_index_empty=each)) for each in (None, False, True))
    assert len(absent) + 3 == len(false) == len(true)
    assert [encode_event(decode_event(each)) for each in (absent, false, true)] == [absent, false, true]


def test_numbers_with_more_bytes_than_necessary_are_read() -> None:
    value = encode_event(SEGMENT)
    longer = b"\x81\x00" + b"\x80\x80\x80\x80\x70" + b"\x80\x80\x00" + b"\x87\x80\x00" + value[4:]
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
        replace(SEGMENT, txn_index_empty=None, unknown_tags=UnknownTags(event=((0, b"\x01"), (5, b"")))),
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
def test_events_that_could_not_be_read_are_not_written(event: Event) -> None:
    with pytest.raises(UsageError):
        encode_event(event)


@pytest.mark.parametrize(
    ("event", "tag", "size"),
    [(SEGMENT, 1, 4), (UPDATE, 0, 4), (UPDATE, 1, 8), (DELETE, 0, 4), (DELETE, 1, 8), (SNAPSHOT, 1, 4)],
)
def test_fields_of_version_1_have_their_size_and_are_unknown_in_version_0(event: Event, tag: int, size: int) -> None:
    for version, length in ((0, size - 1), (0, size + 1), (1, size)):
        told = replace(event, version=version, unknown_tags=UnknownTags(event=((tag, bytes(length)),)))
        assert decode_event(encode_event(told)) == told
    for length in (size - 1, size + 1):
        told = replace(event, version=1, unknown_tags=UnknownTags(event=((tag, bytes(length)),)))
        with pytest.raises(ArchiveError, match=f"tag {tag} of event has a wrong size"):
            decode_event(encode_event(told))
    other = replace(event, version=1, unknown_tags=UnknownTags(event=((7, b"of any size"),)))
    assert decode_event(encode_event(other)) == other


def test_a_partition_is_deleted_one_step_at_a_time() -> None:
    states = list(RemotePartitionDeleteState)
    allowed = {(state, state) for state in states} | set(pairwise(states))
    assert {(one, other) for one in states for other in states if one.can_become(other)} == allowed
