"""Test that metadata events are read and written as by Kafka's own classes, byte for byte and field for field.

Maven copies the jars of Kafka 4.2.1 to build/kafka-serde once. One start of a small program passes all events to
Kafka's RemoteLogMetadataSerde; tests/support/kafka_serde/MetadataEvents.java has the format of its input and output.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from builders.metadata_events import DELETE, SEGMENT, events, untagged
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.remote_log.remote_log_metadata import (
    Event,
    PartitionDeleteEvent,
    SegmentMetadataEvent,
    SegmentSnapshotEvent,
    SegmentUpdateEvent,
    UnknownTags,
    decode_event,
    encode_event,
)
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState
from servers.kafka_jars import find_tool, resolve_jars, run_tool

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "kafka_serde"

STRICTER_THAN_KAFKA = {
    "is not UTF-8": encode_event(DELETE).replace(b"orders", b"order\xff"),
    "do not ascend": encode_event(DELETE)[:-1] + b"\x02\x05\x00\x05\x00",
    "is too large": encode_event(DELETE)[:-1] + b"\xff\xff\xff\xff\x0f",
    "is not a boolean": encode_event(SEGMENT)[:-2] + b"\x00\x01",
    "ends inside tag 0 of event": encode_event(SEGMENT)[:-2] + b"\x02\x01",
}
"""Events that Kafka reads but never writes, by words of coldlog's error: Kafka replaces bytes that are not UTF-8,
accepts tags in any order and twice, reads numbers above int32 as negative, and reads one byte of a boolean of any
size."""

LONG_NUMBERS = b"\x81\x00" + b"\x80\x80\x80\x80\x70" + b"\x80\x80\x00" + encode_event(SEGMENT)[3:]
"""Frame version, api key and version with more bytes than necessary; one has more bits than an int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The events, and Kafka's answers in the same order."""

    plain: Sequence[Event]
    written: Sequence[str]
    read: Sequence[str]
    tagged: Sequence[Event]
    tagged_read: Sequence[str]
    tagged_written_again: Sequence[str]
    damaged: Sequence[bytes]
    damaged_read: Sequence[str]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """All comparisons, in one start of the JVM."""
    plain, tagged = _drawn(untagged(), 1800), _drawn(events(), 800)
    damaged = [*STRICTER_THAN_KAFKA.values(), LONG_NUMBERS, *_damaged([*plain[:200], *tagged[:300]])]
    questions = [
        [f"write\t{_line(event)}" for event in plain],
        [f"read\t{encode_event(event).hex()}" for event in plain],
        [f"read\t{encode_event(event).hex()}" for event in tagged],
        [f"again\t{encode_event(event).hex()}" for event in tagged],
        [f"read\t{value.hex()}" for value in damaged],
    ]
    answers = _ask_kafka([line for part in questions for line in part], tmp_path_factory.mktemp("classes"))
    parts: list[list[str]] = []
    for part in questions:
        parts.append(answers[: len(part)])
        answers = answers[len(part) :]
    written, read, tagged_read, again, damaged_read = parts
    return Compared(
        plain=plain,
        written=written,
        read=read,
        tagged=tagged,
        tagged_read=tagged_read,
        tagged_written_again=again,
        damaged=damaged,
        damaged_read=damaged_read,
    )


def _drawn(strategy: st.SearchStrategy[Event], count: int) -> list[Event]:
    found: list[Event] = []

    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
    @given(strategy)
    def collect(event: Event) -> None:
        found.append(event)

    collect()
    return found


def _damaged(sound: Sequence[Event]) -> list[bytes]:
    """Each of the shorter events thirty times, with one or two bytes changed, removed or inserted."""
    chance = random.Random(20260405)
    found = []
    for value in filter(lambda value: len(value) < 300, map(encode_event, sound)):
        for _ in range(30):
            damaged = bytearray(value)
            for _ in range(chance.choice((1, 1, 2))):
                at = chance.randrange(len(damaged))
                new = (chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256))),)
                damaged[at : at + chance.choice((0, 1, 1, 1))] = bytes(new[: chance.choice((0, 1, 1, 1))])
            found.append(bytes(damaged))
    return found


def _ask_kafka(questions: Sequence[str], classes: Path) -> list[str]:
    jars = resolve_jars(PROGRAM / "pom.xml", "kafka-serde")
    source = PROGRAM / "MetadataEvents.java"
    run_tool([find_tool("javac"), "-Xlint:all", "-Werror", "-d", str(classes), "-cp", f"{jars}/*", str(source)])
    program = [find_tool("java"), "-Xmx512m", "-cp", f"{classes}:{jars}/*", source.stem]
    answers = run_tool(program, "".join(f"{line}\n" for line in questions)).splitlines()
    assert len(answers) == len(questions)
    return answers


def _line(event: Event) -> str:
    match event:
        case SegmentMetadataEvent():
            return _joined("segment", *_segment_id(event.remote_log_segment_id), *_segment_fields(event))
        case SegmentSnapshotEvent():
            return _joined("snapshot", event.segment_id, *_segment_fields(event))
        case SegmentUpdateEvent():
            where, custom_metadata = _segment_id(event.remote_log_segment_id), _bytes(event.custom_metadata)
            return _joined(
                "update", *where, event.broker_id, event.event_timestamp_ms, custom_metadata, int(event.state)
            )
        case PartitionDeleteEvent():
            where = _partition(event.topic_id_partition)
            return _joined("delete", *where, event.broker_id, event.event_timestamp_ms, int(event.state))


