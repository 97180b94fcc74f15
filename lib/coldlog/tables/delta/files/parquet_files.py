"""Read the Parquet files of a table in this thread.

Arrow's threads for input (`pre_buffer`, on by default since pyarrow 26) may keep an object of Python for a moment after
a read has returned. If Python ends meanwhile, the process is aborted: one in 100. So they are not used here, and what
they are for is done here: the columns of a read are requested from a bucket together, neighbours with one request.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from pyarrow import fs

from coldlog.archive.stores.s3_environment import shared_s3_file_system
from coldlog.tables.delta.files.file_checksums import CheckedFile, damaged, find_checksums, read_checked
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder
from coldlog.tables.delta.table_storage import storage_error

_FOOTER_END = struct.Struct("<i4s")
_PARQUET = b"PAR1"
_MOST_BETWEEN = 8 << 10
"""So many unwanted bytes between two columns are read, rather than requesting the columns one by one."""
_READ_WHOLE_BYTES = 64 << 10
"""A checked file of so many bytes is read at once: Arrow asks for each column by itself, often a few hundred bytes."""
Opener = Callable[[str], pa.NativeFile]


class PublishedFile(NamedTuple):
    """What a manifest holds of a file: its size, the size and the CRC-32C of its footer with the last 8 bytes, and the
    CRC-32C of its entry in the log (`TableFiles.actions`)."""

    size_bytes: int
    footer_bytes: int
    footer_crc32c: int
    action_crc32c: int


class FetchedFile:
    """A file of s3fs; ranges that were fetched are read from memory."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._fetched: list[tuple[int, bytes]] = []

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Request these ranges, each from its start up to its end, instead of those that were fetched before."""
        self._fetched = []
        if not ranges:
            return
        path, (starts, ends) = self._file.path, zip(*ranges, strict=True)
        contents = self._file.fs.cat_ranges([path] * len(ranges), starts, ends, on_error="raise")
        self._fetched = list(zip(starts, contents, strict=True))

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        for start, content in self._fetched:
            if start <= at and size >= 0 and at + size <= start + len(content):
                self._file.seek(at + size)
                return content[at - start : at - start + size]
        found: bytes = self._file.read(size)
        return found

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(position, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._fetched = []
        self._file.close()


class _BucketFile(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """An open file of a bucket."""

    def __init__(self, fetched: FetchedFile, mode: str) -> None:
        self.fetched = fetched


class TableFile:
    """An open Parquet file of a table; `metadata` is its footer. It is used by one thread at a time.

    `footer` is given if it was read before. Errors are those of Arrow and of the store.
    """

    def __init__(self, file: pa.NativeFile, footer: bytes | None = None) -> None:
        self._file = file
        self._parquet = pq.ParquetFile(
            file,
            metadata=self._parsed(footer),
            pre_buffer=False,
            page_checksum_verification=True,
        )
        self.metadata: pq.FileMetaData = self._parquet.metadata

    def read(self, groups: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Read row groups, all of them if None; without the columns that the file does not have."""
        wanted = range(self.metadata.num_row_groups) if groups is None else groups
        fetched = self._file.fetched if isinstance(self._file, _BucketFile) else None
        if fetched is not None:
            fetched.fetch(_ranges_of(self.metadata, wanted, columns))
        names = None if columns is None else list(columns)
        try:
            return self._parquet.read_row_groups(list(wanted), columns=names, use_threads=False)
        finally:
            if fetched is not None:
                fetched.fetch(())

    def _parsed(self, footer: bytes | None) -> pq.FileMetaData | None:
        """Parse a footer that would be requested again. In a folder it is cheaper to let Arrow read it from the file:
        this makes a whole reader of Parquet for it."""
        if footer is None or not isinstance(self._file, _BucketFile):
            return None
        # Arrow searches the footer from the end, so the rest of the file is not needed.
        return pq.read_metadata(pa.BufferReader(footer))

    def close(self) -> None:
        """Close the file."""
        self._parquet.close(force=True)
        self._file.close()


