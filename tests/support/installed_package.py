"""Build coldlog's wheel, install it into an environment of its own, and run its command far from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import environment

SAMPLE = environment.REPOSITORY / "tests" / "golden" / "kafka-sample" / "archive"
_UV = [sys.executable, "-m", "uv"]
_FOREIGN = ("PYTHON", "COLDLOG", "SPARK", "VIRTUAL_ENV", "NUMBA", "MASTER")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that has the package."""

    python: Path
    home: Path
    """The user's home, empty at first."""

    def run(self, *arguments: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `coldlog`, as a user who has no checkout."""
        return self._start([str(self.python.with_name("coldlog")), *arguments], check=check, **variables)

    def run_python(self, program: str) -> str:
        """Run a program of Python; return what it prints."""
        return self._start([str(self.python), "-c", program], check=True).stdout

    def installed_bytes(self) -> int:
        """What the packages take."""
        root = self.python.parents[1] / "lib"
        return sum(file.lstat().st_size for file in root.rglob("*") if file.is_file())

    def _start(self, command: Sequence[str], *, check: bool, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
        ran = subprocess.run(
            command,
            cwd=self.home,
            env={**kept, "HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache"), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=540,
        )
        assert not check or ran.returncode == 0, f"{command}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran


def build_package(folder: Path) -> Path:
    """Build the wheel into the folder as `make wheel` does."""
    subprocess.run(["make", "--silent", "wheel", f"DIST={folder}"], cwd=environment.REPOSITORY, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, extras: Sequence[str], version: str, folder: Path, *, is_oldest: bool) -> Installed:
    """Install the wheel into an empty environment: the versions of constraints.txt, or the oldest that it accepts."""
    python = folder / "environment" / "bin" / "python"
    (folder / "home").mkdir()
    make = ["venv", "--quiet", "--no-python-downloads", "--python", version, str(folder / "environment")]
    which = ["--resolution", "lowest-direct"] if is_oldest else ["--constraints", str(environment.CONSTRAINTS)]
    wanted = f"coldlog[{','.join(extras)}] @ {wheel.as_uri()}"
    fill = ["pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *which, wanted]
    for arguments in (make, fill):
        subprocess.run([*_UV, *arguments], env=environment.uv_environment(), cwd=folder, check=True)
    return Installed(python=python, home=folder / "home")


def run_pipeline(installed: Installed, warehouse: Path) -> None:
    """Index the sample with the installed package; its jars are those of the checkout."""
    settings = (f"archive.uri={SAMPLE}", f"warehouse.uri={warehouse}", "driver.jvm=small")
    chosen = [argument for each in settings for argument in ("--set", each)]
    installed.run("setup", "--from", str(environment.JARS))
    installed.run("run", *chosen)
