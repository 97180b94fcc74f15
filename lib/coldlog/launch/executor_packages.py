"""Pack coldlog and its packages for the workers of a cluster.

Workers always get `coldlog` as a .zip. If `cluster.ship_packages` is set, they also get an archive of the packages that
tasks import (arrow, numba, codecs, S3). It holds the files that installers recorded in this process's environment,
without Spark and without the extras that only a driver needs. Workers need an interpreter of the same minor version.
Both files are made once per content, below `EXECUTORS`, and all jobs share them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import marshal
import os
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.runtime.installation import EXECUTORS, PACKAGE

UNPACKED_NAME = "coldlog-packages"
"""The directory in an executor's working directory into which Spark unpacks the archive."""

_SHIPPED_EXTRAS = frozenset({"records", "s3", "spark"})
_ONLY_ON_DRIVER = frozenset({"pyspark"})
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")


def package_zip(directory: Path = EXECUTORS) -> Path:
    """Pack `coldlog` as a .zip for `--py-files`, with its bytecode, so that workers do not compile it again.

    A worker with another version of Python compiles the source. So does each worker for modules with numba's functions:
    numba keeps machine code by the path of the source, and bytecode made here does not have the worker's path.
    """
    files = sorted(file for file in PACKAGE.rglob("*") if file.suffix in (".py", ".sql", ".typed"))
    contents = [(file.relative_to(PACKAGE.parent).as_posix(), file.read_bytes()) for file in files]
    digest = hashlib.sha256(MAGIC_NUMBER)
    for name, content in contents:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents:
                archive.writestr(zipfile.ZipInfo(name), content)
                if name.endswith(".py") and b"import numba" not in content:
                    archive.writestr(zipfile.ZipInfo(f"{name}c"), _bytecode(name, content))

    return _made_once(directory / f"coldlog-{digest.hexdigest()[:16]}.zip", write)


def _bytecode(name: str, content: bytes) -> bytes:
    """Compile a module for `zipimport`. By its flags it is not compared with the source (PEP 552)."""
    code = marshal.dumps(compile(content, name, "exec", dont_inherit=True, optimize=0))
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(content) + code


def packages_archive(directory: Path = EXECUTORS) -> Path:
    """Pack the packages that tasks import as an archive for `--archives`; some 260 MB."""
    found = list_shipped_packages()
    versions = "\n".join(sorted(f"{each.name}=={each.version}" for each in found)) + sys.version
    digest = hashlib.sha256(versions.encode()).hexdigest()[:16]

    def write(path: Path) -> None:
        with tarfile.open(path, "w:gz", compresslevel=1) as archive:
            for distribution in found:
                for file in distribution.files or ():
                    source = Path(str(distribution.locate_file(file)))
                    # Leave out scripts, which are outside the packages' directory, and bytecode, which is made again.
                    if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                        archive.add(source, arcname=file.as_posix(), recursive=False)

    return _made_once(directory / f"packages-{digest}.tar.gz", write)


def list_shipped_packages(root: str = "coldlog") -> list[importlib.metadata.Distribution]:
    """List the installed packages that `root` requires directly or indirectly and that tasks import."""
    found: dict[str, importlib.metadata.Distribution] = {}
    seen = {root, *_ONLY_ON_DRIVER}
    wanted = [*_requirements(importlib.metadata.distribution(root), _SHIPPED_EXTRAS)]
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            # Only other platforms or extras that are not installed need it.
            continue
        found[name] = distribution
        wanted += _requirements(distribution)
    return [found[name] for name in sorted(found)]


def _requirements(
    distribution: importlib.metadata.Distribution, extras: Collection[str] = frozenset()
) -> Iterator[str]:
    """The packages that a distribution requires, also for these of its extras."""
    for requirement in distribution.requires or ():
        name, extra = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        if name is not None and (extra is None or extra[1] in extras):
            yield re.sub(r"[-_.]+", "-", name[0]).lower()


def _made_once(path: Path, write: Callable[[Path], None]) -> Path:
    """Write the file unless it exists. Several processes may write it at once: the last one that finishes wins."""
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
            f"cannot write {path} for the cluster's workers: {failed.strerror}; make {path.parent} writable, or set "
            "cluster.ship_packages=false if the workers have the packages"
        ) from failed
    return path