def _ranges_of(
    metadata: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str] | None
) -> list[tuple[int, int]]:
    """Return where the columns of these row groups are in the file, neighbours together."""
    chunks = [metadata.row_group(group).column(number) for group in groups for number in range(metadata.num_columns)]
    places = sorted(
        (
            start := chunk.data_page_offset if (first := chunk.dictionary_page_offset) is None else first,
            start + chunk.total_compressed_size,
        )
        for chunk in chunks
        if columns is None or chunk.path_in_schema.partition(".")[0] in columns
    )
    ranges: list[tuple[int, int]] = []
    for start, end in places:
        if ranges and start - ranges[-1][1] <= _MOST_BETWEEN:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return ranges


def file_opener(location: str) -> Opener:
    """Return a function that opens a file below the location for reading. For one process: see
    `create_s3_file_system`."""
    place = bucket_and_prefix(location)
    if place is not None:
        files = shared_s3_file_system()
        prefix = "/".join(part for part in place if part)
        # Parquet's reader requests exactly what it needs; with its cache, s3fs would read tens of megabytes more.
        return lambda path: _BucketFile(FetchedFile(files.open(f"{prefix}/{path}", "rb", cache_type="none")), "r")
    folder = local_folder(location)
    if folder is None:
        other, root = fs.FileSystem.from_uri(location)
        return lambda path: other.open_input_file(f"{root}/{path}")
    return lambda path: _open_local(f"{folder}/{path}")


@contextmanager
def opening(location: str, path: str) -> Iterator[None]:
    """Raise coldlog's errors for a file below the location that cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowException) as failed:
        raise storage_error(failed, location, path) from None


def read_footer(opened: Opener, location: str, path: str, action_crc32c: int) -> PublishedFile:
    """Read what a manifest holds of a file below the location; `action_crc32c` is passed on."""
    with opening(location, path), opened(path) as file:
        size = file.size()
        end = _read_end(file, size, _FOOTER_END.size)
        length, magic = _FOOTER_END.unpack(end) if len(end) == _FOOTER_END.size else (0, b"")
        if magic != _PARQUET or not 0 < length <= size - _FOOTER_END.size:
            raise damaged(f"{location}/{path}", "it does not end as a Parquet file")
        footer = _read_end(file, size, length + _FOOTER_END.size)
    return PublishedFile(size, len(footer), crc32c(footer), action_crc32c)


def check_footer(file: pa.NativeFile, place: str, published: PublishedFile) -> bytes:
    """Return the footer of an opened file, which must be the published one, else `ColdlogError`."""
    size = file.size()
    if size != published.size_bytes:
        raise damaged(place, f"it has {size} bytes instead of {published.size_bytes}")
    footer = _read_end(file, size, published.footer_bytes)
    if crc32c(footer) != published.footer_crc32c:
        raise damaged(place, "its footer differs from the one that was published")
    return footer


def _read_end(file: pa.NativeFile, size: int, count: int) -> bytes:
    file.seek(max(0, size - count))
    content: bytes = file.read(count)
    return content


def read_rows(
    location: str, path: str, columns: Sequence[str], published: PublishedFile | None = None
) -> list[dict[str, object]]:
    """Read all rows of a small file below the location, after its footer was checked if it was `published`."""
    rows: list[dict[str, object]] = read_file(location, path, columns, published).to_pylist()
    return rows


def read_file(location: str, path: str, columns: Sequence[str], published: PublishedFile | None = None) -> pa.Table:
    """As `read_rows`, as Arrow; without the columns that the file does not have."""
    with opened_parquet(location, path, published) as file:
        return file.read(columns=columns)


@contextmanager
def opened_parquet(location: str, path: str, published: PublishedFile | None = None) -> Iterator[TableFile]:
    """Open a file below the location, after its footer was checked if it was `published`."""
    with file_opener(location)(path) as file:
        footer = None if published is None else check_footer(file, f"{location}/{path}", published)
        yield TableFile(file, footer)


def _open_local(path: str) -> pa.NativeFile:
    checksums = find_checksums(path)
    if checksums is None:
        return fs.LocalFileSystem().open_input_file(path)
    if checksums.file_bytes <= _READ_WHOLE_BYTES:
        return pa.BufferReader(read_checked(checksums))
    return pa.PythonFile(CheckedFile(checksums), mode="r")
