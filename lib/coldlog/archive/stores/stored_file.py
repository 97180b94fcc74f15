"""Keep an object that is a file of this machine open, so that its bytes can be sent without a copy.

A file that is replaced under its name stays as it was for who has opened it. It is closed when nothing refers to it any
more: an answer that is not sent, or a thread that hangs in a read, must not keep it open.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

MOST_OPEN = 256
"""So many descriptors should be open at a time: many systems allow a process 1,024."""
_PROBED_BYTES = 256 * 1024
_PROBE = [bytearray(1)]
_SETTLED_NS = 10_000_000_000
"""A file that was changed less than 10 s ago may be changed again with the same time of change."""


class OwnedDescriptor:
    """A descriptor that is closed when nothing refers to it."""

    __slots__ = ("number",)
    open_count: ClassVar[int] = 0
    """How many of them this process has open."""
    _turn: ClassVar[threading.RLock] = threading.RLock()
    """May be taken again, because a collection of garbage may begin wherever it is held."""

    def __init__(self, number: int) -> None:
        self.number = number
        with self._turn:
            OwnedDescriptor.open_count += 1

    def __del__(self) -> None:
        os.close(self.number)
        with self._turn:
            OwnedDescriptor.open_count -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """Which file it is and when it was changed: as long as they are the same, so are the bytes."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int

    @property
    def is_settled(self) -> bool:
        """Whether a change from now on would show."""
        return time.time_ns() - self.changed_ns > _SETTLED_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """An open file. `state` is that of its opening."""

    descriptor: OwnedDescriptor
    state: FileState

    def announce(self, position: int, size_bytes: int) -> None:
        """Let the system begin to read what is needed soon."""
        if sys.platform == "linux":
            os.posix_fadvise(self.descriptor.number, position, size_bytes, os.POSIX_FADV_WILLNEED)

    def is_in_memory(self, position: int, size_bytes: int) -> bool:
        """Whether the system surely has these bytes in memory, so that who sends them does not wait for the store. One
        byte of each `_PROBED_BYTES` is asked for, as the system reads and frees more than one page at a time."""
        return all(
            self._is_byte_in_memory(at)
            for at in (*range(position, position + size_bytes, _PROBED_BYTES), position + size_bytes - 1)
        )

    def tells_what_is_in_memory(self) -> bool:
        """Whether the file system says of bytes that they are not in memory; network file systems do not."""
        return self._is_byte_in_memory(0, otherwise=True)

    def _is_byte_in_memory(self, position: int, *, otherwise: bool = False) -> bool:
        """Return `otherwise` if it is not in memory, and False if that cannot be known."""
        if sys.platform != "linux":
            return False
        try:
            return os.preadv(self.descriptor.number, _PROBE, position, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return otherwise
        except OSError:
            return False  # The file system, or an old kernel, cannot say it.

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from `position` on, and return how many bytes there were. Raise `OSError` as the system
        does."""
        filled = 0
        while filled < len(buffer):
            count = os.preadv(self.descriptor.number, [buffer[filled:]], position + filled)
            if count == 0:
                break
            filled += count
        return filled
