"""Test the fold of events to states against a state machine of the tests, also with sequences that no broker writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from builders.metadata_cache import (
    DELETED,
    DELETING,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    STARTED,
    Known,
    MetadataCache,
)
from builders.metadata_events import DELETE, SEGMENT, UPDATE
from coldlog.formats.kafka.remote_log.remote_log_events import Event, SegmentMetadataEvent, UnknownTags
from coldlog.formats.kafka.remote_log.remote_log_metadata import encode_event
from coldlog.indexing.events.announced_segments import announced_segments, deleted_partitions
from coldlog.indexing.events.event_rows import event_row
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition, uuid_text
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse
from large_tables import as_large_tables

SEQUENCE_COUNT = 600
END_OFFSET_77 = UnknownTags(event=((1, (77).to_bytes(8, "big")),))


def _partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(topic=f"topic-{number % 7}", topic_id=uuid_text(bytes(16)), partition=number)


def _random_events(random: Random, number: int) -> list[Event]:
    """Events of some segments of one partition: mostly as a broker writes them, often repeated, some at random."""
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


def _warehouse(spark: SparkSession, location: Path, sequences: Sequence[Sequence[Event]]) -> Warehouse:
    """Write each sequence in order, mixed with others of the same metadata partition; the rows are shuffled.

    Sequences of the second half are in metadata partitions that lost a record.
    """
    warehouse = Warehouse(spark=spark, uri=str(location))
    identifier = warehouse.identifier(SEGMENT_EVENTS)
    spark.sql(SEGMENT_EVENTS.create_statement(identifier, warehouse.location(SEGMENT_EVENTS)))
    random, rows = Random(1), []
    next_offsets = dict.fromkeys(range(3), 0) | {3: 1, 4: 1, 5: 1}
    left = {number: list(events) for number, events in enumerate(sequences)}
    while left:
        number = random.choice(list(left))
        partition = number % 3 + 3 * (number >= SEQUENCE_COUNT)
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
    expected |= {
        "announced_state": known.state.name,
        "announced_start_offset": None,
        "announced_end_offset": known.first.end_offset,
        "announced_max_timestamp_ms": None,
        "announced_size_bytes": None,
        "announced_leader_epochs": None,
        "announced_txn_index_empty": None,
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


def _place(row: dict[str, object]) -> tuple[object, object]:
    return row["partition"], row["segment_id"]


@pytest.mark.timeout(900)
def test_fold_equals_kafkas_cache_and_bridges_missing_events(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(4)
    sequences = [_random_events(random, number) for number in range(2 * SEQUENCE_COUNT)]
    caches = [MetadataCache(is_complete=number < SEQUENCE_COUNT) for number in range(2 * SEQUENCE_COUNT)]
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
    bridged = [want for want in wanted.values() if want["announced_state"] and want["announced_start_offset"] is None]
    assert len(bridged) > 50
    assert {want["announced_end_offset"] for want in bridged} == {None, 77}

    # A run over some partitions reads the events in the driver, or with Spark if the table is large.
    chosen = frozenset((_partition(number).topic, number) for number in range(0, 2 * SEQUENCE_COUNT, 11))
    some = [row for row in rows if (row["topic"], row["partition"]) in chosen]
    limited = announced_segments(replace(warehouse, partitions=chosen)).toArrow().to_pylist()
    with as_large_tables():
        by_spark = announced_segments(replace(warehouse, partitions=chosen)).toArrow().to_pylist()
    for answer in (limited, by_spark):
        assert sorted(answer, key=_place) == sorted(some, key=_place)

    deletes = {row["partition"]: row for row in deleted_partitions(warehouse).toArrow().to_pylist()}
    named = {number: cache for number, cache in enumerate(caches) if cache.is_deletion_named}
    assert deletes.keys() == named.keys()
    for number, cache in named.items():
        state = None if cache.delete_state is None else cache.delete_state.name
        facts = deletes[number]["delete_state"], deletes[number]["dropped_event_count"]
        assert facts == (state, cache.dropped_deletes)
    assert sum(cache.delete_state == PARTITION_FINISHED for cache in caches) > 20
