"""Encode rows of several tables as pieces, so that one pass over the archive returns them all.

A segment has rows for three tables, and one outcome at its end. A piece has the name of a table, the segment, and a
block of rows as one Arrow record batch in IPC form. Values that all rows of a piece share (topic, partition, ids) are
in the piece once. If a segment is read again without a damaged file, a piece drops those before it.
"""

from __future__ import annotations

from collections.abc import Mapping

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
_ENCODED_ROW = pa.struct(list(ENCODED_SCHEMA))
COMMON_COLUMNS = ("topic", "partition", "topic_id", "segment_id", "build_number")


def encode_rows(table_name: str, segment: ListedSegment, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Make one piece; `rows` do not have the common columns."""
    payload = rows.serialize().to_pybytes()
    return one_row(
        _ENCODED_ROW,
        {
            "table_name": table_name,
            "topic": segment.topic,
            "partition": segment.partition,
            "topic_id": segment.topic_id,
            "segment_id": segment.segment_id,
            "payload": payload,
        },
    )


def one_row(row_type: pa.StructType, row: Mapping[str, object]) -> pa.RecordBatch:
    """Make a batch of one row; a column that `row` does not have is NULL. As one struct the values are converted in one
    call: for the 38 columns of an outcome that takes a third of the time of RecordBatch.from_pylist."""
    return pa.RecordBatch.from_struct_array(pa.array([row], row_type))


def drop_pieces(segment: ListedSegment) -> pa.RecordBatch:
    """Make the piece after which the earlier pieces of the segment do not count."""
    return encode_rows(DROPPED, segment, pa.RecordBatch.from_pydict({}))


def payload_schema(table: TableDefinition) -> pa.Schema:
    """The columns in a table's pieces: all except the common columns."""
    return pa.schema([field for field in table.arrow_schema if field.name not in COMMON_COLUMNS])


def read_payloads(schema: pa.Schema, payloads: list[bytes]) -> pa.Table:
    """Read the rows of pieces, in order."""
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(p), schema) for p in payloads], schema=schema)
