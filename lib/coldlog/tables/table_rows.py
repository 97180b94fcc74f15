"""Read rows of a table of the warehouse that the settings name, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings
    from coldlog.tables.definitions.definition import TableDefinition

Rows = list[dict[str, Any]]


def read_table(
    settings: Settings, table: TableDefinition, columns: Sequence[str], values: Mapping[str, object] | None = None
) -> Rows:
    """Return the rows that have these values; files that cannot have one are not read.

    A table that an older release did not have is empty if the others are there.
    """
    from coldlog.tables.delta.as_of import find_moment_without_spark
    from coldlog.tables.delta.files.table_files import list_table_files, read_file_rows
    from coldlog.tables.delta.locations import table_location

    values = values or {}
    uri = settings.warehouse_uri
    moment_ms = find_moment_without_spark(settings.warehouse.as_of, uri)
    near = {name: (value, value) for name, value in values.items() if name in table.skipping_columns}
    files = list_table_files(table_location(uri, table.name), table, list(near), as_of_ms=moment_ms)
    rows = read_file_rows(files, list(dict.fromkeys([*columns, *values])), files.ranges.may_hold(near).tolist())
    # An older release had fewer columns.
    complete = (dict.fromkeys(columns) | row for row in rows)
    return [row for row in complete if all(row[name] == value for name, value in values.items())]
