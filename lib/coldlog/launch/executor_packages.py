"""executor_packages: how do the workers of a cluster get coldlog, and what it is built on?

Always: `coldlog` itself as a .zip, the one of this checkout. Where `cluster.ship_packages` is set, an archive of the
packages that tasks import too (arrow, numba, codecs, S3), taken from this process's environment as installers noted
them; Spark itself and what only a driver needs stay out of it. Workers need an interpreter of the same
minor version. Both files are made once for what they hold, below `.executors` of the checkout, and shared by all jobs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.runtime.settings_sources import REPOSITORY

PACKAGE = REPOSITORY / "lib" / "coldlog"
DIRECTORY = REPOSITORY / ".executors"
UNPACKED_NAME = "coldlog-packages"
"""The directory, in an executor's working directory, into which Spark unpacks the archive."""

_DRIVERS_OWN = frozenset({"pyspark", "great-expectations"})
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def package_zip(directory: Path = DIRECTORY) -> Path:
    """`coldlog` as `--py-files` takes it."""
    files = sorted(each for each in PACKAGE.rglob("*") if each.suffix in (".py", ".sql", ".typed"))
    contents = [(each.relative_to(PACKAGE.parent).as_posix(), each.read_bytes()) for each in files]
    digest = hashlib.sha256()
    for name, content in contents:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents:
                archive.writestr(zipfile.ZipInfo(name), content)

    return _made_once(directory / f"coldlog-{digest.hexdigest()[:16]}.zip", write)


def packages_archive(directory: Path = DIRECTORY) -> Path:
    """The packages that tasks import, as `--archives` takes them; some 260 MB."""
    found = list_shipped_packages()
    versions = "\n".join(sorted(f"{each.name}=={each.version}" for each in found)) + sys.version
    digest = hashlib.sha256(versions.encode()).hexdigest()[:16]

    def write(path: Path) -> None:
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            for distribution in found:
                for file in distribution.files or ():
                    source = Path(str(distribution.locate_file(file)))
                    # Scripts lie outside of the packages' directory, and bytecode is made again.
                    if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                        archive.add(source, arcname=file.as_posix(), recursive=False)

    return _made_once(directory / f"packages-{digest}.tar.gz", write)


def list_shipped_packages(root: str = "coldlog") -> list[importlib.metadata.Distribution]:
    """What `root` requires, and what that requires in turn, as it is installed here, for tasks."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen = {root, *_DRIVERS_OWN}
    wanted = [*_requirements(importlib.metadata.distribution(root))]
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            # Needed on other platforms or by extras that were not asked for.
            continue
        found[name] = distribution
        wanted += _requirements(distribution)
    return [found[name] for name in sorted(found)]


def _requirements(distribution: importlib.metadata.Distribution) -> Iterable[str]:
    for requirement in distribution.requires or ():
        name = _REQUIREMENT.match(requirement)
        if name is not None and "extra ==" not in requirement:
            yield re.sub(r"[-_.]+", "-", name[0]).lower()


def _made_once(path: Path, write: Callable[[Path], None]) -> Path:
    """Another process may make the same file: each makes its own, and the last one to be whole stays."""
    if path.is_file():
        return path
    try:
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as partial:
            unfinished = Path(partial.name)
        try:
            write(unfinished)
            unfinished.chmod(0o644)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as failed:
        raise UsageError(
            f"cannot write {path}, which the cluster's workers are to get: {failed.strerror}; make {path.parent} "
            "writable, or set cluster.ship_packages=false where workers have the packages"
        ) from failed
    return path
