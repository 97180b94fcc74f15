"""local_writer: how is a file put into an archive so that it is whole or not there?

Written under another name in the same directory, `<name>.<8 hexadecimal digits>.tmp`, synchronized to the disk,
renamed, and the directory synchronized: behind that the file survives a loss of power. A writer that is killed leaves
at most a `.tmp`, which no layout takes for a segment's file.

Directories are made below the root alone. A root that is gone, a disk that is not mounted any more, is a
`RetriableError`.
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
        """The directory is there behind this."""
        with _told(self.uri):
            make_directories(self.root)

    def require_root(self) -> None:
        """`RetriableError` where the directory is gone: what is put then would lie below a mount point."""
        if not os.path.isdir(self.root):
            raise RetriableError(
                f"the archive at {self.uri} is not there: {self.root} is no directory; is it mounted? if the archive "
                "is to begin anew, make that directory"
            )

    def put(self, name: str, content: Content) -> None:
        """Two synchronizations: the file, its directory."""
        require_object_name(name)
        self.require_root()
        path = os.path.join(self.root, name)
        with _told(name):
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
        """One synchronization, of the directory."""
        require_object_name(name)
        path = os.path.join(self.root, name)
        with _told(name):
            try:
                os.unlink(path)
            except FileNotFoundError:
                self.require_root()
                return
            sync_directory(os.path.dirname(path))


def make_directories(path: str) -> None:
    """The directory and those above it, each synchronized into its parent."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directories(parent)
    # Another thread may have been faster.
    with suppress(FileExistsError):
        os.mkdir(path)
    sync_directory(parent)


def sync_directory(path: str) -> None:
    """The names in it survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: memoryview) -> None:
    """Every byte, or an OSError."""
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
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise _error_for(failure, name) from failure


def _error_for(failure: OSError, name: str) -> ColdlogError:
    shown = printable_name(name)
    if failure.errno in _REFUSED:
        return UsageError(f"{shown} cannot be written to the archive: {failure.strerror}; correct archive.uri")
    return RetriableError(f"writing {shown} failed: {failure.strerror}; it may succeed when tried again")
