"""Answer from memory only, for a caller that must not wait for a store: the event loop of `coldlog serve`.

In the block of `without_waiting`, what would read a table or a log raises `WouldWaitError`. The caller asks again in a
thread.

Linux opens a file without waiting since 5.12 (openat2 with RESOLVE_CACHED). Since 6.5 cachestat reports whether its
bytes are in memory, if the user owns the file or may write it. Otherwise they are read, without waiting for what is
missing (preadv with RWF_NOWAIT). On another system, or in a container that forbids openat2, all must wait.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_here = threading.local()
"""`is_in_hurry`: this thread must not wait."""
_OPENAT2, _CACHESTAT = 437, 451
"""Numbers of system calls, of x86, ARM, POWER, RISC-V and IBM Z. Elsewhere the system does not know them."""
_HERE_FD, _RESOLVE_CACHED = -100, 0x20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_COPIED_BYTES = 256 * 1024
_CANNOT_TELL = frozenset(
    {errno.EAGAIN, errno.EINTR, errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.E2BIG}
)
_call = ctypes.CDLL(None, use_errno=True).syscall if sys.platform == "linux" else None


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("in_writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


class WouldWaitError(Exception):
    """A store must be asked, and this thread must not wait for it."""


@contextmanager
def without_waiting() -> Iterator[None]:
    """Let nothing in the block wait for a store in this thread."""
    _here.is_in_hurry = True
    try:
        yield
    finally:
        _here.is_in_hurry = False


def may_wait() -> bool:
    """Whether this thread may wait for a store."""
    return not getattr(_here, "is_in_hurry", False)


def check_may_wait() -> None:
    """Raise `WouldWaitError` if this thread must not wait."""
    if not may_wait():
        raise WouldWaitError


def open_known(path: str, flags: int) -> int:
    """Open a file whose directories and inode are in memory. Raise `WouldWaitError` if they are not, else `OSError` as
    `os.open` does."""
    how = _How(flags=flags | os.O_CLOEXEC, mode=0, resolve=_RESOLVE_CACHED)
    if _call is None:
        raise WouldWaitError
    number = int(_call(_OPENAT2, _HERE_FD, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
    if number < 0:
        failed = ctypes.get_errno()
        if failed in _CANNOT_TELL:
            raise WouldWaitError
        raise OSError(failed, os.strerror(failed))
    return number


def are_in_memory(descriptor: int, position: int, size_bytes: int) -> bool:
    """Whether the system has all of these bytes of an open file in memory, and gives them at once. It is False for a
    file system of a network, or of a program: these may ask somebody first."""
    if _call is None:
        return False
    begin = position - position % _PAGE_BYTES
    asked, pages = _Range(offset=begin, length=position + size_bytes - begin), _Pages()
    if _call(_CACHESTAT, descriptor, ctypes.byref(asked), ctypes.byref(pages), 0):
        return _are_read_at_once(descriptor, position, size_bytes)
    are_cached = int(pages.cached) >= -(-int(asked.length) // _PAGE_BYTES)
    return are_cached and _are_read_at_once(descriptor, position, 1)


def waits_for_a_disk_only(descriptor: int, position: int) -> bool:
    """Whether an open file is on a file system of this machine. Such a file system gives what it has in memory at once.
    One of a network, or of a program, does not promise that."""
    return _read_at_once(descriptor, [bytearray(1)], position) is not None


def _are_read_at_once(descriptor: int, position: int, size_bytes: int) -> bool:
    """Whether these bytes can be read without waiting."""
    buffer, end = memoryview(bytearray(min(size_bytes, _COPIED_BYTES))), position + size_bytes
    while position < end:
        count = _read_at_once(descriptor, [buffer[: end - position]], position)
        if not count:
            return False
        position += count
    return True


def _read_at_once(descriptor: int, buffers: list[bytearray] | list[memoryview], position: int) -> int | None:
    """Read what is in memory, and return its size. None: the file system cannot say what is."""
    if sys.platform != "linux":
        return None
    try:
        return os.preadv(descriptor, buffers, position, os.RWF_NOWAIT)
    except BlockingIOError:
        return 0
    except OSError:
        return None
