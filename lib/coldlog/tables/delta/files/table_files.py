"""Find the files of a table that may hold a row.

This is for readers that need a few rows of a large table in milliseconds, without an engine. The list of files and
their statistics belong to one version of the Delta table and are read with delta-rs. They can be pickled.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from coldlog.errors import UsageError
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.files.parquet_files import PublishedFile, opened_parquet, read_file, read_rows
from coldlog.tables.delta.files.partition_rows import (
    WantedPartitions,
    greatest_of_row_groups,
    in_schema,
    read_partition_rows,
)
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.log_files import open_log
from coldlog.tables.delta.table_storage import open_delta, open_newest, require_reachable, storage_error

Bounds = npt.NDArray[Any]
"""64-bit integers, or texts."""

_LEAST_NUMBER, _GREATEST_NUMBER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_LAST_MS = 253_402_300_799_000
"""The last second of the year 9999; datetime has no later time."""
_MOST_FILTERED = 20
_LEAST_TEXT, _GREATEST_TEXT = "", chr(0x10FFFF) * 8
PUBLISH_APPLICATION = "coldlog-publish"
"""The application whose version in a table's log is the number of the newest publish (`manifest`)."""
_MOST_ANSWERS = 1 << 15
_greatest_known: dict[tuple[str, str, tuple[str, ...]], Mapping[str, int | None]] = {}
"""The greatest values of so many files, by location, path and columns."""


class NoTableError(UsageError):
    """There is no such table at the place, or there was none yet at that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRanges:
    """Smallest and largest value of some columns in each of `count` parts of a table."""

    minima: Mapping[str, Bounds]
    maxima: Mapping[str, Bounds]
    count: int

    def may_hold(
        self, within: Mapping[str, tuple[Any, Any]], among: npt.NDArray[np.intp] | None = None
    ) -> npt.NDArray[np.intp]:
        """Return the parts that may have a row with every column in its inclusive range; only parts in `among`, if
        given."""
        possible = among
        # Numbers first: comparing them is many times faster, and leaves few texts to compare.
        for name in sorted(within, key=lambda name: self.minima[name].dtype == np.object_):
            low, high = within[name]
            minima, maxima = self.minima[name], self.maxima[name]
            if possible is None:
                possible = np.flatnonzero((maxima >= low) & (minima <= high))
            else:
                possible = possible[(maxima[possible] >= low) & (minima[possible] <= high)]
        return np.arange(self.count) if possible is None else possible


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The files of one version of a table below `location`, with the ranges from their statistics.

    `actions` are CRC-32C of path, size and statistics of each file, `published` what a manifest says of it; None if it
    says nothing. `publish_number` is 0 in a table without one, `table_id` is empty if there is no table.
    """

    location: str
    version: int
    paths: tuple[str, ...]
    ranges: ColumnRanges
    publish_number: int = 0
    actions: tuple[int, ...] = ()
    published: tuple[PublishedFile | None, ...] = ()
    table_id: str = ""

    @property
    def state(self) -> str:
        """As `table_state`: a table that was made anew counts its versions from 0, but has another id."""
        return _state(self.table_id, self.version)


def list_table_files(
    location: str, table: TableDefinition, columns: Sequence[str], *, as_of_ms: int | None = None
) -> TableFiles:
    """List the files of the newest version, or of the version at that time, with the ranges of `columns`.

    Without `columns`, a table of an older release passes. A place without such a table, or without it at that time,
    raises `UsageError`, a damaged log `ColdlogError`.
    """
    check_log(location)
    delta = open_table(location, table, as_of_ms)
    if as_of_ms is not None:
        check_log(location, delta.version())
    required = {column.name for column in table.columns if column.required}
    missing_columns = required - {field.name for field in delta.schema().fields}
    if columns and missing_columns:
        raise UsageError(
            f"{location} is not coldlog's table {table.name}: {', '.join(sorted(missing_columns))} missing; "
            "run rebuild_tables, which makes the tables anew from the archive"
        )
    # pa.table() would import pandas, to see whether this is a DataFrame.
    actions = pa.RecordBatchReader.from_stream(delta.get_add_actions(flatten=True)).read_all()
    known = set(actions.column_names)
    least, greatest = (
        {
            name: actions[f"{bound}.{name}"].to_pylist() if f"{bound}.{name}" in known else [None] * len(actions)
            for name in columns
        }
        for bound in ("min", "max")
    )
    return TableFiles(
        location=location.rstrip("/"),
        version=delta.version(),
        paths=tuple(actions["path"].to_pylist()),
        ranges=column_ranges(table, least, greatest, len(actions)),
        publish_number=delta.transaction_version(PUBLISH_APPLICATION) or 0,
        actions=_checksums_of(actions, table),
        table_id=str(delta.metadata().id),
    )


