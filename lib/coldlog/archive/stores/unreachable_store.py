"""Stand in for an archive that cannot be opened now.

Every call raises the error of the failed opening. So a job that works on many partitions can report the error for each
of them, and try again later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from coldlog.archive.stores.object_store import Level, ObjectInfo
from coldlog.archive.stores.object_writer import Content
from coldlog.archive.stores.stored_file import StoredFile
from coldlog.errors import RetriableError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreachableStore:
    """A WritableStore at `uri` that cannot be reached; `why` is the error."""

    uri: str
    why: str

    def list_directories(self, prefix: str) -> list[str]:
        """Raise the error."""
        raise self._error(prefix)

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Raise the error."""
        raise self._error(prefix)

    def list_level(self, prefix: str, beginnings: Collection[str] | None = None) -> Level:
        """Raise the error."""
        raise self._error(prefix)

    def size_bytes(self, name: str) -> int:
        """Raise the error."""
        raise self._error(name)

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """Raise the error."""
        raise self._error(name)

    def open_file(self, name: str) -> StoredFile | None:
        """Raise the error."""
        raise self._error(name)

    def put(self, name: str, content: Content) -> None:
        """Raise the error."""
        raise self._error(name)

    def delete(self, name: str) -> None:
        """Raise the error."""
        raise self._error(name)

    def _error(self, _: str) -> RetriableError:
        return RetriableError(self.why)
