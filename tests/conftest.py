"""conftest: what may every test ask for?

`spark` is one session for the whole run (a session costs seconds, a test should not); tables go to a directory of the
test's own. Hypothesis repeats the same examples in every run and keeps no database, so that a failure in CI is a
failure here; HYPOTHESIS_PROFILE=explore looks for new ones.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from pyspark.sql import SparkSession

from coldlog.launch.session import spark_session
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.delta.warehouse import Warehouse
from empty_tables import copying_empty_tables
from planning import FOR_SMALL_TABLES

pytest_plugins = ["golden_fixtures", "s3_fixtures"]

GOLDEN = Path(__file__).parent / "golden" / "kafka-sample"

# pyspark.sql.connect, which Great Expectations imports, takes a program without a file for a doctest, and ends it; the
# processes of pytest-xdist are such programs.
if not hasattr(sys.modules["__main__"], "__file__"):
    sys.modules["__main__"].__file__ = __file__

# No deadline: the first example of a kernel compiles it.
hypothesis.settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("explore", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Spark's JVM lives for some minutes and runs small queries: the optimizing compiler and the collector with threads of
# its own cost it more than they give. Seconds of processors for the session, the first small pipeline, and all of the
# first eight: 5, 22 and 79 without them, 9, 42 and 120 with them. run_pipeline of the sample takes 103 without the
# compiler and 152 with it; and 119 in the code cache that the JVM then chooses, 48 MiB, which Spark overflows.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
# Of jobs that tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM_OPTIONS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that was skipped has failed: what is missing there has to be installed."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def golden_archive() -> Path:
    """The archive that a real broker wrote."""
    return GOLDEN / "archive"


@pytest.fixture(scope="session")
def golden_truth() -> Path:
    """What that broker answered."""
    return GOLDEN / "truth"


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The settings of the session: those of conf/local.toml on two cores, whatever MASTER says."""
    warehouse = tmp_path_factory.mktemp("session-warehouse")
    return load_settings(
        "local",
        [
            f"warehouse.uri={warehouse}",
            "spark.sql.shuffle.partitions=2",
            # Delta keeps every table it met for an hour, Spark a thousand plans: those of hundreds of tests fill heaps.
            f"spark.driver.extraJavaOptions=-Ddelta.log.cacheSize=48 {JVM_OPTIONS}",
            "spark.sql.ui.retainedExecutions=20",
            "spark.driver.memory=3g",
            *(f"{key}={value}" for key, value in FOR_SMALL_TABLES.items()),
        ],
    )


@pytest.fixture(scope="session")
def spark(spark_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of the whole run; the empty tables of new warehouses are created once in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER", "local[2]")
        patch.delenv("SPARK_SUBMIT_OPTS")
        session = spark_session(spark_settings, app_name="tests")
    template = tmp_path_factory.mktemp("empty") / "warehouse"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Warehouse, "create_missing", copying_empty_tables(Warehouse.create_missing, template))
        yield session
    session.stop()


@pytest.fixture
def kafka_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """kafka-python 3.0.12 leaves the sockets of a client that could not be made to the garbage collector: here they go
    with the test that knows of them."""
    tell = sys.unraisablehook

    def tell_others(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, ResourceWarning):
            tell(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", tell_others)
    yield
    gc.collect()


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """An empty warehouse of the test's own."""
    return tmp_path / "warehouse"
