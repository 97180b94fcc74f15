"""Import coldlog from a copy of this checkout to which something was added.

So a test can follow CONTRIBUTING.md to the letter: write one file, add one line to one list, and use the result. Within
the block every import of coldlog, and of docs/reference.py, finds the copy. After it the modules of the checkout are
back; what was imported before the block never changes.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
_COPIED = ("lib/coldlog", "jobs", "conf", "docs")
_PACKAGES = {"coldlog", "docs"}


@contextmanager
def changed_library(
    directory: Path, *, files: Mapping[str, str] | None = None, lines: Sequence[tuple[str, str, str]] = ()
) -> Iterator[Path]:
    """Copy the checkout to `directory`, with new `files` and `lines`, and yield the copy. A line has the name of its
    file, a line of that file, and the text to insert after that line."""
    for name in _COPIED:
        shutil.copytree(REPOSITORY / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (files or {}).items():
        assert not (directory / name).exists(), f"{name} is not new"
        (directory / name).write_text(text, encoding="utf-8")
    for name, line, text in lines:
        before = (directory / name).read_text(encoding="utf-8")
        assert before.count(f"\n{line}\n") == 1, f"{name} must have this line once: {line}"
        (directory / name).write_text(before.replace(f"\n{line}\n", f"\n{line}\n{text}\n"), encoding="utf-8")
    kept = _take_modules()
    sys.path[:0] = [str(directory / "lib"), str(directory)]
    importlib.invalidate_caches()
    try:
        yield directory
    finally:
        del sys.path[:2]
        _take_modules()
        sys.modules.update(kept)


def _take_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]
    return {name: sys.modules.pop(name) for name in names}
