"""The fold of events to states, against a state machine of its own, over sequences that no broker would write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from builders.metadata_events import DELETE, SEGMENT, UPDATE
from coldlog.formats.remote_log_events import Event, PartitionDeleteEvent, SegmentMetadataEvent, SegmentUpdateEvent
from coldlog.formats.remote_log_metadata import encode_event
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition, uuid_text
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState
from coldlog.operations.announced_segments import announced_segments, deleted_partitions
from coldlog.operations.event_rows import event_row
from coldlog.tables.segment_events import SEGMENT_EVENTS
from coldlog.tables.warehouse import Warehouse

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
MARKED, PARTITION_STARTED, PARTITION_FINISHED = RemotePartitionDeleteState


@dataclass
class Known:
    """A segment as a broker's cache holds it, and what coldlog keeps besides."""

    first: SegmentMetadataEvent | None = None
    last: SegmentMetadataEvent | SegmentUpdateEvent | None = None
    state: RemoteLogSegmentState | None = None
    was_copied: bool = False
    dropped: int = 0


@dataclass
class Cache:
    """RemoteLogMetadataCache of one partition and its place in RemotePartitionMetadataStore.

    `in_cache` is Kafka's idToSegmentMetadata: what reached DELETE_SEGMENT_FINISHED is removed from it, and all of it
    when the partition's deletion has finished. `remembered` is kept for ever.
    """

    in_cache: dict[str, Known] = field(default_factory=dict)
    remembered: dict[str, Known] = field(default_factory=dict)
    delete_state: RemotePartitionDeleteState | None = None
    dropped_deletes: int = 0
    is_deletion_named: bool = False

    def take(self, event: Event) -> None:
        if isinstance(event, PartitionDeleteEvent):
            self._take_delete(event.state)
            return
        assert isinstance(event, SegmentMetadataEvent | SegmentUpdateEvent)
        segment_id = event.remote_log_segment_id.segment_id
        known = self.remembered.setdefault(segment_id, Known())
        is_taken = self._add(known, event) if isinstance(event, SegmentMetadataEvent) else self._update(known, event)
        known.dropped += not is_taken

    def _add(self, known: Known, event: SegmentMetadataEvent) -> bool:
        """addCopyInProgressSegment."""
        segment_id = event.remote_log_segment_id.segment_id
        if event.state != STARTED:  # IllegalArgumentException
            return False
        if segment_id in self.in_cache and self.in_cache[segment_id].state != STARTED:
            return False
        known.first, known.last, known.state, known.was_copied = event, event, STARTED, False
        self.in_cache[segment_id] = known
        return True

    def _update(self, known: Known, event: SegmentUpdateEvent) -> bool:
        """updateRemoteLogSegmentMetadata."""
        segment_id = event.remote_log_segment_id.segment_id
        if segment_id not in self.in_cache:  # RemoteResourceNotFoundException
            return False
        valid = {
            (STARTED, FINISHED), (FINISHED, FINISHED), (STARTED, DELETING), (FINISHED, DELETING),
            (DELETING, DELETING), (DELETING, DELETED),
        }  # fmt: skip
        if (known.state, event.state) not in valid:  # STARTED again is an IllegalArgumentException
            return False
        known.last, known.state = event, event.state
        known.was_copied = known.was_copied or event.state == FINISHED
        if event.state == DELETED:
            del self.in_cache[segment_id]
        return True

    def _take_delete(self, state: RemotePartitionDeleteState) -> None:
        self.is_deletion_named = True
        before = self.delete_state
        if before is None or (before == PARTITION_FINISHED and state != PARTITION_FINISHED):
            is_valid = state == MARKED
        else:
            is_valid = state - before in (0, 1)
        if not is_valid:
            self.dropped_deletes += 1
            return
        self.delete_state = state
        if state == PARTITION_FINISHED:
            for known in self.in_cache.values():
                known.state = DELETED
            self.in_cache.clear()


def _partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(topic=f"topic-{number % 7}", topic_id=uuid_text(bytes(16)), partition=number)