def _segment_fields(event: SegmentMetadataEvent | SegmentSnapshotEvent) -> tuple[object, ...]:
    # Kafka stores epochs in a map: of equal epochs the last one counts.
    epochs = ",".join(f"{epoch}:{offset}" for epoch, offset in sorted(dict(event.segment_leader_epochs).items()))
    return (
        event.start_offset,
        event.end_offset,
        event.broker_id,
        event.max_timestamp_ms,
        event.event_timestamp_ms,
        epochs,
        event.size_bytes,
        _bytes(event.custom_metadata),
        int(event.state),
        str(bool(event.txn_index_empty)).lower(),
    )


def _segment_id(segment_id: RemoteLogSegmentId) -> tuple[object, ...]:
    return (*_partition(segment_id.topic_id_partition), segment_id.segment_id)


def _partition(partition: TopicIdPartition) -> tuple[object, ...]:
    return (partition.topic.encode().hex(), partition.topic_id, partition.partition)


def _bytes(value: bytes | None) -> str:
    return "null" if value is None else value.hex()


def _joined(*fields: object) -> str:
    return "\t".join(map(str, fields))


def _without_false(event: Event) -> Event:
    """The event as Kafka writes it: false is the default and is omitted."""
    if isinstance(event, SegmentMetadataEvent | SegmentSnapshotEvent) and event.txn_index_empty is False:
        return replace(event, txn_index_empty=None)
    return event


def test_thousands_of_events_of_every_shape_were_compared(compared: Compared) -> None:
    assert len({encode_event(event) for event in compared.plain}) >= 1500
    seen = Counter((type(event), event.state) for event in compared.plain)
    segments = (SegmentMetadataEvent, SegmentUpdateEvent, SegmentSnapshotEvent)
    expected = {(kind, state) for kind in segments for state in RemoteLogSegmentState}
    assert set(seen) == expected | {(PartitionDeleteEvent, state) for state in RemotePartitionDeleteState}
    assert min(seen.values()) > 25
    shapes = Counter(
        (event.txn_index_empty, event.custom_metadata if not event.custom_metadata else "bytes")
        for event in compared.plain
        if isinstance(event, SegmentMetadataEvent | SegmentSnapshotEvent)
    )
    assert {(txn, custom) for txn in (None, False, True) for custom in (None, b"", "bytes")} == set(shapes)
    assert sum(event.unknown_tags != UnknownTags() for event in compared.tagged) > 250


def test_events_are_written_byte_for_byte_as_kafka_writes_them(compared: Compared) -> None:
    for event, written in zip(compared.plain, compared.written, strict=True):
        assert encode_event(_without_false(event)).hex() == written


def test_events_written_by_kafka_are_decoded(compared: Compared) -> None:
    for event, written in zip(compared.plain, compared.written, strict=True):
        assert decode_event(bytes.fromhex(written)) == _without_false(event)


def test_kafka_reads_events_written_by_coldlog(compared: Compared) -> None:
    for event, read in zip(compared.plain, compared.read, strict=True):
        assert read == _line(event)


def test_kafka_keeps_unknown_tags_of_events(compared: Compared) -> None:
    for event, read, again in zip(compared.tagged, compared.tagged_read, compared.tagged_written_again, strict=True):
        assert read == _line(event)
        assert again == encode_event(_without_false(event)).hex()


def test_damaged_events_are_read_or_refused_as_by_kafka(compared: Compared) -> None:
    outcomes = Counter(
        _compare_damaged(value, read) for value, read in zip(compared.damaged, compared.damaged_read, strict=True)
    )
    assert outcomes["read"] > 1000
    assert outcomes["refused"] > 1000


def test_events_that_kafka_reads_but_never_writes_are_refused(compared: Compared) -> None:
    for (reason, value), read in zip(STRICTER_THAN_KAFKA.items(), compared.damaged_read, strict=False):
        assert read.startswith(("delete\t", "segment\t"))
        with pytest.raises(ArchiveError, match=reason):
            decode_event(value)


def test_numbers_with_more_bytes_than_necessary_are_read_by_both(compared: Compared) -> None:
    assert compared.damaged_read[compared.damaged.index(LONG_NUMBERS)] == _line(SEGMENT)
    assert decode_event(LONG_NUMBERS) == SEGMENT


def _compare_damaged(value: bytes, read: str) -> str:
    try:
        event = decode_event(value)
    except ArchiveError as refused:
        if read.startswith("refused\t"):
            return "refused"
        for reason in STRICTER_THAN_KAFKA:
            if reason in refused.message:
                return reason
        pytest.fail(f"Kafka reads {value.hex()} as {read}, coldlog says: {refused}")
    if event.version == 1:  # KIP-1266's, which this Kafka does not know.
        assert read.startswith("refused\t")
        return "refused"
    assert read == _line(event), value.hex()
    return "read"
