"""Define how an archive's objects are listed and read.

The port that every store implements (local files, S3, memory). Names are keys relative to the store's root, separated
by `/` on every file system. Reads are ranged, so that an object of any size is read in bounded memory. Nothing here
writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

from coldlog.archive.stores.stored_file import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ObjectInfo:
    """One listed object: name, size in bytes and time of the last modification (epoch ms).

    `may_be_directory`: a dangling link, perhaps to a directory on an unmounted disk.
    """

    name: str
    size_bytes: int
    modified_ms: int
    may_be_directory: bool = False


Level = tuple[list[str], list[ObjectInfo]]
"""What is directly in a directory: the names of directories, and the objects beside them."""


class ObjectStore(Protocol):
    """Read access to one archive.

    Errors: `ArchiveError(OBJECT_MISSING)` for a missing object, `ArchiveError(OBJECT_UNREADABLE)` for an object that
    exists and cannot be read, `RetriableError` if the store may answer later (an I/O error, a time-out), `UsageError`
    for a name that leads out of the archive and for a root that does not exist or cannot be read.
    """

    @property
    def uri(self) -> str:
        """The root as the user wrote it; for messages."""

    def list_directories(self, prefix: str) -> list[str]:
        """Directories directly below `prefix`, sorted, without a trailing `/`; `""` is the root. A store that knows
        empty directories lists them too. An empty list for a missing prefix."""

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object directly in the directory `prefix`, sorted by name, lazily."""

    def list_level(self, prefix: str, beginnings: Collection[str] | None = None) -> Level:
        """What `list_directories` and `iter_objects` return, with one listing. With `beginnings`, only entries whose
        names in the directory begin with one of these; none of them begins another. A bucket lists no others."""

    def size_bytes(self, name: str) -> int:
        """The object's current size."""

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """At most `length` bytes from `position` on (fewer only at the object's end). The view is read-only and stays
        valid if the object changes. A caller that reads a part of the object in sequence gives its end as `until`, so
        that a store does not read ahead beyond it."""

    def open_file(self, name: str) -> StoredFile | None:
        """The object as an open file of this machine; None if it is none. Errors are those of `read_range`."""


class RootedStore(ObjectStore, Protocol):
    """A store opened by a uri, with what is needed to find an archive in it."""

    @property
    def root(self) -> str:
        """The path or key prefix of the root, without a trailing `/`."""

    def iter_directories(self, prefix: str) -> Iterator[str]:
        """The names of `list_directories`, in any order, lazily."""

    def has_directory(self, name: str) -> bool:
        """The directory has entries, or it is an empty directory."""

    def below(self, directory: str) -> Self:
        """The store with this directory as its root, with the same uri."""
