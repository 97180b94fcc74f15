"""Read rows of a table of the warehouse that the settings name, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from coldlog.runtime.settings import Settings
    from coldlog.tables.definitions.definition import TableDefinition
    from coldlog.tables.delta.files.table_files import TableFiles

Rows = list[dict[str, Any]]


def read_table(
    settings: Settings, table: TableDefinition, columns: Sequence[str], values: Mapping[str, object] | None = None
) -> Rows:
    """Return the rows that have these values; files that cannot have one are not read.

    A table that an older release did not have is empty if the others are there.
    """
    from coldlog.tables.delta.files.table_files import read_file_rows

    values = values or {}
    near = {name: (value, value) for name, value in values.items() if name in table.skipping_columns}
    files = _list_files(settings, table, list(near))
    rows = read_file_rows(files, list(dict.fromkeys([*columns, *values])), files.ranges.may_hold(near).tolist())
    # An older release had fewer columns.
    complete = (dict.fromkeys(columns) | row for row in rows)
    return [row for row in complete if all(row[name] == value for name, value in values.items())]


def read_columns(settings: Settings, table: TableDefinition, columns: Sequence[str]) -> pa.Table:
    """Return some columns of all rows, as Arrow; for tables with so many rows that dictionaries would be too large."""
    import pyarrow as pa

    from coldlog.tables.delta.files.table_files import read_whole_file

    files = _list_files(settings, table, [])
    empty = pa.schema([table.arrow_schema.field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *(read_whole_file(files.location, path, table, columns) for path in files.paths)])


def _list_files(settings: Settings, table: TableDefinition, near: Sequence[str]) -> TableFiles:
    from coldlog.tables.delta.as_of import find_moment_without_spark
    from coldlog.tables.delta.files.table_files import list_table_files
    from coldlog.tables.delta.locations import table_location

    moment_ms = find_moment_without_spark(settings.warehouse.as_of, settings.warehouse_uri)
    return list_table_files(table_location(settings.warehouse_uri, table.name), table, near, as_of_ms=moment_ms)
