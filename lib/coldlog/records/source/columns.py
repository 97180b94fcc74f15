"""columns: which columns has an archived record?

Those of Spark's Kafka source, of the same types: `key`, `value`, `topic`, `partition`, `offset`, `timestamp`,
`timestampType` (0 CreateTime, 1 LogAppendTime) and, if asked for, `headers`, which is NULL where a record has none.
Spark does not tell a Python data source which columns a query needs; so they may be named beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS = "headers"
COLUMN_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}
"""By name, in the order of the Kafka source."""


def spark_schema(columns: Sequence[str]) -> StructType:
    """The schema of these columns, as Spark knows it."""
    return StructType([StructField(name, COLUMN_TYPES[name]) for name in columns])
