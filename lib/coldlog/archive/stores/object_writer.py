"""Define how objects are written to an archive.

The writing counterpart of `object_store`, with the same names. A put is atomic: nobody lists or reads a part of an
object, even if the writer is killed. No layout treats the remains of a killed writer as a segment's file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coldlog.archive.stores.object_store import ObjectStore
from coldlog.errors import ArchiveError, Reason

_PIECE_BYTES = 4 << 20


class Content(Protocol):
    """The bytes of an object to write."""

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""

    def iter_pieces(self) -> Iterator[memoryview]:
        """All bytes in order, from the beginning at each call; an error here ends the put."""


class ObjectWriter(Protocol):
    """Write access to one archive.

    Errors: `RetriableError` if a later attempt may succeed (the failed attempt may have been carried out), `UsageError`
    if the store does not allow the write, and for a name that leads out of the archive.
    """

    @property
    def uri(self) -> str:
        """The root as the user wrote it; for messages."""

    def put(self, name: str, content: Content) -> None:
        """Write the object durably; an existing object with this name is replaced."""

    def delete(self, name: str) -> None:
        """Remove the object durably; a missing object is not an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """An upload of the object `name` that has begun and has not ended; its parts take space, and nobody sees them."""

    name: str
    upload_id: str
    begun_ms: int


@runtime_checkable
class UploadingStore(Protocol):
    """A store in which a killed writer may leave unfinished uploads. They are in no listing of objects."""

    def iter_uploads(self) -> Iterator[UnfinishedUpload]:
        """The unfinished uploads of the whole archive, also those in progress. Errors are those of a listing."""

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove what was uploaded; an upload that has ended meanwhile is not an error, and its object stays."""


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
    """The first `size_bytes` of an object in another store; LOG_SIZE_DIFFERS if that object is shorter now."""

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
                    "file was truncated while it was copied",
                    object_name=self.name,
                    position=position + len(piece),
                    expected=f"{self.size_bytes} bytes",
                    found=f"{position + len(piece)} bytes",
                )
            yield piece
