"""Read an archive in a directory of this machine, or of a file system that every worker mounts at the same path.

Reads use `preadv` into a new buffer, not a memory map. If the file of a map is truncated, or its disk or mount fails,
the reading process is killed (SIGBUS); a read returns fewer bytes or an errno instead. With a map, one bad file would
kill a Spark worker, and again at each retry. With windows of some MiB a read costs little, because the buffer stays in
the processor's cache for the next step. MB/s with crc32c over a cached GiB, two runs on a shared machine
(benchmarks/local_store_reads.py):

    window     memory map            preadv
     1 MiB     6,600 and 10,200      10,500 and 14,900
     4 MiB     6,900 and 17,100      11,200 and 15,000
    32 MiB     6,900 and 14,500       5,300 and  4,500    (the buffer no longer fits the cache)

The whole kernel at batch depth, which has an extra cost for each window: 10,000 at 4 MiB, 10,600 at 8, 5,200 at 16.

From a disk, announcing a large sequential read to the kernel gives 2,600 MB/s instead of 600 to 1,600.

Links are followed to any target, because an operator may put partitions on several disks. A loop of links does no harm,
because each listing has one level. A dangling link is listed with its own size: reading it reports that the object is
missing, and listing it as a directory is an error, not an empty directory, because a disk may be unmounted. Only
regular files are read: opening a pipe would block forever.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from coldlog.archive.stores.object_names import printable_name, require_object_name, require_prefix, require_range
from coldlog.archive.stores.object_store import Level, ObjectInfo
from coldlog.archive.stores.stored_file import FileState, OwnedDescriptor, StoredFile
from coldlog.archive.stores.without_waiting import may_wait, open_known
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError, UsageError

# Readahead helps a sequential read of a log, not a read of one batch.
_ANNOUNCED_LENGTH = 1024 * 1024
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LINK_OR_DIRECTORY = (stat.S_IFLNK, stat.S_IFDIR)
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_UNREADABLE = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStore:
    """An ObjectStore over the directory `root`; `uri` is the root as the user wrote it."""

    root: str
    uri: str

    def list_directories(self, prefix: str) -> list[str]:
        """Directories directly below `prefix`, including empty ones and links to directories."""
        return [_join(prefix, entry.name) for entry in self._scan(prefix) if _is_directory(entry)]

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every entry directly below `prefix` that is not known to be a directory."""
        for entry in self._scan(prefix):
            if not _is_directory(entry):
                status = self._find_status(entry, prefix)
                if status is not None:
                    yield _object_info(_join(prefix, entry.name), status)

    def list_level(self, prefix: str, beginnings: Collection[str] | None = None) -> Level:
        """Scan the directory once. Only entries whose names begin so are asked for their size."""
        directories, objects = [], []
        for entry in self._scan(prefix, beginnings):
            if _is_directory(entry):
                directories.append(_join(prefix, entry.name))
            elif (status := self._find_status(entry, prefix)) is not None:
                objects.append(_object_info(_join(prefix, entry.name), status))
        return directories, objects

    def size_bytes(self, name: str) -> int:
        """The file's current size."""
        require_object_name(name)
        try:
            return os.stat(self._path(name)).st_size
        except OSError as failure:
            raise self._error_for(failure, name) from failure

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """A copy of the bytes; fewer bytes if the file was truncated meanwhile."""
        require_object_name(name)
        require_range(position, length)
        try:
            descriptor = os.open(self._path(name), _OPEN)
            try:
                return _read_from(descriptor, name, position, length)
            finally:
                os.close(descriptor)
        except OSError as failure:
            raise self._error_for(failure, name) from failure

    def open_file(self, name: str) -> StoredFile | None:
        """The file, whatever its size. A thread that must not wait gets it only if its inode is in memory
        (`without_waiting`)."""
        require_object_name(name)
        try:
            path = self._path(name)
            descriptor = OwnedDescriptor(os.open(path, _OPEN) if may_wait() else open_known(path, _OPEN))
            return StoredFile(descriptor=descriptor, state=_state_of(_regular(descriptor.number, name)))
        except OSError as failure:
            raise self._error_for(failure, name) from failure

    def iter_directories(self, prefix: str) -> Iterator[str]:
        """List the directory once."""
        yield from self.list_directories(prefix)

    def has_directory(self, name: str) -> bool:
        """The directory can be reached; it may be empty."""
        require_object_name(name)
        return os.path.isdir(self._path(name))

    def below(self, directory: str) -> Self:
        """The store of a directory in this store."""
        require_object_name(directory)
        return replace(self, root=self._path(directory))

    def _path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def _scan(self, prefix: str, beginnings: Collection[str] | None = None) -> list[os.DirEntry[str]]:
        require_prefix(prefix)
        try:
            with os.scandir(self._path(prefix)) as entries:
                if beginnings is None:
                    return sorted(entries, key=lambda entry: entry.name)
                wanted = tuple(beginnings)
                return sorted((each for each in entries if each.name.startswith(wanted)), key=lambda entry: entry.name)
        except OSError as failure:
            is_missing = failure.errno in _MISSING and os.path.isdir(self.root)
            if prefix and is_missing and not self._is_below_dangling_link(prefix):
                return []
            raise self._error_for(failure, prefix) from failure

    def _is_below_dangling_link(self, name: str) -> bool:
        parts = name.split("/")
        above = (self._path("/".join(parts[:count])) for count in range(1, len(parts) + 1))
        return any(os.path.islink(path) and not os.path.exists(path) for path in above)

    def _find_status(self, entry: os.DirEntry[str], prefix: str) -> os.stat_result | None:
        """The status of the entry's target, or of the link itself if it is dangling; None if the entry was removed."""
        try:
            return entry.stat()
        except OSError as failure:
            if entry.is_symlink():
                return entry.stat(follow_symlinks=False)
            if failure.errno == errno.ENOENT:
                return None
            raise self._error_for(failure, _join(prefix, entry.name)) from failure

    def _error_for(self, failure: OSError, name: str) -> ColdlogError:
        # Without its mount every object looks missing: raise one error for the archive, not one for each segment.
        if failure.errno in _MISSING and not os.path.isdir(self.root):
            return UsageError(f"no archive at {self.uri}: {self.root} is not a directory that can be reached")
        if not name and failure.errno in _UNREADABLE:
            return UsageError(f"the archive at {self.uri} cannot be listed: {failure.strerror}")
        return error_for_object(failure, name or self.uri)


