"""golden_fixtures: the sample archive, indexed in three ways, once for all tests and all processes that run them.

pytest-xdist's processes have a folder in common: the first that asks for a warehouse builds it there, the others wait.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.model.states import IndexDepth
from coldlog.tables.warehouse import Warehouse
from golden_warehouse import build_settings, run_pipeline, write_log_start_offsets
from kafka_sample import KAFKA_SAMPLE
from planning import planned_as_for_users

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
        with planned_as_for_users(spark):
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
