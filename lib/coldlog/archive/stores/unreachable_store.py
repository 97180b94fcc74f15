"""unreachable_store: what if an archive cannot even be opened now?

A WritableStore that answers everything with the error that its opening met, so that whoever works on many partitions
can say so of each of them, and try again later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coldlog.archive.stores.object_store import ObjectInfo
from coldlog.archive.stores.object_writer import Content
from coldlog.errors import RetriableError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreachableStore:
    """A WritableStore at `uri`."""

    uri: str
    why: str

    def list_directories(self, prefix: str) -> list[str]:
        """Raises."""
        raise self._error(prefix)

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Raises."""
        raise self._error(prefix)

    def size_bytes(self, name: str) -> int:
        """Raises."""
        raise self._error(name)

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """Raises."""
        raise self._error(name)

    def put(self, name: str, content: Content) -> None:
        """Raises."""
        raise self._error(name)

    def delete(self, name: str) -> None:
        """Raises."""
        raise self._error(name)

    def _error(self, _: str) -> RetriableError:
        return RetriableError(self.why)
