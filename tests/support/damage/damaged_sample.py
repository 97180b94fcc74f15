"""damaged_sample: the sample archive with one damage in each of many files, chosen by a seed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from worlds.kafka_sample import KAFKA_SAMPLE

LOG_SHARE, SIDE_FILE_SHARE = 0.24, 0.05
_LONGEST = 64


def write_damaged_sample(archive: Path, seed: int) -> list[Path]:
    """Write the archive; return the damaged files. Every damage changes the bytes."""
    shutil.copytree(KAFKA_SAMPLE / "archive", archive)
    chance = random.Random(seed)
    files = sorted(path for path in archive.rglob("*") if path.is_file() and path.stat().st_size)
    shares = {True: LOG_SHARE, False: SIDE_FILE_SHARE}
    damaged = [path for path in files if chance.random() < shares[path.suffix == ".log"]]
    for path in damaged:
        whole = path.read_bytes()
        changed = whole
        while changed == whole:
            changed = chance.choice(_DAMAGES)(whole, chance)
        path.write_bytes(changed)
    return damaged


def _flip(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def _zero(content: bytes, chance: random.Random) -> bytes:
    first, last = _range(content, chance)
    return content[:first] + bytes(last - first) + content[last:]


def _double(content: bytes, chance: random.Random) -> bytes:
    first, last = _range(content, chance)
    return content[:last] + content[first:]


def _range(content: bytes, chance: random.Random) -> tuple[int, int]:
    first = chance.randrange(len(content))
    return first, min(len(content), first + 1 + chance.randrange(_LONGEST))


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip, _cut, _zero, _double)
