"""Define the columns of an archived record.

They are those of Spark's Kafka source, with the same types: `key`, `value`, `topic`, `partition`, `offset`,
`timestamp`, `timestampType` (0 CreateTime, 1 LogAppendTime) and, on request, `headers`, which is NULL if a record has
none. On request there is also `timestampMs`, Kafka's own number, because a TIMESTAMP of Spark counts microseconds and
cannot hold every one. Spark does not tell a Python data source which columns a query needs, so an option can name them.
"""

from __future__ import annotations

from collections.abc import Sequence

HEADERS = "headers"
TIMESTAMP_MS = "timestampMs"
COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    TIMESTAMP_MS: "bigint",
    "timestampType": "int",
    HEADERS: "array<struct<key:string,value:binary>>",
}
"""Spark's names of the types, in the order of the Kafka source."""
LEAST_FITTING_MS, GREATEST_FITTING_MS = -((1 << 63) // 1000), ((1 << 63) - 1) // 1000
"""The timestamps that a TIMESTAMP of Spark can hold: it counts microseconds."""


def columns_ddl(columns: Sequence[str]) -> str:
    """Return the schema of these columns as Spark's DDL."""
    return ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in columns)
