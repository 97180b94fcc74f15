"""Read the rows of an S3 Inventory data file: gzipped CSV, ORC or Parquet.

A row is one object. The columns `Key`, `Size` and `LastModifiedDate` must be there; AWS writes the last two only if the
inventory was configured with them. CSV files have no header; their keys are URL-encoded, with `+` for a space. ORC and
Parquet files have the same columns under lower-case names with underscores, and keys as they are.

An inventory of all versions also has `VersionId`, `IsLatest` and `IsDeleteMarker`. Only the latest version of a key
counts, and only if it is not a delete marker.

Any other content raises ArchiveError with the file's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, orc, parquet

from coldlog.archive.inventory.reports import damaged

ROWS = pa.schema([("key", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())])
_KEY, _SIZE, _MODIFIED = "key", "size", "lastmodifieddate"
_VERSION, _LATEST, _MARKERS = "versionid", "islatest", ("isdeletemarker", "deletemarker")
_REQUIRED = {_KEY: "Key", _SIZE: "Size", _MODIFIED: "LastModifiedDate"}
_TYPES = {_SIZE: pa.int64(), _MODIFIED: pa.timestamp("ms", "UTC"), _LATEST: pa.bool_()}
_BATCH_ROWS, _BLOCK_BYTES = 1 << 16, 8 << 20


def iter_rows(
    key: str, content: memoryview, file_format: str, columns: Sequence[str], prefix: str
) -> Iterator[pa.Table]:
    """Yield tables of `ROWS`, with the current objects whose key begins with `prefix`. A CSV file has the `columns`."""
    readers = {"ORC": _iter_orc, "Parquet": _iter_parquet}
    try:
        buffer = pa.py_buffer(content)
        tables = _iter_csv(key, buffer, columns) if file_format == "CSV" else readers[file_format](key, buffer)
        for table in tables:
            yield _current_rows(key, table, prefix)
    except (pa.ArrowException, OSError, ValueError) as wrong:
        raise damaged(key, f"file of the S3 Inventory report is no {file_format}: {wrong}".splitlines()[0]) from wrong


def _iter_csv(key: str, content: pa.Buffer, columns: Sequence[str]) -> Iterator[pa.Table]:
    names = [_plain(name) for name in columns]
    if not content.size:
        raise damaged(key, "file of the S3 Inventory report is empty")
    wanted = _wanted(key, names)
    if not _unpacked(content).read(1):
        return
    types = {name: _TYPES.get(name, pa.bool_() if name in _MARKERS else pa.string()) for name in wanted}
    reader = csv.open_csv(
        _unpacked(content),
        read_options=csv.ReadOptions(column_names=names, block_size=_BLOCK_BYTES),
        convert_options=csv.ConvertOptions(
            include_columns=wanted, column_types=types, null_values=[""], strings_can_be_null=True
        ),
    )
    for batch in reader:
        table = pa.Table.from_batches([batch])
        yield table.set_column(table.column_names.index(_KEY), _KEY, _decoded(table[_KEY]))


def _unpacked(content: pa.Buffer) -> pa.CompressedInputStream:
    return pa.CompressedInputStream(pa.BufferReader(content), "gzip")


def _iter_parquet(key: str, content: pa.Buffer) -> Iterator[pa.Table]:
    with parquet.ParquetFile(content, pre_buffer=False) as file:
        names = file.schema_arrow.names
        wanted = _wanted(key, [_plain(name) for name in names])
        stored = {_plain(name): name for name in names}
        for batch in file.iter_batches(_BATCH_ROWS, columns=[stored[name] for name in wanted]):
            yield _renamed(pa.Table.from_batches([batch]))


def _iter_orc(key: str, content: pa.Buffer) -> Iterator[pa.Table]:
    file = orc.ORCFile(pa.BufferReader(content))
    names = file.schema.names
    wanted = _wanted(key, [_plain(name) for name in names])
    stored = {_plain(name): name for name in names}
    for stripe in range(file.nstripes):
        batch = file.read_stripe(stripe, columns=[stored[name] for name in wanted])
        yield _renamed(pa.Table.from_batches([batch]))


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _renamed(table: pa.Table) -> pa.Table:
    return table.rename_columns([_plain(name) for name in table.column_names])


def _wanted(key: str, names: Sequence[str]) -> list[str]:
    """The columns to read; refuse files without what a listing has."""
    missing = [shown for name, shown in _REQUIRED.items() if name not in names]
    if _VERSION in names and _LATEST not in names:
        missing.append("IsLatest")
    if missing:
        message = "S3 Inventory report lacks columns; configure the inventory with them"
        raise damaged(key, message, ", ".join(missing), ", ".join(names)[:200])
    return [name for name in names if name in (_KEY, _SIZE, _MODIFIED, _LATEST, *_MARKERS)]


def _current_rows(key: str, table: pa.Table, prefix: str) -> pa.Table:
    is_wanted = pc.starts_with(table[_KEY].cast(pa.string()), prefix)
    if _LATEST in table.column_names:
        is_wanted = pc.and_(is_wanted, _flags(table[_LATEST], missing=True))
    for name in set(_MARKERS) & set(table.column_names):
        is_wanted = pc.and_(is_wanted, pc.invert(_flags(table[name], missing=False)))
    rows = table.filter(pc.fill_null(is_wanted, True))
    found = pa.table([rows[_KEY], rows[_SIZE], _milliseconds(rows[_MODIFIED])], names=ROWS.names).cast(ROWS)
    if any(column.null_count for column in found.columns):
        raise damaged(key, "S3 Inventory report has an object without a key, size or date")
    return found


def _flags(values: pa.ChunkedArray, *, missing: bool) -> pa.ChunkedArray:
    return pc.fill_null(values.cast(pa.bool_()), missing)


def _milliseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Epoch ms of timestamps, or of integers that have it."""
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
    return times.cast(pa.int64())


def _decoded(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode the keys that have escapes, which are few."""
    is_escaped = pc.fill_null(pc.match_substring_regex(keys, "[%+]"), False)
    if not pc.any(is_escaped).as_py():
        return keys
    decoded = pa.array(_iter_decoded(keys.filter(is_escaped).to_pylist()), pa.string())
    return pa.chunked_array([pc.replace_with_mask(keys.combine_chunks(), is_escaped.combine_chunks(), decoded)])


def _iter_decoded(keys: Iterable[str]) -> Iterator[str]:
    return (unquote_plus(key, errors="strict") for key in keys)
