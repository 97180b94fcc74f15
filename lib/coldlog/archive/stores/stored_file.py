"""Keep an object that is a file of this machine open, so that its bytes can be sent without a copy.

If a file is replaced, a reader that has it open still reads the old content. It is closed when nothing refers to it any
more: an answer that is not sent, or a thread that hangs in a read, must not keep it open.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import ClassVar

from coldlog.archive.stores.without_waiting import are_in_memory, waits_for_a_disk_only

MOST_OPEN = 256
"""So many descriptors should be open at a time: many systems allow a process 1,024."""
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
        """Whether the system has these bytes in memory, and gives them at once."""
        return are_in_memory(self.descriptor.number, position, size_bytes)

    def waits_for_a_disk_only(self, position: int) -> bool:
        """Whether the file is on a file system of this machine: a read of it never waits for a network."""
        return waits_for_a_disk_only(self.descriptor.number, position)

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
