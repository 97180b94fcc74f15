"""Encode rows of several tables as pieces, so that one pass over the archive returns them all.

A segment has rows for three tables, and one outcome at its end. A piece has the name of a table, the segment, and a
block of rows as one Arrow record batch in IPC form. Values that all rows of a piece share (topic, partition, ids) are
in the piece once. If a segment is read again without a damaged file, a piece drops those before it.
"""

from __future__ import annotations

import pyarrow as pa

from coldlog.archive.layouts.layout import ListedSegment
from coldlog.tables.definitions.definition import TableDefinition

OUTCOME = "outcome"
DROPPED = "dropped"
"""The segment is read again: its pieces so far do not count."""
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
    """Make one piece; `rows` do not have the common columns."""
    values = [table_name, segment.topic, segment.partition, segment.topic_id, segment.segment_id]
    payload = rows.serialize().to_pybytes()
    columns = [pa.array([value], field.type) for value, field in zip([*values, payload], ENCODED_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=ENCODED_SCHEMA)


def drop_pieces(segment: ListedSegment) -> pa.RecordBatch:
    """Make the piece after which the earlier pieces of the segment do not count."""
    return encode_rows(DROPPED, segment, pa.RecordBatch.from_pydict({}))


def payload_schema(table: TableDefinition) -> pa.Schema:
    """The columns in a table's pieces: all except the common columns."""
    return pa.schema([field for field in table.arrow_schema if field.name not in COMMON_COLUMNS])


def read_payloads(schema: pa.Schema, payloads: list[bytes]) -> pa.Table:
    """Read the rows of pieces, in order."""
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(p), schema) for p in payloads], schema=schema)
