"""Write files to an archive in a directory atomically.

A file is written under another name in the same directory, `<name>.<8 hexadecimal digits>.tmp`, synchronized to the
disk and renamed, and then the directory is synchronized. After that the file survives a loss of power. A killed writer
leaves at most a `.tmp` file, which no layout treats as a segment's file.

Directories are created only below the root. If the root is missing, its disk may be unmounted: `RetriableError`.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.object_names import printable_name, require_object_name
from coldlog.archive.stores.object_writer import Content
from coldlog.errors import ColdlogError, RetriableError, UsageError

_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWriter(LocalStore):
    """A WritableStore over a directory."""

    def make_root(self) -> None:
        """Create the root directory if it is missing."""
        with _system_errors(self.uri):
            make_directories(self.root)

    def require_root(self) -> None:
        """`RetriableError` if the root is missing: a put would write to the disk of the mount point."""
        if not os.path.isdir(self.root):
            raise RetriableError(
                f"the archive at {self.uri} is missing: {self.root} is not a directory; mount its disk, or create the "
                "directory to start a new archive"
            )

    def put(self, name: str, content: Content) -> None:
        """Write the object atomically; synchronizes the file and its directory."""
        require_object_name(name)
        self.require_root()
        path = os.path.join(self.root, name)
        with _system_errors(name):
            make_directories(os.path.dirname(path))
            temporary = f"{path}.{secrets.token_hex(4)}.tmp"
            try:
                _write(temporary, content)
                os.rename(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            sync_directory(os.path.dirname(path))

    def delete(self, name: str) -> None:
        """Remove the object and synchronize its directory."""
        require_object_name(name)
        path = os.path.join(self.root, name)
        with _system_errors(name):
            try:
                os.unlink(path)
            except FileNotFoundError:
                self.require_root()
                return
            sync_directory(os.path.dirname(path))


def make_directories(path: str) -> None:
    """Create the directory and the missing ones above it, and synchronize each parent."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directories(parent)
    # Another thread may create the directory at the same time.
    with suppress(FileExistsError):
        os.mkdir(path)
    sync_directory(parent)


def sync_directory(path: str) -> None:
    """Synchronize a directory, so that the names in it survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: memoryview) -> None:
    """Write every byte, or raise an OSError."""
    while len(content):
        content = content[os.write(descriptor, content) :]


def _write(path: str, content: Content) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        for piece in content.iter_pieces():
            write_all(descriptor, piece)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _system_errors(name: str) -> Iterator[None]:
    """Raise coldlog's errors for failed system calls."""
    try:
        yield
    except OSError as failure:
        raise _error_for(failure, name) from failure


def _error_for(failure: OSError, name: str) -> ColdlogError:
    shown = printable_name(name)
    if failure.errno in _REFUSED:
        return UsageError(f"{shown} cannot be written to the archive: {failure.strerror}; correct archive.uri")
    return RetriableError(f"writing {shown} failed: {failure.strerror}; try again")
