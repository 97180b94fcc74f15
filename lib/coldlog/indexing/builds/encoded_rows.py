"""encoded_rows: how do the rows of several tables come out of one pass over the archive?

A segment gives rows for three tables, and an outcome at its end. They come in pieces: the table's name, the segment
they are of, and a block of its rows as one Arrow record batch in IPC form. What all rows of a piece have in common
(topic, partition, ids) stands in the piece once.
"""

from __future__ import annotations

import pyarrow as pa

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.tables.definitions.definition import TableDefinition

OUTCOME = "outcome"
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
