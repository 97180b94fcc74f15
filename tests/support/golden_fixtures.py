"""The sample archives and some that were written for tests, indexed: as uris, which need no Spark once they are
built, and as warehouses.

Each is built once for all tests and processes, in build/worlds below a digest of all files that it depends on; the next
run of the same code finds it there. They are read only: a test that changes one copies it first. `indexed_worlds` says
how each is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coldlog.tables.delta.warehouse import Warehouse

_ROOT = Path(__file__).parents[2]
_WORLDS = _ROOT / "build" / "worlds"
_DEPENDS_ON = ("lib/coldlog", "tests/support", "tests/golden", "conf", "environment.py", "constraints.txt")
_KEPT_STATES = 2


@pytest.fixture(scope="session")
def golden_uri(request: pytest.FixtureRequest) -> str:
    """The sample archive, indexed with its log start offsets."""
    return _uri(request, "golden")


@pytest.fixture(scope="session")
def golden_shallow_uri(request: pytest.FixtureRequest) -> str:
    """The same at batch depth."""
    return _uri(request, "golden-shallow")


@pytest.fixture(scope="session")
def golden_with_events_uri(request: pytest.FixtureRequest) -> str:
    """The sample archive with its metadata topic, which tells the log start offsets."""
    return _uri(request, "golden-with-events")


@pytest.fixture(scope="session")
def golden_sidecar_uri(request: pytest.FixtureRequest) -> str:
    """The sample archive with its metadata topic at sidecar depth."""
    return _uri(request, "golden-sidecar")


@pytest.fixture(scope="session")
def zstd_encrypted_uri(request: pytest.FixtureRequest) -> str:
    """What Aiven's plugin compressed and encrypted, with its metadata topic."""
    return _uri(request, "zstd-encrypted")


@pytest.fixture(scope="session")
def aiven_uri(request: pytest.FixtureRequest) -> str:
    """Two archives of Aiven's plugin as one, in `archive` beside the warehouse, with their metadata topics."""
    return _uri(request, "aiven")


@pytest.fixture(scope="session")
def aiven_shallow_uri(request: pytest.FixtureRequest) -> str:
    """What Aiven's plugin encrypted, at batch depth."""
    return _uri(request, "aiven-shallow")


@pytest.fixture(scope="session")
def aiven_sidecar_uri(request: pytest.FixtureRequest) -> str:
    """What Aiven's plugin compressed, at sidecar depth."""
    return _uri(request, "aiven-sidecar")


@pytest.fixture(scope="session")
def clusters_uri(request: pytest.FixtureRequest) -> str:
    """The archives of all golden clusters with their metadata topics, as one, in `archive` beside the warehouse."""
    return _uri(request, "clusters")


@pytest.fixture(scope="session")
def stages(request: pytest.FixtureRequest) -> list[Path]:
    """The folders of an archive that grows (`staged_archive`), each with `archive` and `warehouse`."""
    from worlds.staged_archive import stage_folders

    return stage_folders(_world(request, "stages"))


@pytest.fixture(scope="session")
def written_uri(request: pytest.FixtureRequest) -> str:
    """The archive of `written_topics`, in `archive` beside the warehouse."""
    return _uri(request, "written")


@pytest.fixture(scope="session")
def recreated_uri(request: pytest.FixtureRequest) -> str:
    """The archive of `recreated_topics`, in `archive` beside the warehouse."""
    return _uri(request, "recreated")


@pytest.fixture(scope="session")
def grown_mirror_uri(request: pytest.FixtureRequest) -> str:
    """The mirror of `grown_mirror`, in `mirror` beside the warehouse."""
    return _uri(request, "grown-mirror")


@pytest.fixture(scope="session")
def golden(spark: SparkSession, golden_uri: str) -> Warehouse:
    """`golden_uri` as a warehouse."""
    return _open(spark, golden_uri)


@pytest.fixture(scope="session")
def golden_shallow(spark: SparkSession, golden_shallow_uri: str) -> Warehouse:
    """`golden_shallow_uri` as a warehouse."""
    return _open(spark, golden_shallow_uri)


@pytest.fixture(scope="session")
def golden_with_events(spark: SparkSession, golden_with_events_uri: str) -> Warehouse:
    """`golden_with_events_uri` as a warehouse."""
    return _open(spark, golden_with_events_uri)


@pytest.fixture(scope="session")
def golden_sidecar(spark: SparkSession, golden_sidecar_uri: str) -> Warehouse:
    """`golden_sidecar_uri` as a warehouse."""
    return _open(spark, golden_sidecar_uri)


@pytest.fixture(scope="session")
def zstd_encrypted(spark: SparkSession, zstd_encrypted_uri: str) -> Warehouse:
    """`zstd_encrypted_uri` as a warehouse."""
    return _open(spark, zstd_encrypted_uri)


@pytest.fixture(scope="session")
def aiven(spark: SparkSession, aiven_uri: str) -> Warehouse:
    """`aiven_uri` as a warehouse."""
    return _open(spark, aiven_uri)


@pytest.fixture(scope="session")
def aiven_shallow(spark: SparkSession, aiven_shallow_uri: str) -> Warehouse:
    """`aiven_shallow_uri` as a warehouse."""
    return _open(spark, aiven_shallow_uri)


@pytest.fixture(scope="session")
def aiven_sidecar(spark: SparkSession, aiven_sidecar_uri: str) -> Warehouse:
    """`aiven_sidecar_uri` as a warehouse."""
    return _open(spark, aiven_sidecar_uri)


@pytest.fixture(scope="session")
def clusters(spark: SparkSession, clusters_uri: str) -> Warehouse:
    """`clusters_uri` as a warehouse."""
    return _open(spark, clusters_uri)


def _open(spark: SparkSession, uri: str) -> Warehouse:
    from coldlog.tables.delta.warehouse import Warehouse

    return Warehouse(spark=spark, uri=uri)


def _uri(request: pytest.FixtureRequest, name: str) -> str:
    return str(_world(request, name) / "warehouse")


def _world(request: pytest.FixtureRequest, name: str) -> Path:
    def build(folder: Path) -> None:
        from worlds.indexed_worlds import WORLDS

        WORLDS[name](request.getfixturevalue("spark"), folder)

    return find_world(name, build)


def find_world(name: str, build: Callable[[Path], None]) -> Path:
    """Return the folder of a world, which `build` fills unless an earlier run of this code did."""
    folder = _folder_of_this_code() / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "is-built").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            (folder / "is-built").touch()
    reports = folder / "warehouse" / "damage_reports"
    assert not reports.exists(), f"a test has let a reader report damage to a shared world; remove {reports}"
    return folder


@cache
def _folder_of_this_code() -> Path:
    """The folder for the files as they are now; of other states the newest stays, which a run may still read."""
    digest = hashlib.sha256(f"{sys.version} {importlib.metadata.version('pyspark')}".encode())
    for file in _files_that_count():
        digest.update(f"{file.relative_to(_ROOT)} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    folder = _WORLDS / digest.hexdigest()[:16]
    if not folder.exists():
        others = sorted(_WORLDS.glob("*"), key=lambda each: each.stat().st_mtime, reverse=True)
        for each in others[_KEPT_STATES - 1 :]:
            shutil.rmtree(each, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _files_that_count() -> list[Path]:
    tops = [_ROOT / each for each in _DEPENDS_ON]
    files = [each for top in tops for each in ([top] if top.is_file() else sorted(top.rglob("*")))]
    return [each for each in files if each.is_file() and each.parent.name != "__pycache__"]
