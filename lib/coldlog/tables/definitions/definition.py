"""Describe a table of coldlog independently of an engine.

Only the `TableDefinition` names a table's columns, types, comments, keys and clustering. The DDL, the Spark schema and
the Arrow schema are made from it. It uses only types that every reader of Delta knows (delta-rs, DuckDB, pandas). Names
must be SQL identifiers; this is checked here, so SQL needs no quoting later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from coldlog.errors import UsageError

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")

_ARROW_TYPES: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "SMALLINT": pa.int16(),
    "BOOLEAN": pa.bool_(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DOUBLE": pa.float64(),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>": pa.list_(
        pa.struct([("leader_epoch", pa.int32()), ("start_offset", pa.int64())])
    ),
    "ARRAY<STRUCT<kind: STRING, name: STRING, size_bytes: BIGINT>>": pa.list_(
        pa.struct([("kind", pa.string()), ("name", pa.string()), ("size_bytes", pa.int64())])
    ),
    "ARRAY<STRUCT<from_offset: BIGINT, to_offset: BIGINT, max_timestamp_bound_ms: BIGINT>>": pa.list_(
        pa.struct([(name, pa.int64()) for name in ("from_offset", "to_offset", "max_timestamp_bound_ms")])
    ),
    "ARRAY<STRUCT<from_offset: BIGINT, to_offset: BIGINT, position: BIGINT, end_position: BIGINT, reason: STRING, "
    "max_timestamp_bound_ms: BIGINT>>": pa.list_(
        pa.struct(
            [
                *((name, pa.int64()) for name in ("from_offset", "to_offset", "position", "end_position")),
                ("reason", pa.string()),
                ("max_timestamp_bound_ms", pa.int64()),
            ]
        )
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its Spark SQL type, and the comment that `DESCRIBE` shows. `required` columns are NOT NULL."""

    name: str
    type: str
    comment: str
    required: bool = False

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.name):
            raise UsageError(f"not a column name: {self.name!r}")
        if self.type not in _ARROW_TYPES:
            raise UsageError(f"column {self.name}: unknown type {self.type!r}; use one of {sorted(_ARROW_TYPES)}")

    @property
    def arrow_field(self) -> pa.Field:
        return pa.field(self.name, _ARROW_TYPES[self.type], nullable=not self.required)

    @property
    def ddl(self) -> str:
        constraint = " NOT NULL" if self.required else ""
        comment = self.comment.replace("\\", "\\\\").replace("'", "\\'")
        return f"{self.name} {self.type}{constraint} COMMENT '{comment}'"


_SPARK_NAMES = {
    pa.int64(): "long",
    pa.int32(): "integer",
    pa.int16(): "short",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.float64(): "double",
}


def _spark_type(kind: pa.DataType) -> object:
    """The type in the JSON of Spark's schemas, which Delta keeps in its log."""
    if pa.types.is_list(kind):
        return {"containsNull": True, "elementType": _spark_type(kind.value_type), "type": "array"}
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _spark_struct([(each.name, each.type, True, {}) for each in fields])
    return _SPARK_NAMES[kind]


def _spark_struct(fields: Sequence[tuple[str, pa.DataType, bool, dict[str, str]]]) -> object:
    named = [
        {"metadata": metadata, "name": name, "nullable": is_nullable, "type": _spark_type(kind)}
        for name, kind, is_nullable, metadata in fields
    ]
    return {"fields": named, "type": "struct"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A table: its columns, its key and the order of its files; `comment` says what a row is.

    `clustered_by` is for liquid clustering. Delta keeps minima and maxima of `skipping_columns` per file.
    `delta_packed` are integers with small differences between rows. They are written without a dictionary. Otherwise
    Parquet would prefer a dictionary to delta binary packing for some tens of thousands of distinct values.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    clustered_by: tuple[str, ...]
    skipping_columns: tuple[str, ...]
    properties: dict[str, str] = field(default_factory=dict)
    delta_packed: tuple[str, ...] = ()
    row_group_rows: int | None = None
    arrow_schema: pa.Schema = field(init=False, repr=False, compare=False)
    """Made once: each read and write of a table asks for it, a thousand times a run."""

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.name):
            raise UsageError(f"not a table name: {self.name!r}")
        names = [column.name for column in self.columns]
        unknown = {*self.key, *self.clustered_by, *self.skipping_columns, *self.delta_packed} - set(names)
        if unknown or len(set(names)) != len(names):
            raise UsageError(f"table {self.name}: unknown or repeated columns {sorted(unknown) or names}")
        object.__setattr__(self, "arrow_schema", pa.schema([column.arrow_field for column in self.columns]))

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def column_types(self) -> dict[str, str]:
        return {column.name: column.type for column in self.columns}

    def select_list(self, stored: Collection[str]) -> list[str]:
        """The columns in SQL, for a version of the table that has the columns `stored`. A later column is NULL, unless
        it is required."""
        return [
            column.name if column.required or column.name in stored else f"CAST(NULL AS {column.type}) AS {column.name}"
            for column in self.columns
        ]

    def add_columns_statement(self, qualified_name: str, stored: Sequence[str]) -> str | None:
        """`ALTER TABLE` that adds the columns missing in a table of an older release; None if none is missing.

        Only columns that may be NULL can be added. A missing required column raises `UsageError`.
        """
        added = [column for column in self.columns if column.name not in stored]
        required = [column.name for column in added if column.required]
        if required:
            raise UsageError(
                f"{qualified_name} is not coldlog's table {self.name}: {', '.join(required)} missing; "
                "run rebuild_tables, which makes the tables anew from the archive"
            )
        if not added:
            return None
        return f"ALTER TABLE {qualified_name} ADD COLUMNS ({', '.join(column.ddl for column in added)})"

    @property
    def schema_json(self) -> str:
        """The columns as Spark writes them to Delta's log."""
        fields = [(each.arrow_field, each.comment) for each in self.columns]
        return json.dumps(
            _spark_struct([(each.name, each.type, each.nullable, {"comment": comment}) for each, comment in fields]),
            separators=(",", ":"),
            ensure_ascii=False,
        )

    @property
    def all_properties(self) -> dict[str, str]:
        """The properties with which the table is created."""
        skipping = ",".join(self.skipping_columns)
        fixed = {"delta.dataSkippingStatsColumns": skipping, "delta.enableDeletionVectors": "false"}
        return {**fixed, **self.properties}

    def create_statement(self, qualified_name: str, location: str) -> str:
        """`CREATE TABLE IF NOT EXISTS` for Spark with Delta at `location`."""
        columns = ",\n  ".join(column.ddl for column in self.columns)
        properties_text = ", ".join(f"'{key}' = '{value}'" for key, value in self.all_properties.items())
        comment = self.comment.replace("\\", "\\\\").replace("'", "\\'")
        where = location.replace("\\", "\\\\").replace("'", "\\'")
        return (
            f"CREATE TABLE IF NOT EXISTS {qualified_name} (\n  {columns}\n) USING DELTA\n"
            f"CLUSTER BY ({', '.join(self.clustered_by)})\n"
            f"COMMENT '{comment}'\nLOCATION '{where}'\nTBLPROPERTIES ({properties_text})"
        )
