"""Copy a warehouse after each write to it, as a run that is killed there leaves it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.warehouse import Warehouse


@contextmanager
def copies_behind_each_write(location: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Copy the whole warehouse at `location` after each write in this context.

    The name of a copy has its number, the method of `Warehouse` and the table that was written.
    """
    numbers = itertools.count()

    def copy(method: str, written: tuple[object, ...]) -> None:
        table = next((each.name for each in written if isinstance(each, TableDefinition)), "all")
        shutil.copytree(location, copies / f"{next(numbers)}.{method}.{table}")

    def wrapped(name: str) -> Callable[..., object]:
        original = getattr(Warehouse, name)

        def write(self: Warehouse, *arguments: object, **named: object) -> object:
            result = original(self, *arguments, **named)
            copy(name, arguments)
            return result

        return write

    with monkeypatch.context() as patch:
        for name in ("create_missing", "append", "add_files", "merge", "delete_matching"):
            patch.setattr(Warehouse, name, wrapped(name))
        yield


def copies_in_order(copies: Path) -> list[Path]:
    """All copies in the order of writes."""
    return sorted(copies.iterdir(), key=lambda path: int(path.name.partition(".")[0]))


def copies_behind(copies: Path, method: str, table: TableDefinition) -> list[Path]:
    """The copies after writes of this method to this table, in order."""
    return [path for path in copies_in_order(copies) if path.name.partition(".")[2] == f"{method}.{table.name}"]
