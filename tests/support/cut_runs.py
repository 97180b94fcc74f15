"""cut_runs: what does a run leave that is killed behind its n-th write to a table?"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldlog.tables.delta.warehouse import Warehouse


@contextmanager
def copies_behind_each_write(location: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While it lasts, each write to the warehouse at `location` is followed by a copy of all of it, named n."""
    numbers = itertools.count()

    def copy() -> None:
        shutil.copytree(location, copies / str(next(numbers)))

    def wrapped(name: str) -> Callable[..., object]:
        original = getattr(Warehouse, name)

        def write(self: Warehouse, *arguments: object, **named: object) -> object:
            result = original(self, *arguments, **named)
            copy()
            return result

        return write

    with monkeypatch.context() as patch:
        for name in ("create_missing", "append", "add_files", "merge", "delete_matching"):
            patch.setattr(Warehouse, name, wrapped(name))
        yield


def copies_in_order(copies: Path) -> list[Path]:
    """Of the first write first."""
    return sorted(copies.iterdir(), key=lambda path: int(path.name))
