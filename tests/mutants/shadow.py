"""Keep a second working tree in build/, in which one file of the library at a time is replaced by a mutant.

The files are hard links of the repository's; a mutant gets a file of its own, with a modification time that no earlier
one had, so that neither Python's nor numba's caches take it for another. Processes that tests start find the library of
the copy through PYTHONPATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SHADOW = REPOSITORY / "build" / "mutants"
_LINKED = (".venv", ".jars", ".tools")
_LEFT_OUT = frozenset({"spark-submit.sh"})
"""It would install the copy's library into the environment that both share."""


class ShadowTree:
    """A copy of the repository's tracked and untracked files that git does not ignore."""

    def __init__(self, root: Path = SHADOW / "tree") -> None:
        self.root = root
        self._changes = 0
        shutil.rmtree(root, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip
        for name in {*filter(None, listed.split("\0"))} - _LEFT_OUT:
            source, target = REPOSITORY / name, root / name
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(source, target, follow_symlinks=False)
        for name in _LINKED:
            if (REPOSITORY / name).exists():
                (root / name).symlink_to(REPOSITORY / name)

    @property
    def python_path(self) -> Sequence[str]:
        """What has to be in front of `sys.path` to import from the copy."""
        return [str(self.root / each) for each in ("lib", "tests/support", "tests", ".")]

    @contextmanager
    def holding(self, path: str, source: bytes) -> Iterator[None]:
        """While the block runs, the file has this content."""
        file = self.root / path
        self._changes += 1
        file.unlink()
        file.write_bytes(source)
        time_s = (REPOSITORY / path).stat().st_mtime + self._changes
        os.utime(file, (time_s, time_s))
        try:
            yield
        finally:
            file.unlink()
            os.link(REPOSITORY / path, file)
