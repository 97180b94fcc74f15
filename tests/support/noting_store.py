"""noting_store: which objects do the tasks of a run open, and which bytes of them do they read?

A store of local files, whose reads leave a line each in a file that all processes append to. Tasks import it by its
name, so that a test sends this file to them (`SparkContext.addPyFile`).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from coldlog.archive.stores.local_store import LocalStore


@dataclass(frozen=True, slots=True, kw_only=True)
class NotingStore(LocalStore):
    """A LocalStore; `notes` is the file."""

    notes: str

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """As a LocalStore's; noted with the bytes that came."""
        # Not super(): a dataclass with slots is another class than the one that its methods were written in.
        content = LocalStore.read_range(self, name, position, length, until)
        line = json.dumps([name, position, len(content)]) + "\n"
        descriptor = os.open(self.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())  # one write of some bytes: lines of other processes do not mix with it
        finally:
            os.close(descriptor)
        return content


def take_notes(notes: Path) -> dict[str, set[int]]:
    """The positions that were read of each object since the notes were taken last."""
    read: dict[str, set[int]] = {}
    for line in notes.read_text(encoding="utf-8").splitlines() if notes.exists() else ():
        name, position, length = json.loads(line)
        read.setdefault(name, set()).update(range(position, position + length))
    notes.unlink(missing_ok=True)
    return read
