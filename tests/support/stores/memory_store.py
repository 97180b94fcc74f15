"""Keep an archive in memory and record its reads.

`reads` lists every requested range, in order. Results and errors are
those of the local store. A directory exists if an object's name contains it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from coldlog.archive.stores.object_names import require_object_name, require_prefix, require_range
from coldlog.archive.stores.object_store import Level, ObjectInfo
from coldlog.archive.stores.object_writer import Content
from coldlog.archive.stores.stored_file import StoredFile
from coldlog.errors import ArchiveError, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """One call of `read_range`."""

    name: str
    position: int
    length: int


class MemoryStore:
    """A WritableStore over a copy of `objects` (name to content), all last modified at `modified_ms`."""

    def __init__(self, objects: Mapping[str, bytes], *, modified_ms: int = 0, uri: str = "memory:") -> None:
        for name in objects:
            require_object_name(name)
        self.objects = dict(objects)
        self.modified_ms = modified_ms
        self.reads: list[ReadRange] = []
        self._uri = uri

    @property
    def uri(self) -> str:
        """The root as the user wrote it; for messages."""
        return self._uri

    def list_directories(self, prefix: str) -> list[str]:
        """Directories directly below `prefix`."""
        start = _start_of(prefix)
        rests = (name[len(start) :] for name in self.objects if name.startswith(start))
        return sorted({start + rest.partition("/")[0] for rest in rests if "/" in rest})

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object directly below `prefix`."""
        start = _start_of(prefix)
        for name in sorted(self.objects):
            if name.startswith(start) and "/" not in name[len(start) :]:
                yield ObjectInfo(name=name, size_bytes=len(self.objects[name]), modified_ms=self.modified_ms)

    def list_level(self, prefix: str, beginnings: Collection[str] | None = None) -> Level:
        """Directories and objects directly below `prefix`, or those of them whose names begin so."""
        starts = tuple(_start_of(prefix) + each for each in ([""] if beginnings is None else beginnings))
        directories = [name for name in self.list_directories(prefix) if name.startswith(starts)]
        return directories, [info for info in self.iter_objects(prefix) if info.name.startswith(starts)]

    def size_bytes(self, name: str) -> int:
        """The object's size."""
        return len(self._content(name))

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """A view of the content; the call is recorded in `reads`."""
        require_range(position, length)
        content = self._content(name)
        self.reads.append(ReadRange(name=name, position=position, length=length))
        return memoryview(content)[position : position + length]

    def open_file(self, _: str) -> StoredFile | None:
        """There are no files."""
        return None

    def put(self, name: str, content: Content) -> None:
        """Store the object after all of its pieces were read."""
        require_object_name(name)
        self.objects[name] = b"".join(content.iter_pieces())

    def delete(self, name: str) -> None:
        """Remove the object if it exists."""
        require_object_name(name)
        self.objects.pop(name, None)

    def _content(self, name: str) -> bytes:
        require_object_name(name)
        if name not in self.objects:
            raise ArchiveError(Reason.OBJECT_MISSING, "the archive has no such object", object_name=name)
        return self.objects[name]


def _start_of(prefix: str) -> str:
    require_prefix(prefix)
    return f"{prefix}/" if prefix else ""