def no_files(location: str, table: TableDefinition) -> TableFiles:
    """The list of a table without files, for one that an earlier release did not have."""
    bounds: dict[str, list[object]] = {name: [] for name in table.skipping_columns}
    ranges = column_ranges(table, bounds, bounds, 0)
    return TableFiles(location=location.rstrip("/"), version=-1, paths=(), ranges=ranges)


def read_file_rows(
    files: TableFiles, columns: Sequence[str], numbers: Iterable[int] | None = None
) -> Iterator[dict[str, object]]:
    """Iterate over the rows of all files, or of those with these numbers; for small tables, or few columns.

    A file that cannot be read raises `RetriableError`, a damaged one `ColdlogError`.
    """
    for number in range(len(files.paths)) if numbers is None else numbers:
        published = files.published[number] if files.published else None
        try:
            rows = read_rows(files.location, files.paths[number], columns, published)
        except (OSError, pa.ArrowException) as failed:
            raise storage_error(failed, files.location, files.paths[number]) from None
        yield from rows


def read_whole_file(location: str, path: str, table: TableDefinition, columns: Sequence[str] | None = None) -> pa.Table:
    """Read all rows of a file, or only some columns, in the table's schema. Columns that the table got after the file
    was written are NULL."""
    schema = _schema(table, columns)
    try:
        stored = read_file(location, path, schema.names)
    except (DeltaError, OSError, pa.ArrowException) as failed:
        raise storage_error(failed, location, path) from None
    return in_schema(stored, schema)


def greatest_in_file(
    location: str, path: str, table: TableDefinition, columns: tuple[str, ...]
) -> Mapping[str, int | None]:
    """Return the greatest values of integer columns; None if there is none. Row groups without statistics are read.

    A file never changes, so it is opened once in a process.
    """
    key = (location, path, columns)
    if key not in _greatest_known:
        if len(_greatest_known) >= _MOST_ANSWERS:
            _greatest_known.clear()
        _greatest_known[key] = _read_greatest(location, path, table, columns)
    return _greatest_known[key]


def _read_greatest(
    location: str, path: str, table: TableDefinition, columns: tuple[str, ...]
) -> Mapping[str, int | None]:
    try:
        with opened_parquet(location, path) as parquet:
            known = {column: greatest_of_row_groups(parquet.metadata, column) for column in columns}
    except (DeltaError, OSError, pa.ArrowException) as failed:
        raise storage_error(failed, location, path) from None
    greatest = {column: max(found, default=None) for column, found in known.items() if found is not None}
    if unknown := [column for column in columns if column not in greatest]:
        rows = read_whole_file(location, path, table, unknown)
        greatest |= {column: pc.max(rows[column]).as_py() for column in unknown}
    return greatest


def read_if_small(
    location: str,
    table: TableDefinition,
    most_rows: int,
    *,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    most_files: int | None = None,
    partitions: frozenset[tuple[str, int]] | None = None,
) -> pa.Table | None:
    """Read the newest version of a table with at most `most_rows` rows and `most_files` files.

    With `partitions`, only rows of these topics and partitions are read, and only row groups that may have some count.
    Of these, `_MOST_FILTERED` times as many rows may be read. A row without a topic counts by its partition.

    None: it has more, only an engine can read it (deletion vectors), it has not all `columns` (without these, of the
    definition), or its newest version is not `version`.
    """
    delta = open_table(location, table)
    if delta.protocol().min_reader_version != 1 or version not in (None, delta.version()):
        return None
    schema = _schema(table, columns)
    if not {field.name for field in delta.schema().fields}.issuperset(schema.names):
        return None
    files = pa.RecordBatchReader.from_stream(delta.get_add_actions(flatten=True)).read_all()
    wanted = None if partitions is None else WantedPartitions.of(partitions)
    if wanted is not None:
        files = wanted.files(files)
    paths = files["path"].to_pylist()
    if most_files is not None and len(paths) > most_files:
        return None
    if wanted is not None:
        found = read_partition_rows(location, paths, schema, wanted, most_rows * _MOST_FILTERED)
        return None if found is None or len(found) > most_rows else found
    counts = files["num_records"].to_pylist() if "num_records" in files.column_names else [None] * len(files)
    if None in counts or sum(counts) > most_rows:
        return None
    pieces = [read_whole_file(location, path, table, columns) for path in paths]
    return pa.concat_tables([schema.empty_table(), *pieces])


def _schema(table: TableDefinition, columns: Sequence[str] | None) -> pa.Schema:
    return table.arrow_schema if columns is None else pa.schema([table.arrow_schema.field(name) for name in columns])


