"""encoded_rows: how do the rows of several tables come out of one pass over the archive?

A Spark task has one output schema, a segment gives rows for four tables. So a task hands over pieces: the table's
name, the segment they are of, and a block of its rows as one Arrow record batch in IPC form. The pieces are few and
large, are kept on the executors until every table has taken its own, and a segment that turns out bad is left out by
its id. What all rows of a piece have in common (topic, partition, ids) stands in the piece once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.archive.layout import ListedSegment
from coldlog.tables.definition import TableDefinition

OUTCOME = "outcome"
ENCODED_DDL = "table_name STRING, topic STRING, partition INT, topic_id STRING, segment_id STRING, payload BINARY"
ENCODED_SCHEMA = pa.schema(
    [
        ("table_name", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("topic_id", pa.string()),
        ("segment_id", pa.string()),
        ("payload", pa.binary()),
    ]
)
COMMON_COLUMNS = ("topic", "partition", "topic_id", "segment_id", "build_number")


def encode_rows(table_name: str, segment: ListedSegment, rows: pa.RecordBatch) -> pa.RecordBatch:
    """One piece: `rows` without the common columns."""
    values = [table_name, segment.topic, segment.partition, segment.topic_id, segment.segment_id]
    payload = rows.serialize().to_pybytes()
    columns = [pa.array([value], field.type) for value, field in zip([*values, payload], ENCODED_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=ENCODED_SCHEMA)


def payload_schema(table: TableDefinition) -> pa.Schema:
    """The columns of a table's pieces: those that differ from row to row."""
    return pa.schema([field for field in table.arrow_schema if field.name not in COMMON_COLUMNS])


def read_payloads(schema: pa.Schema, payloads: list[bytes]) -> pa.Table:
    """The rows of pieces, one after another."""
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(p), schema) for p in payloads], schema=schema)


def decode_pieces(pieces: DataFrame, table: TableDefinition, build_number: int) -> DataFrame:
    """The rows of a table from its pieces, with the common columns and the number of the build."""
    decoder = _Decoder(schema_bytes=payload_schema(table).serialize().to_pybytes())
    own = [column for column in table.columns if column.name not in COMMON_COLUMNS]
    ddl = ", ".join(
        ["topic STRING, partition INT, topic_id STRING, segment_id STRING", *(f"{c.name} {c.type}" for c in own)]
    )
    decoded = pieces.select(*ENCODED_SCHEMA.names).mapInArrow(decoder, schema=ddl)
    return decoded.withColumn("build_number", F.lit(build_number).cast("bigint")).select(*table.column_names)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoder:
    """Runs in tasks: pieces to rows."""

    schema_bytes: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema_bytes))
        for batch in batches:
            for piece in batch.to_pylist():
                rows = pa.ipc.read_record_batch(pa.py_buffer(piece["payload"]), schema)
                common = [piece["topic"], piece["partition"], piece["topic_id"], piece["segment_id"]]
                fields = [ENCODED_SCHEMA.field(name) for name in ("topic", "partition", "topic_id", "segment_id")]
                repeated = [
                    pa.repeat(pa.scalar(value, field.type), rows.num_rows)
                    for value, field in zip(common, fields, strict=True)
                ]
                yield pa.RecordBatch.from_arrays([*repeated, *rows.columns], schema=pa.schema([*fields, *schema]))
