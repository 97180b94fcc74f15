"""Build coldlog's wheel, install it into an environment of its own, and run its command far from the checkout."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import environment
import pytest
from packaging.requirements import Requirement

SAMPLE = environment.REPOSITORY / "tests" / "golden" / "kafka-sample" / "archive"
_UV = [sys.executable, "-m", "uv"]
_FOREIGN = ("PYTHON", "COLDLOG", "SPARK", "VIRTUAL_ENV", "NUMBA", "MASTER")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that has the package."""

    python: Path
    home: Path
    """The user's home, empty at first."""
    is_oldest: bool
    """Whether it has the oldest versions that coldlog accepts."""

    def run(self, *arguments: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `coldlog`, as a user who has no checkout."""
        return self._start([str(self.python.with_name("coldlog")), *arguments], check=check, **variables)

    def run_spark_submit(self, *arguments: str) -> str:
        """Run Spark's own spark-submit, in the active environment; return what it prints."""
        program = self.python.with_name("spark-submit")
        path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
        return self._start([str(program), *arguments], check=True, PATH=path).stdout

    def run_python(self, program: str, **variables: str) -> str:
        """Run a program of Python; return what it prints."""
        return self._start([str(self.python), "-c", program], check=True, **variables).stdout

    def installed_bytes(self) -> int:
        """The size of the packages, without bytecode, which uv does not install by default."""
        root = self.python.parents[1] / "lib"
        return sum(file.lstat().st_size for file in root.rglob("*") if file.is_file() and file.suffix != ".pyc")

    def version(self, package: str) -> str:
        """The version that is installed."""
        return self.run_python(f"from importlib.metadata import version; print(version({package!r}))").strip()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What `coldlog demo` left behind and printed."""

    folder: Path
    printed: str


def build_package(folder: Path) -> Path:
    """Build the wheel into the folder as `make wheel` does."""
    subprocess.run(["make", "--silent", "wheel", f"DIST={folder}"], cwd=environment.REPOSITORY, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, extras: Sequence[str], version: str, folder: Path, *, is_oldest: bool) -> Installed:
    """Install the wheel into an empty environment: the versions of constraints.txt, or the oldest that it accepts."""
    python = folder / "environment" / "bin" / "python"
    (folder / "home").mkdir()
    make = ["venv", "--quiet", "--no-python-downloads", "--python", _find_python(version), str(folder / "environment")]
    constraints = _write_oldest_versions(folder / "oldest.txt") if is_oldest else environment.CONSTRAINTS
    wanted = f"coldlog[{','.join(extras)}] @ {wheel.as_uri()}"
    options = ["--quiet", "--python", str(python), "--constraints", str(constraints)]
    fill = ["pip", "install", *options, wanted]
    for arguments in (make, fill):
        subprocess.run([*_UV, *arguments], env=environment.uv_environment(), cwd=folder, check=True)
    return Installed(python=python, home=folder / "home", is_oldest=is_oldest)


def _find_python(version: str) -> str:
    """Find an interpreter in PATH or among those of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates = [shutil.which(f"python{version}"), *root.glob(f"versions/{version}.*/bin/python")]
    for candidate in map(str, filter(None, candidates)):
        # A shim of pyenv is in PATH for versions that are not chosen, and fails.
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.fail(f"Python {version} was not found in PATH or {root}: install it, or choose others: PYTHONS=3.11")


def list_ranges() -> list[Requirement]:
    """List what setup.cfg requires of other packages, with all extras of users."""
    config = configparser.ConfigParser(comment_prefixes=("#", "    #"))
    config.read(environment.REPOSITORY / "setup.cfg")
    extras = config["options.extras_require"]
    of_users = [extras[name] for name in extras if name not in ("all", "test", "lint", "docs", "install")]
    lines = "\n".join([config["options"]["install_requires"], *of_users]).splitlines()
    return [each for each in map(Requirement, filter(None, lines)) if each.name != "coldlog"]


def _write_oldest_versions(path: Path) -> Path:
    bounds = [(each.name, part) for each in list_ranges() for part in each.specifier]
    path.write_text("".join(f"{name}=={bound.version}\n" for name, bound in bounds if bound.operator != "<"))
    return path
