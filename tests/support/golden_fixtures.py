"""golden_fixtures: the sample archives, indexed, once for all tests and all processes that run them.

pytest-xdist's processes have a folder in common: the first that asks for a warehouse builds it there, the others wait.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aiven_sample import AIVEN_SAMPLE, archive_of, keys_setting
from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE
from coldlog.archive.open_archive import open_archive
from coldlog.model.states import IndexDepth
from coldlog.tables.delta.warehouse import Warehouse
from golden_warehouse import build_settings, run_pipeline, write_log_start_offsets
from kafka_clusters import copy_all_archives, copy_all_metadata_logs
from kafka_sample import KAFKA_SAMPLE

ARCHIVE = KAFKA_SAMPLE / "archive"


def _built_once(
    spark: SparkSession, factory: pytest.TempPathFactory, name: str, build: Callable[[Path], Warehouse]
) -> Warehouse:
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "is-built").exists():
            return Warehouse(spark=spark, uri=str(folder / "warehouse"))
        folder.mkdir()
        built = build(folder)
        (folder / "is-built").touch()
        return built


@pytest.fixture(scope="session")
def golden(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """The sample archive, indexed with its log start offsets; to be read only."""

    def build(folder: Path) -> Warehouse:
        log_starts = write_log_start_offsets(folder / "log_start_offsets.csv")
        return run_pipeline(spark, ARCHIVE, folder / "warehouse", log_start_offsets=log_starts)

    return _built_once(spark, tmp_path_factory, "golden", build)


@pytest.fixture(scope="session")
def golden_shallow(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """`golden` at batch depth; to be read only."""

    def build(folder: Path) -> Warehouse:
        log_starts = write_log_start_offsets(folder / "log_start_offsets.csv")
        settings = build_settings(IndexDepth.BATCH)
        return run_pipeline(spark, ARCHIVE, folder / "warehouse", log_start_offsets=log_starts, settings=settings)

    return _built_once(spark, tmp_path_factory, "golden-shallow", build)


@pytest.fixture(scope="session")
def golden_with_events(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """The sample archive with its metadata topic, which tells the log start offsets; to be read only."""

    def build(folder: Path) -> Warehouse:
        return run_pipeline(spark, ARCHIVE, folder / "warehouse", metadata=KAFKA_SAMPLE / "rlmm")

    return _built_once(spark, tmp_path_factory, "golden-with-events", build)


@pytest.fixture(scope="session")
def zstd_encrypted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """What Aiven's plugin compressed and encrypted, with its metadata topic; to be read only."""
    variant = "zstd-encrypted"

    def build(folder: Path) -> Warehouse:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ENVIRONMENT_VARIABLE, keys_setting(variant))
            patch.setitem(spark.sparkContext.environment, ENVIRONMENT_VARIABLE, keys_setting(variant))
            archive = open_archive(str(archive_of(variant)), "aiven")
            return run_pipeline(spark, archive, folder / "warehouse", metadata=AIVEN_SAMPLE / variant / "rlmm")

    return _built_once(spark, tmp_path_factory, variant, build)


@pytest.fixture(scope="session")
def clusters(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """The archives of all golden clusters with their metadata topics, as one; to be read only.

    The archive lies in `archive` beside the warehouse.
    """

    def build(folder: Path) -> Warehouse:
        copy_all_archives(folder / "archive")
        copy_all_metadata_logs(folder / "metadata")
        return run_pipeline(spark, folder / "archive", folder / "warehouse", metadata=folder / "metadata")

    return _built_once(spark, tmp_path_factory, "clusters", build)
