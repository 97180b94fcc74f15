"""Find a folder whose file system tells what is in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldlog.archive.stores.without_waiting import (
    WouldWaitError,
    are_in_memory,
    open_known,
    waits_for_a_disk_only,
)

_ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def telling_folder() -> Iterator[Path | None]:
    """Make such a folder, and remove it. None: this machine has no such place. A memory disk and many containers have
    none."""
    for place in (tempfile.gettempdir(), "/var/tmp", str(_ROOT)):
        with tempfile.TemporaryDirectory(prefix="telling-", dir=place) as name:
            folder = Path(name)
            if _tells(folder / "probe"):
                yield folder
                return
    yield None


def forget(log: Path) -> None:
    """Have the system read the file from its disk the next time."""
    with log.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _tells(probe: Path) -> bool:
    probe.write_bytes(b"1")
    with probe.open("rb") as file, suppress(WouldWaitError):
        os.close(open_known(str(probe), os.O_RDONLY))
        return waits_for_a_disk_only(file.fileno(), 0) and are_in_memory(file.fileno(), 0, 1)
    return False
