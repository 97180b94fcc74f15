"""Write a small warehouse of two tables, for tests that need names and not answers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS

HOLE = {"position": 0, "end_position": 9, "reason": "crc_mismatch", "max_timestamp_bound_ms": 5}
HOLES = [
    {"from_offset": 3, "to_offset": 4, **HOLE},
    {"from_offset": 8, "to_offset": None, **HOLE},
    {"from_offset": 7, "to_offset": 6, **HOLE},  # it lost no offset
    {"from_offset": 20, "to_offset": 25, **HOLE},  # another segment serves these
]

EMPTY = {"STRING": "", "INT": 0, "BIGINT": 0, "BOOLEAN": False}


def write_small_warehouse(place: Path) -> str:
    """Write the partitions orders-0, which has holes, and orders-1; no run has published payments-0 yet."""
    first, second, unpublished = (
        {"topic": topic, "partition": partition, "topic_id": "a"}
        for topic, partition in (("orders", 0), ("orders", 1), ("payments", 0))
    )
    served = {"served_from_offset": 0, "served_to_offset": 9}
    partitions = [{**place, "is_current": True, "gap_count": 0} for place in (first, second)]
    segments = [
        {**first, **served, "served_holes": HOLES},
        {**second, **served},
        {**second, "served_holes": HOLES},
        unpublished,
    ]
    for table, rows in ((PARTITION_METADATA, partitions), (SEGMENTS, segments)):
        empty = {each.name: EMPTY.get(each.type, []) for each in table.columns if each.required}
        full = pa.Table.from_pylist([{**empty, **row} for row in rows], schema=table.arrow_schema)
        write_deltalake(place / table.name, full)
    return str(place)


def write_readable_warehouse(place: Path) -> str:
    """Write the small warehouse and the empty tables without which no record is read."""
    for table in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
        write_deltalake(place / table.name, table.arrow_schema.empty_table())
    return write_small_warehouse(place)
