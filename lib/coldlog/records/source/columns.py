"""Define the columns of an archived record.

They are those of Spark's Kafka source, with the same types: `key`, `value`, `topic`, `partition`, `offset`,
`timestamp`, `timestampType` (0 CreateTime, 1 LogAppendTime) and, on request, `headers`, which is NULL if a record has
none. Spark does not tell a Python data source which columns a query needs, so an option can name them.
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
"""Types by name, in the order of the Kafka source."""


def spark_schema(columns: Sequence[str]) -> StructType:
    """Return the schema of these columns, in Spark's types."""
    return StructType([StructField(name, COLUMN_TYPES[name]) for name in columns])