def _random_events(random: Random, number: int) -> list[Event]:
    """Some segments of one partition: mostly what a broker would write, often repeated, in part at random."""
    partition = _partition(number)
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


def _warehouse(spark: SparkSession, location: Path, sequences: Sequence[Sequence[Event]]) -> Warehouse:
    """Each sequence in order, woven into others of the same metadata partition, written in no order."""
    warehouse = Warehouse(spark=spark, uri=str(location))
    identifier = warehouse.identifier(SEGMENT_EVENTS)
    spark.sql(SEGMENT_EVENTS.create_statement(identifier, warehouse.location(SEGMENT_EVENTS)))
    random, rows, next_offsets = Random(1), [], dict.fromkeys(range(3), 0)
    left = {number: list(events) for number, events in enumerate(sequences)}
    while left:
        number = random.choice(list(left))
        partition = number % 3
        place = {"metadata_partition": partition, "metadata_offset": next_offsets[partition]}
        rows.append(place | event_row(encode_event(left[number].pop(0))))
        next_offsets[partition] += 1
        if not left[number]:
            del left[number]
    random.shuffle(rows)
    warehouse.append(SEGMENT_EVENTS, warehouse.local(SEGMENT_EVENTS, pa.Table.from_pylist(rows, _SCHEMA)))
    return warehouse


_SCHEMA = SEGMENT_EVENTS.arrow_schema


def _expected(known: Known) -> dict[str, object]:
    expected: dict[str, object] = {"dropped_event_count": known.dropped}
    if known.state is None:
        return expected | {"announced_state": None}
    assert known.first is not None
    assert known.last is not None
    return expected | {
        "announced_state": known.state.name,
        "announced_start_offset": known.first.start_offset,
        "announced_end_offset": known.first.end_offset,
        "announced_max_timestamp_ms": known.first.max_timestamp_ms,
        "announced_size_bytes": known.first.size_bytes,
        "announced_leader_epochs": [
            {"leader_epoch": epoch, "start_offset": offset} for epoch, offset in known.first.segment_leader_epochs
        ],
        "announced_txn_index_empty": known.first.txn_index_empty,
        "broker_id": known.last.broker_id,
        "event_timestamp_ms": known.last.event_timestamp_ms,
        "custom_metadata": known.last.custom_metadata,
        "was_copied": known.was_copied,
    }


@pytest.mark.timeout(900)
def test_fold_is_that_of_kafkas_cache_whatever_comes(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(4)
    sequences = [_random_events(random, number) for number in range(600)]
    caches = [Cache() for _ in sequences]
    for cache, events in zip(caches, sequences, strict=True):
        for event in events:
            cache.take(event)
    warehouse = _warehouse(spark, tmp_path / "warehouse", sequences)

    rows = announced_segments(warehouse).toArrow().to_pylist()
    found = {(row["partition"], row["segment_id"]): row for row in rows}
    wanted = {
        (number, segment_id): _expected(known)
        for number, cache in enumerate(caches)
        for segment_id, known in cache.remembered.items()
    }
    assert len(found) == len(rows)
    assert found.keys() == wanted.keys()
    wrong = {
        key: (want, found[key]) for key, want in wanted.items() if {n: found[key][n] for n in want} != want
    }  # fmt: skip
    assert wrong == {}
    states = [want["announced_state"] for want in wanted.values()]
    assert all(states.count(name) > 20 for name in (None, *(state.name for state in RemoteLogSegmentState)))
    assert sum(bool(want["dropped_event_count"]) for want in wanted.values()) > 100

    deletes = {row["partition"]: row for row in deleted_partitions(warehouse).toArrow().to_pylist()}
    named = {number: cache for number, cache in enumerate(caches) if cache.is_deletion_named}
    assert deletes.keys() == named.keys()
    for number, cache in named.items():
        state = None if cache.delete_state is None else cache.delete_state.name
        facts = deletes[number]["delete_state"], deletes[number]["dropped_event_count"]
        assert facts == (state, cache.dropped_deletes)
    assert sum(cache.delete_state == PARTITION_FINISHED for cache in caches) > 20
