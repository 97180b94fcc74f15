"""Write tables without Spark, with their rows in several files and in any order."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from coldlog.tables.definitions.definition import TableDefinition

Row = dict[str, object]
OF_REQUIRED = {"BIGINT": 0, "INT": 0, "SMALLINT": 0, "STRING": "", "BOOLEAN": True}


def write(warehouse: Path, table: TableDefinition, rows: list[Row]) -> None:
    """Write one row to a file of its own and the others to three files, in any order; a table without rows is there
    too."""
    random.Random(table.name).shuffle(rows)
    write_file(warehouse, table, rows[:1])
    for part in filter(None, (rows[first::3] for first in (1, 2, 3))):
        write_file(warehouse, table, part)


def write_file(warehouse: Path, table: TableDefinition, rows: list[Row]) -> None:
    """Add one file with the rows in their order."""
    filled = [
        {
            each.name: row.get(each.name, OF_REQUIRED.get(each.type, []) if each.required else None)
            for each in table.columns
        }
        for row in rows
    ]
    write_deltalake(str(warehouse / table.name), pa.Table.from_pylist(filled, table.arrow_schema), mode="append")
