"""damaged_tables: what do readers without Spark say of a warehouse in which one file is damaged?

The answers of the undamaged warehouse are the truth. A trial damages one file of a copy, asks again, and puts the file
back: the answers are the same, or a ColdlogError names the file.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from deltalake import DeltaTable

from coldlog.errors import ColdlogError
from coldlog.reader import OffsetReader
from coldlog.records.fetch.archive_tables import ArchiveTables, list_fetch_files
from coldlog.tables.delta.log_check import create_checkpoint

READ_TABLES = ("segments", "partition_metadata", "offset_index", "time_index", "txn_index", "quarantine")
Question = tuple[str, int, int]
Ask = Callable[[], object]


def copy_with_checkpoints(uri: str, folder: Path) -> Path:
    """Copy a warehouse; some of its tables get a checkpoint, as maintenance writes it, so that commits before it are
    not needed."""
    shutil.copytree(uri, folder)
    for name in READ_TABLES[::2]:
        create_checkpoint(DeltaTable(folder / name), str(folder / name))
    return folder


def list_damageable(warehouse: Path) -> list[Path]:
    """Every file of the tables that the readers open: data, commits, checkpoints, and the checksums beside them."""
    return sorted(each for name in READ_TABLES for each in (warehouse / name).rglob("*") if each.is_file())


def _flip(path: Path, content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _cut(path: Path, content: bytes, chance: random.Random) -> bytes:
    """Half of the cuts are between lines or sectors, where what is left looks whole."""
    ends = [at + 1 for at in range(len(content) - 1) if content[at : at + 1] == b"\n"]
    ends += range(512, len(content), 512)
    return content[: chance.choice(ends) if ends and chance.random() < 0.5 else chance.randrange(len(content))]


def _swap(path: Path, content: bytes, chance: random.Random) -> bytes:
    """The content of another file of the folder, such as an older commit."""
    others = [each for each in sorted(path.parent.glob(f"*{path.suffix}")) if each != path and each.is_file()]
    return chance.choice(others).read_bytes() if others else b""


DAMAGES: dict[str, Callable[[Path, bytes, random.Random], bytes | None]] = {
    "flipped": _flip,
    "cut": _cut,
    "emptied": lambda path, content, chance: b"",
    "removed": lambda path, content, chance: None,
    "swapped": _swap,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One file, damaged in one way, and what came of it: an answer, or the error."""

    path: Path
    damage: str
    answer: object = None
    error: BaseException | None = None

    def is_right(self, truth: object) -> bool:
        """The answer is the truth, or the error is coldlog's and names the file."""
        if self.error is None:
            return self.answer == truth
        return isinstance(self.error, ColdlogError) and names_file(str(self.error), self.path)

    def __str__(self) -> str:
        found = "a wrong answer" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return f"{self.path.parent.name}/{self.path.name} {self.damage}: {found[:300]}"


def names_file(text: str, path: Path) -> bool:
    """Whether a text names a file; for checksums, the file that they belong to."""
    return path.name in text or re.sub(r"^\.(.+)\.crc$", r"\1", path.name) in text


@contextmanager
def damaged(path: Path, damage: str, chance: random.Random) -> Iterator[None]:
    """One file is damaged meanwhile."""
    content = path.read_bytes()
    changed = DAMAGES[damage](path, content, chance)
    if changed is None:
        path.unlink()
    else:
        path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(content)


def iter_trials(warehouse: Path, ask: Ask, seed: int, count: int) -> Iterator[Trial]:
    """Damage a file, ask, put the file back; files and damages take turns, so that each kind is reached."""
    chance, files = random.Random(seed), [each for each in list_damageable(warehouse) if each.stat().st_size]
    names = sorted(DAMAGES)
    for number in range(count):
        path, damage = chance.choice(files), names[number % len(names)]
        with damaged(path, damage, chance):
            try:
                yield Trial(path=path, damage=damage, answer=ask())
            except BaseException as error:  # noqa: BLE001 - what may be raised is what is tested
                yield Trial(path=path, damage=damage, error=error)


def reader_answers(uri: str, questions: Sequence[Question]) -> list[dict[str, object]]:
    """All answers of a reader that is opened for them."""
    with OffsetReader(uri) as reader:
        return reader.list_offsets(questions)


def fetched_tables(uri: str, places: Sequence[tuple[str, int]]) -> str:
    """All that a fetcher knows from the tables of these partitions, as text."""
    tables = ArchiveTables(list_fetch_files(uri))
    try:
        known = []
        for place in places:
            archived = tables.partition(*place)
            assert archived is not None
            batches = [tables.batches(served) for served in archived.segments]
            known.append((archived, tables.aborted(archived), tables.find_quarantined(archived, 0, 1 << 62), batches))
        with np.printoptions(threshold=sys.maxsize):
            return str(known)
    finally:
        tables.close()
