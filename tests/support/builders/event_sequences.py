"""Draw events of the metadata topic: mostly as a broker writes them, often repeated, some at random."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from builders.metadata_cache import (
    DELETED,
    DELETING,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    STARTED,
    Known,
)
from builders.metadata_events import DELETE, SEGMENT, UPDATE
from coldlog.formats.kafka.remote_log.remote_log_events import Event, SegmentMetadataEvent, UnknownTags
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition, uuid_text
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState

END_OFFSET_77 = UnknownTags(event=((1, (77).to_bytes(8, "big")),))


def drawn_partition(number: int) -> TopicIdPartition:
    """The partition of a number."""
    return TopicIdPartition(topic=f"topic-{number % 7}", topic_id=uuid_text(bytes(16)), partition=number)


def draw_events(random: Random, number: int) -> list[Event]:
    """Events of some segments of the partition of that number."""
    partition = drawn_partition(number)
    ids = [uuid_text(random.randbytes(16)) for _ in range(random.randint(1, 3))]
    events: list[Event] = []
    for step in range(random.randint(1, 14)):
        segment_id = RemoteLogSegmentId(topic_id_partition=partition, segment_id=random.choice(ids))
        broker_id, time_ms = random.randint(0, 9), random.randint(0, 50) + step
        custom_metadata = random.choice((None, b"", random.randbytes(3)))
        kind = random.random()
        if kind < 0.3:
            first = replace(
                SEGMENT,
                remote_log_segment_id=segment_id,
                state=random.choice((STARTED, STARTED, STARTED, STARTED, *RemoteLogSegmentState)),
                start_offset=random.randint(0, 50),
                end_offset=random.randint(50, 99),
                size_bytes=random.randint(0, 9_999),
                max_timestamp_ms=random.randint(-1, 99),
                segment_leader_epochs=tuple((epoch, 10 * epoch) for epoch in range(random.randint(1, 3))),
                txn_index_empty=random.choice((None, False, True)),
                custom_metadata=custom_metadata,
                broker_id=broker_id,
                event_timestamp_ms=time_ms,
            )
            events.append(first)
        elif kind < 0.9 or number % 2:
            state = random.choice((FINISHED, FINISHED, DELETING, DELETED, STARTED))
            update = replace(UPDATE, remote_log_segment_id=segment_id, custom_metadata=custom_metadata, state=state)
            if random.random() < 0.5:
                update = replace(update, version=1, unknown_tags=END_OFFSET_77)
            events.append(replace(update, broker_id=broker_id, event_timestamp_ms=time_ms))
        else:
            states = random.choice(
                ([MARKED, PARTITION_STARTED, PARTITION_FINISHED], [random.choice(list(RemotePartitionDeleteState))])
            )
            delete = replace(DELETE, topic_id_partition=partition, broker_id=broker_id, event_timestamp_ms=time_ms)
            events += [replace(delete, state=state) for state in states]
        if random.random() < 0.15:
            events.append(events[-1])
    return events


def announced_row(known: Known) -> dict[str, object]:
    """What a fold must say of a segment in this state."""
    expected: dict[str, object] = {"dropped_event_count": known.dropped}
    if known.state is None:
        return expected | {"announced_state": None}
    assert known.first is not None
    assert known.last is not None
    expected |= {
        "announced_state": known.state.name,
        "announced_start_offset": None,
        "announced_end_offset": known.first.end_offset,
        "announced_max_timestamp_ms": None,
        "announced_size_bytes": None,
        "announced_leader_epochs": None,
        "announced_txn_index_empty": None,
        "copy_started_ms": known.first.event_timestamp_ms if known.first.state in (STARTED, FINISHED) else None,
        "broker_id": known.last.broker_id,
        "event_timestamp_ms": known.last.event_timestamp_ms,
        "custom_metadata": known.last.custom_metadata,
        "was_copied": known.was_copied,
    }
    if isinstance(known.first, SegmentMetadataEvent):
        expected |= {
            "announced_start_offset": known.first.start_offset,
            "announced_max_timestamp_ms": known.first.max_timestamp_ms,
            "announced_size_bytes": known.first.size_bytes,
            "announced_leader_epochs": [
                {"leader_epoch": epoch, "start_offset": offset} for epoch, offset in known.first.segment_leader_epochs
            ],
            "announced_txn_index_empty": known.first.txn_index_empty,
        }
    return expected
