"""local_store_reads: what does it cost to read a log by `read_range` rather than through a memory map?

    PYTHONPATH=lib python benchmarks/local_store_reads.py [FILE]

Prints MB/s of crc32c over FILE (by default a new temporary GiB), in windows of three sizes, each way.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable

from crc32c import crc32c

from coldlog.archive.stores.local_store import LocalStore

MIB = 1024 * 1024
WINDOWS_MIB = (1, 4, 32)
ReadWindow = Callable[[str, int, int], memoryview]


def main(arguments: list[str]) -> int:
    if arguments:
        compare(os.path.abspath(arguments[0]))
        return 0
    with tempfile.NamedTemporaryFile() as file:
        block = os.urandom(16 * MIB)
        for _ in range(64):
            file.write(block)
        file.flush()
        compare(file.name)
    return 0


def compare(path: str) -> None:
    store = LocalStore(root=os.path.dirname(path), uri=path)
    name = os.path.basename(path)
    for window_mib in WINDOWS_MIB:
        mapped = speed_mb_per_s(path, window_mib * MIB, read_mapped)
        read = speed_mb_per_s(path, window_mib * MIB, lambda _, at, length: store.read_range(name, at, length))
        print(f"window {window_mib:3} MiB: memory map {mapped:7,.0f} MB/s, read_range {read:7,.0f} MB/s")


def read_mapped(path: str, position: int, length: int) -> memoryview:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=position))
    finally:
        os.close(descriptor)


def speed_mb_per_s(path: str, window_bytes: int, read_window: ReadWindow) -> float:
    size_bytes = os.path.getsize(path)
    began = time.perf_counter()
    for position in range(0, size_bytes, window_bytes):
        crc32c(read_window(path, position, min(window_bytes, size_bytes - position)))
    return size_bytes / (time.perf_counter() - began) / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
