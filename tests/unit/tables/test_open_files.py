"""Test that a reader does not keep the small files of a table open: a run adds one to each table, and a process has
many readers. And that Python's objects stay in its own threads: Arrow's abort a process that ends meanwhile."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from coldlog.errors import ColdlogError
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.delta.files import parquet_files, table_files
from coldlog.tables.delta.files.file_checksums import CheckedFile, write_checksums
from coldlog.tables.delta.files.parquet_files import TableFile, opened_parquet, read_file
from coldlog.tables.delta.files.table_files import list_table_files
from coldlog.tables.delta.files.table_reader import KeptParts, TableReader

FILES = 40
COLUMNS = LOG_START_OFFSETS.column_names


def _write(folder: Path) -> str:
    """A table with a file for each partition."""
    for partition in range(FILES):
        row = {"topic": "orders", "partition": partition, "log_start_offset": 10 * partition}
        rows = pa.Table.from_pylist([row], schema=LOG_START_OFFSETS.arrow_schema)
        write_deltalake(str(folder), rows, mode="append")
    return str(folder)


def _reader(location: str, kept_bytes: int) -> TableReader[pa.Table]:
    files = list_table_files(location, LOG_START_OFFSETS, LOG_START_OFFSETS.skipping_columns)
    return TableReader(files, LOG_START_OFFSETS, COLUMNS, lambda rows: (rows, 1_000), kept=KeptParts(kept_bytes))


def _offsets(reader: TableReader[pa.Table], partition: int) -> list[int]:
    near = {"topic": ("orders", "orders"), "partition": (partition, partition)}
    return [
        offset for _, rows in reader.iter_parts(near, "partition") for offset in rows["log_start_offset"].to_pylist()
    ]


def test_what_was_read_of_small_files_answers_while_they_are_closed(tmp_path: Path) -> None:
    reader = _reader(_write(tmp_path / "table"), 1 << 20)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert [_offsets(reader, partition) for partition in range(FILES)] == [[10 * at] for at in range(FILES)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert reader.counts.files == reader.counts.row_groups == FILES


def test_a_file_is_opened_once_for_its_greatest_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = _write(tmp_path / "table")
    opened = list[str]()

    def noted(location: str, path: str) -> AbstractContextManager[TableFile]:
        opened.append(path)
        return opened_parquet(location, path)

    monkeypatch.setattr(table_files, "opened_parquet", noted)
    paths = list_table_files(location, LOG_START_OFFSETS, ()).paths
    for _ in range(2):
        found = [
            table_files.greatest_in_file(location, path, LOG_START_OFFSETS, ("partition", "log_start_offset"))
            for path in paths
        ]
        assert sorted(tuple(each.values()) for each in found) == [(at, 10 * at) for at in range(FILES)]
    assert opened == [*paths]


def test_what_is_no_longer_kept_is_read_again(tmp_path: Path) -> None:
    location = _write(tmp_path / "table")
    reader = _reader(location, 2_000)
    for _ in range(2):
        assert [_offsets(reader, partition) for partition in range(FILES)] == [[10 * at] for at in range(FILES)]
    assert reader.counts.row_groups > FILES
    for file in Path(location).glob("*.parquet"):
        file.unlink()
    with pytest.raises(ColdlogError, match="missing"):
        _offsets(reader, 0)


def test_checked_bytes_are_read_in_the_thread_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = _write(tmp_path / "table")
    names = [file.name for file in Path(location).glob("*.parquet")]
    readers = set[int]()
    read = CheckedFile.read

    def watched(file: CheckedFile, size: int = -1) -> bytes:
        readers.add(threading.get_ident())
        return read(file, size)

    monkeypatch.setattr(CheckedFile, "read", watched)
    monkeypatch.setattr(parquet_files, "_READ_WHOLE_BYTES", 0)
    for name in names:
        write_checksums(f"{location}/{name}")
    rows = [row for name in names for row in read_file(location, name, COLUMNS).to_pylist()]
    assert sorted(row["log_start_offset"] for row in rows) == [10 * at for at in range(FILES)]
    assert _offsets(_reader(location, 1 << 20), 3) == [30]
    assert readers == {threading.get_ident()}
