"""Note which objects the tasks of a run open, and which bytes of them they read.

A store of local files. Each read or listing adds a line to a file that all processes share.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.object_store import Level, ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class NotingStore(LocalStore):
    """A LocalStore; `notes` is the file."""

    notes: str

    def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
        """As a LocalStore's; noted with the bytes that came."""
        # Not super(): a dataclass with slots is another class than the one that its methods were written in.
        content = LocalStore.read_range(self, name, position, length, until)
        self._note(name, position, len(content))
        return content

    def list_directories(self, prefix: str) -> list[str]:
        """As a LocalStore's; noted as a listing."""
        self._note(prefix)
        return LocalStore.list_directories(self, prefix)

    def list_level(self, prefix: str, beginnings: Collection[str] | None = None) -> Level:
        """As a LocalStore's; noted as a listing, or as one for each beginning."""
        for each in [""] if beginnings is None else beginnings:
            self._note(f"{prefix}/{each}")
        return LocalStore.list_level(self, prefix, beginnings)

    def iter_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """As a LocalStore's; noted as a listing."""
        self._note(prefix)
        return LocalStore.iter_objects(self, prefix)

    def _note(self, *facts: object) -> None:
        line = json.dumps(facts) + "\n"
        descriptor = os.open(self.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())  # one write of some bytes: lines of other processes do not mix with it
        finally:
            os.close(descriptor)


def count_requests(notes: Path) -> tuple[int, int]:
    """The number of reads and of listings since the notes were taken last."""
    lines = [json.loads(line) for line in notes.read_text(encoding="utf-8").splitlines()] if notes.exists() else []
    listings = sum(len(line) == 1 for line in lines)
    return len(lines) - listings, listings


def take_notes(notes: Path) -> dict[str, set[int]]:
    """The positions that were read of each object since the notes were taken last."""
    read: dict[str, set[int]] = {}
    for line in notes.read_text(encoding="utf-8").splitlines() if notes.exists() else ():
        name, *place = json.loads(line)
        if not place:
            continue
        position, length = place
        read.setdefault(name, set()).update(range(position, position + length))
    notes.unlink(missing_ok=True)
    return read
