"""Test that the rows of tables are found by their keys once they are decoded, and take no more memory than they say."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from coldlog.lookups.index_rows import (
    BATCH_COLUMNS,
    INTERVAL_COLUMNS,
    NOTHING,
    SEGMENT_COLUMNS,
    STAIR_COLUMNS,
    IndexRows,
    decode_batches,
    decode_intervals,
    decode_segments,
    decode_stairs,
)
from coldlog.lookups.partition_facts import PARTITION_COLUMNS, decode_partitions
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS

Row = dict[str, Any]
Decode = Callable[[pa.Table], tuple[Any, int]]
_RUN = ("topic", "partition", "segment_id", "build_number")
_INDEXES: tuple[tuple[TableDefinition, tuple[str, ...], Decode, str, str], ...] = (
    (TIME_INDEX, STAIR_COLUMNS, decode_stairs, "offset", "timestamp_ms"),
    (OFFSET_INDEX, BATCH_COLUMNS, decode_batches, "base_offset", "running_max_timestamp_ms"),
    (INTERVAL_INDEX, INTERVAL_COLUMNS, decode_intervals, "after_offset", "running_max_timestamp_ms"),
)


def _table(table: TableDefinition, columns: tuple[str, ...], rows: list[Row]) -> pa.Table:
    schema = pa.schema([table.arrow_schema.field(name).with_nullable(True) for name in columns])
    pieces = [rows[at : at + 7] for at in range(0, len(rows), 7)]
    return pa.concat_tables([schema.empty_table(), *(pa.Table.from_pylist(each, schema=schema) for each in pieces)])


def _index_rows(columns: tuple[str, ...], offset: str, random: Random) -> list[Row]:
    rows = []
    for topic, partition, segment in ((f"t{n % 3}", n % 2, f"s{n}") for n in range(random.choice((0, 1, 9)))):
        for build in (1, 2):
            for at in range(random.choice((0, 1, 5))):
                row: Row = dict.fromkeys(columns, at) | {"topic": topic, "partition": partition}
                rows.append(row | {"segment_id": segment, "build_number": build, offset: 10 * at})
    return rows


@pytest.mark.parametrize(
    ("table", "columns", "decode", "offset", "key"), _INDEXES, ids=["stairs", "batches", "intervals"]
)
def test_rows_of_a_build_are_found_by_their_key(
    table: TableDefinition, columns: tuple[str, ...], decode: Decode, offset: str, key: str
) -> None:
    random, found_count = Random(3), 0
    for turn in range(40):
        rows = _index_rows(columns, offset, random)
        if turn % 2:
            random.shuffle(rows)
        for row in rows:
            row[key] = row[offset] + 5 if random.random() < 0.9 else None
        decoded: IndexRows = decode(_table(table, columns, rows))[0]
        wanted: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        for row in sorted(rows, key=lambda each: int(each[offset])):
            value = NOTHING if row[key] is None else row[key]
            wanted.setdefault(tuple(row[name] for name in _RUN), []).append((row[offset], value))
        asked = [*wanted, ("t0", 0, "s0", 9), ("t9", 0, "s0", 1), ("t0", 9, "s0", 1), ("t0", 0, "other", 1)]
        for _ in range(3):  # the same partition several times in a row, and others between
            random.shuffle(asked)
            for each in asked:
                ranges = decoded.runs_of(each)
                places = [at for start, stop in ranges for at in range(start, stop)]
                found = list(zip(decoded.offsets[places].tolist(), decoded.keys[places].tolist(), strict=True))
                assert sorted(found) == wanted.get(each, [])
                assert all(np.all(np.diff(decoded.offsets[start:stop]) > 0) for start, stop in ranges)
                found_count += len(found)
    assert found_count > 1_000


def _partition(number: int) -> Row:
    row: Row = dict.fromkeys(PARTITION_COLUMNS) | {"topic": f"t{number % 5}", "partition": number // 5 * 1_000}
    row |= {"topic_id": f"id {number}", "is_current": number % 7 != 0, "earliest_offset": number or None}
    row["log_start_source"] = (None, "supplied", "checkpoint_lost", "first_segment")[number % 4]
    row["leader_epoch_lineage"] = (
        None if number % 4 == 0 else [{"leader_epoch": at, "start_offset": 10 * at} for at in range(number % 4)]
    )
    ranges = [{"from_offset": number, "to_offset": None, "max_timestamp_bound_ms": 7}]
    return row | {"unserved_ranges": (None, [], ranges)[number % 3]}


def test_partitions_are_found_and_decoded_row_by_row() -> None:
    rows = [_partition(number) for number in range(60)]
    Random(1).shuffle(rows)
    decoded, _ = decode_partitions(_table(PARTITION_METADATA, PARTITION_COLUMNS, rows))
    current = {(row["topic"], row["partition"]): row for row in rows if row["is_current"]}
    for topic in ("t0", "t1", "t2", "t3", "t4", "t5"):
        assert decoded.partitions_of(topic) == sorted(number for name, number in current if name == topic)
        for partition in (-1, 0, 1, 1_000, 5_000, 11_000, 12_000, 1 << 40):
            at, row = decoded.find(topic, partition), current.get((topic, partition))
            assert (at is None) == (row is None)
            if at is None or row is None:
                continue
            facts = decoded.facts(at)
            lineage = tuple((each["leader_epoch"], each["start_offset"]) for each in row["leader_epoch_lineage"] or ())
            assert (facts.topic_id, facts.lineage) == (row["topic_id"], lineage)
            assert (facts.earliest_offset, facts.stable_offset) == (row["earliest_offset"], None)
            assert facts.is_log_start_known is (row["log_start_source"] != "checkpoint_lost")
            assert facts.is_start_first_segment is (row["log_start_source"] == "first_segment")
            bounds = None if facts.unserved_ranges is None else [each.from_offset for each in facts.unserved_ranges]
            stored = row["unserved_ranges"]
            assert bounds == (None if stored is None else [each["from_offset"] for each in stored])


def _segments(count: int) -> pa.Table:
    row: Row = dict.fromkeys(SEGMENT_COLUMNS, 1) | {"topic": "orders", "topic_id": "A" * 22}
    row["served_index_depth"] = "record"
    rows = [row | {"partition": at // 100, "segment_id": f"{at:022d}", "served_from_offset": at} for at in range(count)]
    return _table(SEGMENTS, SEGMENT_COLUMNS, rows).combine_chunks()


def _stairs(count: int, a_segment: int) -> pa.Table:
    row: Row = dict.fromkeys(STAIR_COLUMNS, 1) | {"topic": "orders"}
    rows = [
        row | {"partition": at // 100, "segment_id": f"{at // a_segment:022d}", "offset": at, "timestamp_ms": at}
        for at in range(count)
    ]
    return _table(TIME_INDEX, STAIR_COLUMNS, rows).combine_chunks()


def _partitions(count: int) -> pa.Table:
    rows = [_partition(1) | {"partition": at, "is_current": True} for at in range(count)]
    return _table(PARTITION_METADATA, PARTITION_COLUMNS, rows).combine_chunks()


@pytest.mark.parametrize(
    ("make", "decode"),
    [
        (partial(_segments, 20_000), decode_segments),
        (partial(_stairs, 20_000, 1), decode_stairs),
        (partial(_stairs, 20_000, 500), decode_stairs),
        (partial(_partitions, 20_000), decode_partitions),
    ],
    ids=["segments", "a stair a segment", "many stairs a segment", "partitions"],
)
def test_what_is_kept_takes_no_more_memory_than_it_says(make: Callable[[], pa.Table], decode: Decode) -> None:
    rows = make()
    decode(rows)  # what is imported and compiled at first does not count
    tracemalloc.start()
    arrow_bytes = pa.total_allocated_bytes()
    decoded, size_bytes = decode(rows)
    if isinstance(decoded, IndexRows):
        decoded.runs_of(("orders", 0, f"{0:022d}", 1))
        decoded.runs_of(("orders", 0, f"{1:022d}", 1))
    taken = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - arrow_bytes
    tracemalloc.stop()
    # Columns that are kept as they were read take the memory of the read, which is not counted above.
    assert taken <= size_bytes <= rows.nbytes * 3