def error_for_object(failure: OSError, name: str) -> ColdlogError:
    """The error for a failed system call on one object: missing, unreadable, or retriable."""
    shown = printable_name(name)
    if failure.errno in _MISSING:
        return ArchiveError(Reason.OBJECT_MISSING, "the archive has no such object", object_name=shown)
    if failure.errno in _UNREADABLE:
        expected = "a file that this user may read" if failure.errno in _FORBIDDEN else ""
        return ArchiveError(
            Reason.OBJECT_UNREADABLE,
            "object cannot be read",
            object_name=shown,
            expected=expected,
            found=failure.strerror or f"errno {failure.errno}",
        )
    return RetriableError(f"reading {shown} failed: {failure.strerror}; try again")


def _regular(descriptor: int, name: str) -> os.stat_result:
    """The status of an open file, which must be a regular one."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        message, found = "object is not a regular file", stat.filemode(status.st_mode)
        raise ArchiveError(Reason.OBJECT_UNREADABLE, message, object_name=printable_name(name), found=found)
    return status


def _state_of(status: os.stat_result) -> FileState:
    return FileState(
        device=status.st_dev, inode=status.st_ino, size_bytes=status.st_size, changed_ns=status.st_ctime_ns
    )


def _read_from(descriptor: int, name: str, position: int, length: int) -> memoryview:
    status = _regular(descriptor, name)
    if length >= _ANNOUNCED_LENGTH and sys.platform == "linux":
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    # numpy requests huge pages for large buffers and does not fill them with zeros first.
    window = np.empty(max(0, min(length, status.st_size - position)), dtype=np.uint8).data
    filled = 0
    while filled < len(window):
        count = os.preadv(descriptor, [window[filled:]], position + filled)
        if count == 0:
            break
        filled += count
    return window[:filled].toreadonly()


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _object_info(name: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        name=name,
        size_bytes=status.st_size,
        modified_ms=status.st_mtime_ns // 1_000_000,
        # A directory here is a link whose target was missing a moment ago.
        may_be_directory=stat.S_IFMT(status.st_mode) in _LINK_OR_DIRECTORY,
    )


def _join(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name
