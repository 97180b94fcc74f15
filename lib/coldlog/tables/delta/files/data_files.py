"""Write Parquet files of a table in tasks, which the driver then adds to the table in one commit.

Spark's writer takes rows one by one through Java. The index of a log is in columns, with millions of rows for a log of
a few hundred megabytes, so tasks write Parquet themselves. A `DataFileWriter` makes one file of a table, with the
encodings and row groups of the table's definition and the statistics by which Delta skips files. The file is part of
the table after `Warehouse.add_files` has committed it. Nobody reads it before, and VACUUM removes it if it is never
committed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile, gettempdir
from typing import IO
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from coldlog.archive.stores.local_writer import sync_directory
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_writer import open_s3_writer
from coldlog.errors import RetriableError
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.files.file_checksums import checksums_path, write_checksums
from coldlog.tables.delta.locations import bucket_and_prefix

_ROW_GROUP_ROWS = 1 << 20
LEAST_ROW_GROUP_ROWS = 1 << 13
"""A row group of an index may end here, at the end of a segment: a lookup decodes whole row groups."""
_PIECE_BYTES = 4 << 20
_MANY_PIECES, _SMALL_PIECE_ROWS = 64, 1 << 12
"""A piece takes some 16 KB, even with few rows."""
_ZSTD_LEVEL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A complete file; `path` is below the table's location, `statistics` are Delta's, as JSON."""

    path: str
    size_bytes: int
    modified_ms: int
    statistics: str


