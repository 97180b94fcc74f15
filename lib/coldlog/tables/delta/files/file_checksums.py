"""Check the files of a table in a folder against the checksums that are stored beside them.

Hadoop writes a hidden file `.<name>.crc` beside each file that Spark writes into a folder, and Spark checks what it
reads. coldlog writes the same for its own files, and its readers check each byte before it is parsed. The layout is:

    magic             4 bytes    "crc" and 0
    bytes_per_chunk   int32      512
    checksums         int32 each CRC-32 of each chunk of the file; the last chunk may be shorter

All numbers are big-endian. A file without checksums is not checked: other writers, and earlier releases, write none. A
difference raises `ColdlogError`. It cannot be told whether the file or its checksums are damaged.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass, field

from coldlog.errors import ColdlogError

_HEADER = struct.Struct(">4si")
_MAGIC = b"crc\0"
_CHUNK_BYTES = 512
_PIECE_CHUNKS = 1 << 13
RESTORE = "restore it from a copy, or run rebuild_tables, which makes the tables anew from the archive"


def damaged(path: str, why: str) -> ColdlogError:
    """Make the error for a damaged file of a table."""
    return ColdlogError(f"{path} is damaged: {why}; {RESTORE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChecksums:
    """The checksums of the file at `path`; `file_bytes` is the size of the file now."""

    path: str
    file_bytes: int
    chunk_bytes: int
    checksums: tuple[int, ...]

    def check(self, content: memoryview, position: int) -> None:
        """Raise `ColdlogError` unless whole chunks, read from `position`, are as they were written."""
        first, step = position // self.chunk_bytes, self.chunk_bytes
        found = tuple(zlib.crc32(content[at : at + step]) for at in range(0, len(content), step))
        if found != self.checksums[first : first + len(found)]:
            raise damaged(self.path, f"it differs from {checksums_path(self.path)}")


def checksums_path(path: str) -> str:
    """Return the path of the file with the checksums of a file."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.crc")


def find_checksums(path: str) -> FileChecksums | None:
    """Read the checksums of a file; None if there are none. They must cover the file as it is, else `ColdlogError`."""
    try:
        stored = _read_file(checksums_path(path))
    except FileNotFoundError:
        return None
    file_bytes = os.stat(path).st_size
    count, rest = divmod(len(stored) - _HEADER.size, 4)
    magic, chunk_bytes = _HEADER.unpack_from(stored) if count >= 0 else (b"", 0)
    if magic != _MAGIC or chunk_bytes <= 0 or rest or count != -(-file_bytes // chunk_bytes):
        raise damaged(path, f"its size of {file_bytes} bytes does not fit {checksums_path(path)}")
    return FileChecksums(
        path=path,
        file_bytes=file_bytes,
        chunk_bytes=chunk_bytes,
        checksums=struct.unpack_from(f">{count}I", stored, _HEADER.size),
    )


def write_checksums(path: str) -> None:
    """Write the checksums of a file as it is now; others see all of them or none."""
    complete = checksums_path(path)
    incomplete = f"{complete}.tmp"
    try:
        with open(path, "rb") as file, open(incomplete, "wb") as stored:
            stored.write(_HEADER.pack(_MAGIC, _CHUNK_BYTES))
            while piece := memoryview(file.read(_PIECE_CHUNKS * _CHUNK_BYTES)):
                found = [zlib.crc32(piece[at : at + _CHUNK_BYTES]) for at in range(0, len(piece), _CHUNK_BYTES)]
                stored.write(struct.pack(f">{len(found)}I", *found))
            stored.flush()
            # Empty checksums, as a loss of power leaves them, would make the file a damaged one.
            os.fsync(stored.fileno())
        os.replace(incomplete, complete)
    except OSError:
        with suppress(OSError):
            os.unlink(incomplete)
        raise


def check_file(path: str) -> None:
    """Check a whole file; `ColdlogError` if it is damaged."""
    checksums = find_checksums(path)
    if checksums is not None:
        read_checked(checksums)


def read_checked(checksums: FileChecksums) -> bytes:
    """Read and check a whole file; `ColdlogError` if it is damaged."""
    content = _read_file(checksums.path)
    if len(content) != checksums.file_bytes:
        raise damaged(checksums.path, f"its size changed from {checksums.file_bytes} to {len(content)} bytes")
    checksums.check(memoryview(content), 0)
    return content


@dataclass(slots=True)
class CheckedFile:
    """A file, opened for reading, that returns only bytes that are as they were written."""

    checksums: FileChecksums
    closed: bool = field(default=False, init=False)
    _descriptor: int = field(init=False)
    _position: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._descriptor = os.open(self.checksums.path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, size: int = -1) -> bytes:
        """Read and check the chunks that hold the next `size` bytes, and return these bytes."""
        known, begin = self.checksums, self._position
        end = known.file_bytes if size < 0 else min(begin + size, known.file_bytes)
        if end <= begin:
            return b""
        start = begin // known.chunk_bytes * known.chunk_bytes
        stop = min(-(-end // known.chunk_bytes) * known.chunk_bytes, known.file_bytes)
        content = _read_range(self._descriptor, start, stop)
        if len(content) < stop - start:
            raise damaged(known.path, f"it was cut to {start + len(content)} bytes")
        known.check(memoryview(content), start)
        self._position = end
        return content[begin - start : end - start]

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.checksums.file_bytes}[whence]
        self._position = origin + position
        return self._position

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)


def _read_file(path: str) -> bytes:
    """Read a whole file; `open` makes more calls of the system, which count where a log has many small files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_range(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _read_range(descriptor: int, start: int, stop: int) -> bytes:
    """Read a range; one call of the system returns at most 2 GB."""
    pieces = []
    while start < stop and (piece := os.pread(descriptor, stop - start, start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
