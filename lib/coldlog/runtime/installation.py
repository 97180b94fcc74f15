"""Find the files that belong to the library: settings, expectations, jobs, jars and a sample archive.

In a checkout they are in its folders. An installed package has its own copies (`setup.py` puts them into the wheel). It
keeps what it downloads or packs in the user's cache: `COLDLOG_CACHE`, else `coldlog` in XDG_CACHE_HOME or ~/.cache.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tempfile
from pathlib import Path

_MARKS = ("conf/base.toml", "lib/coldlog/__init__.py")
"""A folder that has these files is a checkout."""


def find_checkout(package: Path) -> Path | None:
    """Return the checkout around the folder `coldlog`, None if the library is installed.

    If Spark's own spark-submit starts the driver, this is the package for executors, which is inside the
    checkout too.
    """
    if (package / "conf").exists():
        return None
    return next((each for each in package.parents if all((each / mark).is_file() for mark in _MARKS)), None)


def _find_package() -> Path:
    """The folder `coldlog` of the library that is installed, also if this module is in the package for executors."""
    here = Path(__file__).resolve().parents[1]
    if here.is_dir():
        return here
    import importlib.metadata

    try:
        return Path(str(importlib.metadata.distribution("coldlog").locate_file("coldlog")))
    except importlib.metadata.PackageNotFoundError:  # on a worker, which needs none of these files
        return here


def _find_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("COLDLOG_CACHE") or Path(home, "coldlog"))


def _find_root() -> tuple[Path | None, Path, Path]:
    checkout = find_checkout(Path(__file__).resolve().parents[1])
    if checkout is None:
        package = _find_package()
        return None, package, package
    return checkout, checkout / "lib" / "coldlog", checkout


CHECKOUT, PACKAGE, ROOT = _find_root()
"""The checkout, None if the library is installed; the folder `coldlog`; the folder that has `conf` and `jobs`."""
CONF = ROOT / "conf"
JOBS = ROOT / "jobs"
SAMPLE = PACKAGE / "sample" if CHECKOUT is None else CHECKOUT / "tests" / "golden" / "kafka-sample" / "archive"
"""An archive of a real broker; an installed package has some of its topics."""
POM = CONF / "jars" / "pom.xml"
EXECUTORS = _find_cache() / "executors" if CHECKOUT is None else CHECKOUT / ".executors"
"""Where packages for the workers of a cluster are made."""


def _command() -> str:
    if CHECKOUT is None:
        return "coldlog"
    try:
        is_here = Path.cwd() == CHECKOUT
    except FileNotFoundError:  # the current folder was removed
        is_here = False
    return ".venv/bin/coldlog" if is_here else shlex.quote(str(CHECKOUT / ".venv" / "bin" / "coldlog"))


COMMAND = _command()
"""The command as a user starts it in the current folder."""
STARTED_BY_COMMAND = "_COLDLOG_STARTED_BY_COMMAND"
"""The variable that tells a job that `coldlog`, and not spark-submit.sh, started it: usage and errors name it."""
SETUP = "coldlog setup" if CHECKOUT is None else "make setup"
"""The command that resolves the jars."""


def default_jar_directory() -> Path:
    """The folder of the jars: `COLDLOG_JARS`, else where `SETUP` puts those of this version's pom for this Spark."""
    if chosen := os.environ.get("COLDLOG_JARS"):
        return Path(chosen)
    from coldlog.runtime.spark.spark_versions import NEWEST, installed_series

    series = installed_series()
    if CHECKOUT is not None:
        return CHECKOUT / ".jars" if series is NEWEST else CHECKOUT / "build" / f"spark-{series.name}" / "jars"
    import hashlib

    return _find_cache() / "jars" / f"spark-{series.name}-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"


def own_jar() -> Path | None:
    """The jar with the classes of lib/java that an installed package has; in a checkout it is with the other jars."""
    jar = PACKAGE / "jars" / "coldlog.jar"
    return jar if CHECKOUT is None else None


def kernel_directory(environment: Path) -> Path:
    """Where jobs keep what numba compiles.

    Beside the packages it was compiled against, so that a new environment never uses an old cache; in the user's cache
    if the environment is not the user's. Numba fails if it is given a folder that it cannot write.
    """
    return (environment if os.access(environment, os.W_OK) else _find_cache()) / "numba-cache"


def class_directory() -> Path:
    """Where jobs keep the classes of Spark's JVM (`class_archive`), beside what numba compiles."""
    return kernel_directory(Path(sys.prefix)).parent / "java-classes"


def keep_compiled_kernels() -> None:
    """Choose where numba keeps what it compiles, before a module is imported that it compiles.

    In a checkout that is its environment. An installed package, and a checkout that this user cannot write, leave the
    choice to numba, which takes the package or the user's cache, and fails if it can write neither, as for a service
    account or in a read-only container. Then a folder for temporary files is taken, which only this user may write:
    what is kept there is run.
    """
    environment = None if CHECKOUT is None else CHECKOUT / ".venv"
    if environment is not None and environment.is_dir() and _can_write(environment / "numba-cache"):
        os.environ.setdefault("NUMBA_CACHE_DIR", str(environment / "numba-cache"))
        return
    users = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if "NUMBA_CACHE_DIR" not in os.environ and not _can_write(PACKAGE) and not _can_write(users):
        folder = Path(tempfile.gettempdir(), f"coldlog-kernels-{os.getuid()}")
        folder.mkdir(0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            os.environ["NUMBA_CACHE_DIR"] = str(folder)


def _can_write(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that is there, can be written."""
    nearest = next((each for each in (folder, *folder.parents) if os.path.exists(each)), folder)
    return os.access(nearest, os.W_OK)