@dataclass(slots=True, kw_only=True)
class DataFileWriter:
    """Write one file of `table`; memory holds the rows of one row group, a temporary file holds the rest."""

    table: TableDefinition
    _content: IO[bytes] = field(default_factory=TemporaryFile, init=False)
    _metadata: list[pq.FileMetaData] = field(default_factory=list, init=False)
    _waiting: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _waiting_rows: int = field(default=0, init=False)
    _schema: pa.Schema = field(init=False)
    _parquet: pq.ParquetWriter = field(init=False)

    def __post_init__(self) -> None:
        self._schema = _file_schema(self.table)
        packed = set(self.table.delta_packed)
        self._parquet = pq.ParquetWriter(
            self._content,
            self._schema,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=[name for name in self.table.column_names if name not in packed],
            column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
            store_schema=False,
            write_page_index=True,
            write_page_checksum=True,
            metadata_collector=self._metadata,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._content.tell()

    def add(self, columns: dict[str, pa.Array]) -> None:
        """Add rows by column; texts may be dictionaries. A null in a required column raises `ValueError`."""
        for column in self.table.columns:
            if column.required and columns[column.name].null_count:
                raise ValueError(f"{self.table.name}.{column.name} is required, but a row has no value for it")
        arrays = [
            columns[each.name].dictionary_encode() if columns[each.name].type == pa.string() else columns[each.name]
            for each in self._schema
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._ends_row_group(rows):
            self._write(pa.Table.from_batches(self._waiting), self._waiting_rows)
            self._waiting, self._waiting_rows = [], 0
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._join_small_pieces()
        group_rows = self.table.row_group_rows or _ROW_GROUP_ROWS
        if self._waiting_rows >= group_rows:
            whole = self._waiting_rows // group_rows * group_rows
            rows_waiting = pa.Table.from_batches(self._waiting)
            self._write(rows_waiting.slice(0, whole), group_rows)
            self._waiting = rows_waiting.slice(whole).to_batches()
            self._waiting_rows -= whole

    def _ends_row_group(self, rows: pa.RecordBatch) -> bool:
        """Return whether the rows of a segment are complete, and with them the row group."""
        if self.table.row_group_rows is None or self._waiting_rows < LEAST_ROW_GROUP_ROWS or not rows.num_rows:
            return False
        return bool(self._waiting[-1].column("segment_id")[-1].as_py() != rows.column("segment_id")[0].as_py())

    def _join_small_pieces(self) -> None:
        """Join the last pieces, so that many small segments take no more memory than their rows."""
        last = self._waiting[-_MANY_PIECES:]
        if len(last) == _MANY_PIECES and all(each.num_rows < _SMALL_PIECE_ROWS for each in last):
            joined = pa.Table.from_batches(last).unify_dictionaries().combine_chunks()
            self._waiting[-_MANY_PIECES:] = joined.to_batches()

    def _write(self, rows: pa.Table, group_rows: int) -> None:
        with writing_temporary_files():
            for start in range(0, rows.num_rows, group_rows):
                group = rows.slice(start, group_rows)
                # Each piece has its own dictionaries; with several in a row group, Parquet would not use a dictionary.
                group = group.unify_dictionaries() if rows.num_rows <= group_rows else _with_own_dictionaries(group)
                self._parquet.write_table(group, group_rows)

    def finish(self, location: str, s3: S3Options, prefix: str = "part") -> DataFile:
        """Store the file at the table's location (`Warehouse.data_location`). Its name begins with `prefix`.

        A failure raises `RetriableError` or `UsageError`.
        """
        try:
            if self._waiting_rows:
                self._write(pa.Table.from_batches(self._waiting), self._waiting_rows)
            with writing_temporary_files():
                self._parquet.close()
                size_bytes = self._content.seek(0, os.SEEK_END)  # also flushes the buffer
            name = f"{prefix}-{uuid4()}.zstd.parquet"
            _put(location, s3, name, _FileContent(file=self._content, size_bytes=size_bytes))
        finally:
            self.close()
        return DataFile(
            path=name,
            size_bytes=size_bytes,
            modified_ms=time.time_ns() // 1_000_000,
            statistics=_statistics_of(self._metadata[0], self.table),
        )

    def close(self) -> None:
        """Discard what was written so far; a second call does nothing."""
        if not self._content.closed:
            # Closing writes buffered rows. On a full disk that fails again, in pyarrow with a RuntimeError.
            with suppress(OSError, RuntimeError):
                self._parquet.close()
            self._parquet.is_open = False
            with suppress(OSError):
                self._content.close()


def _with_own_dictionaries(group: pa.Table) -> pa.Table:
    """Leave out texts of other row groups, which Parquet would write too."""
    for at, each in enumerate(group.schema):
        if pa.types.is_dictionary(each.type):
            texts = group.column(at).cast(each.type.value_type).combine_chunks()
            group = group.set_column(at, each, texts.dictionary_encode())
    return group


@contextmanager
def writing_temporary_files() -> Iterator[None]:
    """Raise `RetriableError` with the folder if a temporary file cannot be written."""
    try:
        yield
    except OSError as failed:
        raise RetriableError(
            f"a temporary file in {gettempdir()} cannot be written: {failed.strerror or failed}; free space there, or "
            "set TMPDIR to a folder with space"
        ) from failed


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileContent:
    """Content to store, from an open file."""

    file: IO[bytes]
    size_bytes: int

    def iter_pieces(self) -> Iterator[memoryview]:
        self.file.seek(0)
        while piece := self.file.read(_PIECE_BYTES):
            yield memoryview(piece)


def _file_schema(table: TableDefinition) -> pa.Schema:
    """The schema of the file: texts are written from dictionaries, and all columns may be null.

    As with Spark, only the table's log says which columns are required.
    """
    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([(each.name, text if each.type == pa.string() else each.type) for each in table.arrow_schema])


def _put(location: str, s3: S3Options, name: str, content: _FileContent) -> None:
    if bucket_and_prefix(location) is not None:
        open_s3_writer(location, s3).put(name, content)
        return
    path = os.path.join(location, name)
    try:
        with open(path, "xb") as file:
            for piece in content.iter_pieces():
                file.write(piece)
            file.flush()
            # A commit that survives a loss of power must not name a file that did not.
            os.fsync(file.fileno())
        write_checksums(path)
        sync_directory(location)
    except OSError as failed:
        for useless in (path, checksums_path(path)):  # above all on a full disk
            with suppress(OSError):
                os.unlink(useless)
        raise RetriableError(
            f"{path} cannot be written: {failed.strerror}; driver and workers need the same folder, with space and "
            "write permission"
        ) from failed


def _statistics_of(metadata: pq.FileMetaData, table: TableDefinition) -> str:
    """The row count, and nulls, minima and maxima of the skipping columns (Delta's protocol, "per-file statistics")."""
    # Parquet counts the leaves of nested columns, too.
    leaves = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    columns = {name: leaves[name] for name in table.skipping_columns}
    smallest: dict[str, object] = {}
    largest: dict[str, object] = {}
    nulls = dict.fromkeys(columns, 0)
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for name, at in columns.items():
            found = row_group.column(at).statistics
            nulls[name] += found.null_count
            if found.has_min_max:
                smallest[name] = min(smallest.get(name, found.min), found.min)
                largest[name] = max(largest.get(name, found.max), found.max)
    statistics = {"numRecords": metadata.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    return json.dumps(statistics, ensure_ascii=False, separators=(",", ":"))
