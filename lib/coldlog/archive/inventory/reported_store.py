"""List an archive from an S3 Inventory report, and read its objects from the bucket.

An ObjectStore whose listings are those that `S3Store` gave when the report was made. Reads go to the bucket, so an
object that was deleted since is missing, and one that was replaced has another size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from coldlog.archive.inventory.reported_objects import ReportedObjects
from coldlog.archive.stores.object_names import is_object_name, require_prefix
from coldlog.archive.stores.object_store import Level, ObjectInfo, ObjectStore
from coldlog.archive.stores.stored_file import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStore:
    """An ObjectStore over `store`; `objects` are those below its root."""

    store: ObjectStore
    objects: ReportedObjects

    @property
    def uri(self) -> str:
        """As `store`."""
        return self.store.uri

    def list_directories(self, prefix: str) -> list[str]:
        """The report's directories directly below `prefix`."""
        return [name for name in self._children(prefix) if is_object_name(name)]

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """The report's objects directly below `prefix`, and one object for each part that cannot be a name."""
        directory = _directory(prefix)
        found = [
            replace(listed, name=f"{directory}{listed.name}")
            for listed in self.objects.list_objects(directory)
            if listed.name or listed.size_bytes
        ]
        unnamed = (f"{name}/" for name in self._children(prefix) if not is_object_name(name))
        found += [ObjectInfo(name=name, size_bytes=0, modified_ms=0) for name in unnamed]
        yield from sorted(found)

    def list_level(self, prefix: str, beginnings: Collection[str] | None = None) -> Level:
        """Directories and objects directly below `prefix`, or those of them whose names begin so."""
        starts = tuple(_directory(prefix) + each for each in ([""] if beginnings is None else beginnings))
        directories = [name for name in self.list_directories(prefix) if name.startswith(starts)]
        return directories, [info for info in self.iter_objects(prefix) if info.name.startswith(starts)]

    def size_bytes(self, name: str) -> int:
        """As `store`."""
        return self.store.size_bytes(name)

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """As `store`."""
        return self.store.read_range(name, position, length, until)

    def open_file(self, name: str) -> StoredFile | None:
        """As `store`."""
        return self.store.open_file(name)

    def has_reported(self, directory: str) -> bool:
        """Whether the report has an object below the directory."""
        return self.objects.has_directory(_directory(directory))

    def part(self, directories: Iterable[str]) -> ReportedStore:
        """The store with these directories of the report only, for another process."""
        return replace(self, objects=self.objects.part(map(_directory, directories)))

    def _children(self, prefix: str) -> list[str]:
        directory = _directory(prefix)
        return [f"{directory}{name}" for name in self.objects.list_children(directory)]


def _directory(prefix: str) -> str:
    require_prefix(prefix)
    return f"{prefix}/" if prefix else ""
