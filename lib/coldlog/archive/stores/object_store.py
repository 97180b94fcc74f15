"""object_store: how are an archive's objects listed and read?

The port that every store implements (local files, S3, memory). Names are `/`-separated keys relative to the
store's root, whatever the file system calls them. Reads are ranged so that an object of any size is read in bounded
memory; nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, Self


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ObjectInfo:
    """One listed object: its name, its size in bytes and when it was last modified (epoch ms).

    `may_be_directory`: a link that cannot be followed now, perhaps to a disk that is away.
    """

    name: str
    size_bytes: int
    modified_ms: int
    may_be_directory: bool = False


class ObjectStore(Protocol):
    """Read access to one archive.

    Errors: `ArchiveError(OBJECT_MISSING)` for a name that is not there, `ArchiveError(OBJECT_UNREADABLE)` for one that
    is there and may not be read, `RetriableError` where the store may answer later (an I/O error, a time-out),
    `UsageError` for a name that leads out of the archive and for a root that does not exist or may not be read.
    """

    @property
    def uri(self) -> str:
        """The root as the user wrote it; for messages."""

    def list_directories(self, prefix: str) -> list[str]:
        """Names directly below `prefix` that hold further names, sorted, without a trailing `/`; `""` is the root. A
        store that knows empty directories lists them too. None for a prefix that is not there."""

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose directory is `prefix` (not deeper), sorted by name, lazily."""

    def size_bytes(self, name: str) -> int:
        """The object's size now."""

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """The bytes from `position` on, `length` at most (fewer only at the object's end); read-only, and valid for as
        long as it is held, whatever becomes of the object. Who walks through a part of the object says `until` where,
        so that a store that reads ahead reads no further."""


class RootedStore(ObjectStore, Protocol):
    """A store that a uri names: what it takes to find an archive in it."""

    @property
    def root(self) -> str:
        """The path or key prefix of the root, without a trailing `/`."""

    def iter_directories(self, prefix: str) -> Iterator[str]:
        """Those of `list_directories`, in no order, lazily."""

    def has_directory(self, name: str) -> bool:
        """Something lies below the name, or it is an empty directory."""

    def below(self, directory: str) -> Self:
        """The store whose root is that directory of this one, under the same uri."""
