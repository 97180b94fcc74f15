"""Test the fold of events to states against a state machine of the tests, also with sequences that no broker writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from builders.event_sequences import announced_row, draw_events, drawn_partition
from builders.metadata_cache import (
    PARTITION_FINISHED,
    MetadataCache,
)
from coldlog.formats.kafka.remote_log.remote_log_events import Event
from coldlog.formats.kafka.remote_log.remote_log_metadata import encode_event
from coldlog.indexing.events.announced_here import EVENT_COLUMNS, announced_here
from coldlog.indexing.events.announced_segments import (
    ANNOUNCED_COLUMNS,
    _deleted_partitions,
    _events,
    announced_segments,
)
from coldlog.indexing.events.event_rows import event_row
from coldlog.indexing.events.positions import read_limited_events
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse
from planning import as_large_tables

SEQUENCE_COUNT = 350


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


def _place(row: dict[str, object]) -> tuple[object, object]:
    return row["partition"], row["segment_id"]


@pytest.mark.timeout(900)
def test_fold_equals_kafkas_cache_and_bridges_missing_events(spark: SparkSession, tmp_path: Path) -> None:
    random = Random(4)
    sequences = [draw_events(random, number) for number in range(2 * SEQUENCE_COUNT)]
    caches = [MetadataCache(is_complete=number < SEQUENCE_COUNT) for number in range(2 * SEQUENCE_COUNT)]
    for cache, events in zip(caches, sequences, strict=True):
        for event in events:
            cache.take(event)
    warehouse = _warehouse(spark, tmp_path / "warehouse", sequences)

    rows = announced_segments(warehouse).toArrow().to_pylist()
    found = {(row["partition"], row["segment_id"]): row for row in rows}
    wanted = {
        (number, segment_id): announced_row(known)
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
    chosen = frozenset((drawn_partition(number).topic, number) for number in range(0, 2 * SEQUENCE_COUNT, 11))
    some = [row for row in rows if (row["topic"], row["partition"]) in chosen]
    limited = announced_segments(replace(warehouse, partitions=chosen)).toArrow().to_pylist()
    with as_large_tables():
        by_spark = announced_segments(replace(warehouse, partitions=chosen)).toArrow().to_pylist()
    for answer in (limited, by_spark):
        assert sorted(answer, key=_place) == sorted(some, key=_place)

    # Of few events, the driver folds all itself.
    folded = announced_here(read_limited_events(warehouse, EVENT_COLUMNS), None)
    assert folded is not None
    columns = ("announced_state", *ANNOUNCED_COLUMNS)
    assert folded == {
        (row["topic"], row["partition"], row["topic_id"], row["segment_id"]): {name: row[name] for name in columns}
        for row in rows
    }
    of_chosen = read_limited_events(replace(warehouse, partitions=chosen), EVENT_COLUMNS)
    folded = announced_here(of_chosen, chosen)
    assert folded is not None
    assert {key[:2] for key in folded} == {(row["topic"], row["partition"]) for row in some}
    assert len(folded) == len(some)

    deletes = {row["partition"]: row for row in _deleted_partitions(_events(warehouse)).toArrow().to_pylist()}
    named = {number: cache for number, cache in enumerate(caches) if cache.is_deletion_named}
    assert deletes.keys() == named.keys()
    for number, cache in named.items():
        state = None if cache.delete_state is None else cache.delete_state.name
        facts = deletes[number]["delete_state"], deletes[number]["dropped_event_count"]
        assert facts == (state, cache.dropped_deletes)
    assert sum(cache.delete_state == PARTITION_FINISHED for cache in caches) > 20
