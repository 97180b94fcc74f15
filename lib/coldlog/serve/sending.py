"""Send an answer to a socket, with parts of files that the kernel sends without a copy.

A file that is not in memory, or whose store hangs, holds up who sends it: then this runs in a thread. The socket has a
descriptor of its own here: if the connection ends meanwhile, its number must not be that of another one.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from coldlog.archive.stores.stored_file import MOST_OPEN, OwnedDescriptor
from coldlog.errors import RetriableError
from coldlog.records.fetch.stored_slices import StoredRange
from coldlog.serve.answer_writer import Piece

_OF_FILES = frozenset({errno.EIO, errno.ESTALE})
_PROBED_BYTES = 1 << 20
_MOST_AT_ONCE = 4 << 20
"""What the event loop sends of one answer before it looks at other connections."""


class Sending:
    """One answer, and the socket at `number`, which does not block."""

    def __init__(self, number: int) -> None:
        self._socket = OwnedDescriptor(os.dup(number))
        self._pieces: deque[Piece] = deque()
        self._sent_bytes = 0
        """Of the first piece that is left."""
        self.size_bytes = 0
        """Of the whole answer; 0: it is not sent here."""

    @property
    def descriptor(self) -> int:
        """That of the socket here."""
        return self._socket.number

    @property
    def has_ended(self) -> bool:
        """Whether the system has everything."""
        return not self._pieces

    def begin(self, pieces: Iterable[Piece]) -> None:
        """Begin to send these."""
        self._pieces.extend(pieces)
        self.size_bytes = sum(map(len, self._pieces))
        self.send()

    def send(self) -> None:
        """Send as much as the system takes now. Raise `ConnectionError` if the client has gone, `RetriableError` if a
        file cannot be read any more: then the answer cannot be ended."""
        while self._pieces:
            piece = self._pieces[0]
            try:
                self._count(piece, self._send_some(piece, len(piece) - self._sent_bytes))
            except BlockingIOError:
                return

    def send_from_memory(self) -> bool:
        """Send as much as the system takes now, up to `_MOST_AT_ONCE`; return False before a part of a file that is not
        in memory. Raise as `send` does."""
        left = _MOST_AT_ONCE
        while self._pieces and left > 0:
            piece, sent_bytes = self._pieces[0], self._sent_bytes
            size_bytes = min(_PROBED_BYTES, len(piece) - sent_bytes)
            if isinstance(piece, StoredRange) and not piece.part(sent_bytes, size_bytes).is_in_memory:
                return False
            try:
                sent = self._send_some(piece, size_bytes)
            except BlockingIOError:
                break
            left -= sent
            self._count(piece, sent)
        return True

    def _count(self, piece: Piece, sent: int) -> None:
        self._sent_bytes += sent
        if self._sent_bytes == len(piece):
            self._pieces.popleft()
            self._sent_bytes = 0

    def _send_some(self, piece: Piece, size_bytes: int) -> int:
        if not isinstance(piece, StoredRange):
            return os.write(self._socket.number, memoryview(piece)[self._sent_bytes :][:size_bytes])
        position = piece.position + self._sent_bytes
        with _errors_of_files():
            sent = os.sendfile(self._socket.number, piece.file.descriptor.number, position, size_bytes)
        if sent == 0:
            raise _was_cut()
        return sent


def read_part(piece: StoredRange) -> memoryview:
    """Read bytes of a file, to be sent as a copy. Raise `RetriableError` if they cannot be read any more."""
    content = memoryview(bytearray(len(piece)))
    with _errors_of_files():
        count = piece.file.read_into(content, piece.position)
    if count < len(content):
        raise _was_cut()
    return content


@contextmanager
def _errors_of_files() -> Iterator[None]:
    try:
        yield
    except OSError as failed:
        if failed.errno in _OF_FILES:
            raise RetriableError(f"a log cannot be read while it is sent: {failed.strerror}") from failed
        raise


def _was_cut() -> RetriableError:
    return RetriableError("a log was cut while it was sent")


class Outlet:
    """Where a thread may send the answer to a request of one connection. `number` returns that of its socket; None: an
    answer must not be sent past the connection.

    Use it in the event loop's thread, which knows whether the number is still that of the socket."""

    def __init__(self, number: Callable[[], int] | None = None) -> None:
        self._number = number
        self._opened: Sending | None = None

    def open(self) -> Sending | None:
        """Return what may send the next answer; None if nothing may, or if many descriptors are open."""
        if self._number is not None and OwnedDescriptor.open_count < MOST_OPEN:
            self._opened = Sending(self._number())
        return self._opened

    def close_unused(self) -> None:
        """Send the next answer in the usual way, unless it is being sent."""
        if self._opened is not None and not self._opened.size_bytes:
            self._opened = None

    def take(self) -> Sending | None:
        """Return the answer that is being sent, once; None if there is none."""
        opened, self._opened = self._opened, None
        return opened
