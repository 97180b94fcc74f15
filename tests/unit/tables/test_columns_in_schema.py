"""Test that the rows of a file come in the types of the table, whatever types the file has."""

from __future__ import annotations

import pyarrow as pa

from coldlog.tables.delta.files.partition_rows import in_schema


def test_columns_have_the_types_of_the_table_and_those_that_are_not_stored_are_null() -> None:
    wanted = pa.schema(
        [("offset", pa.int64()), ("starts", pa.list_(pa.int64())), ("same", pa.string()), ("new", pa.int32())]
    )
    starts = pa.array([[1], None], pa.list_(pa.field("element", pa.int64())))
    stored = pa.table({"same": ["a", None], "starts": starts, "offset": pa.array([1, 2], pa.int32()), "other": [1, 2]})
    rows = in_schema(stored, wanted)
    assert rows.schema.equals(wanted, check_metadata=True)
    assert all(
        column.type.equals(each.type, check_metadata=True) for column, each in zip(rows.columns, wanted, strict=True)
    )
    assert rows.to_pylist() == [
        {"offset": 1, "starts": [1], "same": "a", "new": None},
        {"offset": 2, "starts": None, "same": None, "new": None},
    ]