def _checksums_of(actions: pa.Table, table: TableDefinition) -> tuple[int, ...]:
    """CRC-32C of each file's path, size, number of rows, and nulls, minima and maxima of the skipping columns."""
    bounds = (f"{bound}.{name}" for name in table.skipping_columns for bound in ("null_count", "min", "max"))
    names = ("path", "size_bytes", "num_records", *bounds)
    known = set(actions.column_names)
    texts = [
        pc.fill_null(pc.cast(actions[name], pa.string()), "\x01") if name in known else pa.scalar("\x01")
        for name in names
    ]
    return tuple(map(crc32c, pc.binary_join_element_wise(*texts, "\x00").cast(pa.binary()).to_pylist()))


def is_newest(files: TableFiles, table: TableDefinition, *, as_of_ms: int | None = None) -> bool:
    """Whether `list_table_files` would list the same version now."""
    if as_of_ms is not None:
        return open_table(files.location, table, as_of_ms).version() == files.version
    # One request; opening the table takes longer than all else that a lookup does.
    return open_log(files.location).find_modified_ms(f"{files.version + 1:020d}.json") is None


def table_state(location: str, table: TableDefinition, *, storage: Mapping[str, str] | None = None) -> str:
    """The id and the newest version of a table; `storage` as for `open_table`."""
    opened = open_table(location, table, storage=storage)
    return _state(str(opened.metadata().id), opened.version())


def _state(table_id: str, version: int) -> str:
    return f"{table_id} {version}"


def open_table(
    location: str, table: TableDefinition, as_of_ms: int | None = None, *, storage: Mapping[str, str] | None = None
) -> DeltaTable:
    """Open the newest version, or the version at that time, with delta-rs. The newest may be shared (`open_newest`).

    `storage` has the options that `delta_storage_options` gave for another table of the warehouse: it takes longer than
    the opening.
    """
    try:
        delta = (open_newest if as_of_ms is None else open_delta)(location, storage)
    except (DeltaError, OSError) as missing:
        if bucket_and_prefix(location) is not None:
            # delta-rs reports a bucket that it may not list, or that does not answer, as empty.
            require_reachable(location)
        if not isinstance(missing, TableNotFoundError):
            raise storage_error(missing, location) from None
        raise _no_table(location, table, missing) from None
    if as_of_ms is not None:
        try:
            delta.load_as_version(datetime.fromtimestamp(min(as_of_ms, _LAST_MS) / 1000, tz=UTC))
        except (DeltaError, OSError) as missing:
            raise _no_table(location, table, missing) from None
        if delta.version() == 0 and (commit_ms(location, 0) or 0) > as_of_ms:
            raise NoTableError(f"{location} did not exist yet at {as_of_ms} ms since the epoch; give a later time")
    return delta


def commit_ms(location: str, version: int) -> int | None:
    """Return the time of a version as Delta and delta-rs find it: when its file was written; None without this file."""
    return open_log(location).find_modified_ms(f"{version:020d}.json")


def _no_table(location: str, table: TableDefinition, missing: Exception) -> UsageError:
    folder, cause = local_folder(location), type(missing).__name__
    if folder is not None:
        warehouse = os.path.dirname(folder)
        try:
            os.stat(folder)
        except FileNotFoundError:
            if not os.path.isdir(warehouse):
                return NoTableError(
                    f"there are no tables in {warehouse}: no such folder; run the pipeline into this warehouse first, "
                    "or correct warehouse.uri"
                )
            cause = f"there is no folder {folder}"
        except NotADirectoryError:
            cause = f"{warehouse} is not a folder"
        except OSError as refused:
            return UsageError(f"{location} cannot be read ({refused.strerror}); give this user the right to read it")
    return NoTableError(
        f"{location} is not coldlog's table {table.name} ({cause}); "
        "run the pipeline into this warehouse first, or correct warehouse.uri"
    )


def column_ranges(
    table: TableDefinition, least: Mapping[str, Sequence[object]], greatest: Mapping[str, Sequence[object]], count: int
) -> ColumnRanges:
    """Make the ranges of integer and text columns; None is an unknown bound, so any value is possible."""
    schema = table.arrow_schema
    is_number = {name: pa.types.is_integer(schema.field(name).type) for name in least}
    return ColumnRanges(
        minima={
            name: _bounds(values, _LEAST_NUMBER if is_number[name] else _LEAST_TEXT) for name, values in least.items()
        },
        maxima={
            name: _bounds(values, _GREATEST_NUMBER if is_number[name] else _GREATEST_TEXT)
            for name, values in greatest.items()
        },
        count=count,
    )


def _bounds(values: Sequence[object], unknown: int | str) -> Bounds:
    known = [unknown if value is None else value for value in values]
    return np.array(known, dtype=np.int64 if isinstance(unknown, int) else np.object_)
