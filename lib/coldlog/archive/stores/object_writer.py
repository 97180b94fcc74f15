"""object_writer: how are objects put into an archive?

The port beside `object_store`, which reads. Names are the same relative keys. A put is whole or it did not happen:
nobody ever lists or reads a part of an object, wherever the writer is killed. What it leaves behind then is nothing
that a layout takes for a segment's file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from coldlog.archive.stores.object_store import ObjectStore
from coldlog.errors import ArchiveError, Reason

_PIECE_BYTES = 4 << 20


class Content(Protocol):
    """Bytes to be put."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""

    def iter_pieces(self) -> Iterator[memoryview]:
        """All of them in order, from the beginning each time it is called; what it raises ends the put."""


class ObjectWriter(Protocol):
    """Write access to one archive.

    Errors: `RetriableError` where the store may do it later, `UsageError` where it does not allow it, and for a name
    that leads out of the archive. Whether what raised a `RetriableError` was done is not known.
    """

    @property
    def uri(self) -> str:
        """The root as the user wrote it; for messages."""

    def put(self, name: str, content: Content) -> None:
        """The object is there, and stays, when this returns; one of that name is replaced."""

    def delete(self, name: str) -> None:
        """The object is gone when this returns, whether it was there or not."""


class WritableStore(ObjectStore, ObjectWriter, Protocol):
    """Both ports over one archive."""


@dataclass(frozen=True, slots=True)
class BytesContent:
    """Bytes in memory."""

    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def iter_pieces(self) -> Iterator[memoryview]:
        yield memoryview(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredContent:
    """The first `size_bytes` of an object elsewhere; an object that is shorter by now is LOG_SIZE_DIFFERS."""

    store: ObjectStore
    name: str
    size_bytes: int
    piece_bytes: int = _PIECE_BYTES

    def iter_pieces(self) -> Iterator[memoryview]:
        for position in range(0, self.size_bytes, self.piece_bytes):
            wanted = min(self.piece_bytes, self.size_bytes - position)
            piece = self.store.read_range(self.name, position, wanted)
            if len(piece) < wanted:
                raise ArchiveError(
                    Reason.LOG_SIZE_DIFFERS,
                    "file became shorter while it was copied",
                    object_name=self.name,
                    position=position + len(piece),
                    expected=f"{self.size_bytes} bytes",
                    found=f"{position + len(piece)} bytes",
                )
            yield piece
