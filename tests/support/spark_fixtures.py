"""The Spark session of the tests. Nothing of Spark is imported before a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coldlog.runtime.spark.spark_versions import SERIES, SparkSeries, installed_series
from counts.counted_work import counting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coldlog.runtime.settings import Settings

# Spark's JVM lives for some minutes and runs small queries: the optimizing compiler and the collector with threads of
# its own cost it more than they give. Seconds of processors for the session, the first small pipeline, and all of the
# first eight: 5, 22 and 79 without them, 9, 42 and 120 with them. run_pipeline of the sample takes 103 without the
# compiler and 152 with it; and 119 in the code cache that the JVM then chooses, 48 MiB, which Spark overflows.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
# Of jobs that tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM_OPTIONS)


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The settings of the session: those of conf/local.toml on two cores, whatever MASTER says."""
    from coldlog.runtime.settings_sources import load_settings
    from planning import FOR_SMALL_TABLES

    warehouse = tmp_path_factory.mktemp("session-warehouse")
    return load_settings(
        "local",
        [
            f"warehouse.uri={warehouse}",
            "spark.sql.shuffle.partitions=2",
            # Delta keeps every table it met for an hour, Spark a thousand plans: those of hundreds of tests fill heaps.
            # New objects get 600 MB, so that they are collected rarely: that took 7 % of the JVM's time.
            f"spark.driver.extraJavaOptions=-Ddelta.log.cacheSize=48 -Xmn600m {JVM_OPTIONS}",
            "spark.sql.ui.retainedExecutions=20",
            "spark.driver.memory=3g",
            # Tasks import the stores of tests.
            f"spark.executorEnv.PYTHONPATH={Path(__file__).parent}",
            *(f"{key}={value}" for key, value in FOR_SMALL_TABLES.items()),
        ],
    )


@pytest.fixture(params=[each.name for each in SERIES.values() if each.name <= installed_series().name])
def series(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SparkSeries:
    """This Spark, and this one as if its data source could do no more than that of an older one."""
    from coldlog.records.source import datasource

    chosen = SERIES[request.param]
    monkeypatch.setattr(datasource, "installed_series", lambda: chosen)
    return chosen


@pytest.fixture(scope="session")
def spark(spark_settings: Settings) -> Iterator[SparkSession]:
    """One Spark session for the whole run; new warehouses get copies of empty tables."""
    from coldlog import sql
    from coldlog.indexing import pipeline
    from coldlog.indexing.publish import materialize
    from coldlog.launch.session import spark_session
    from coldlog.lookups.functions import register_functions
    from coldlog.tables.delta.warehouse import Warehouse
    from tables.empty_tables import copying_empty_tables

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER", "local[2]")
        patch.delenv("SPARK_SUBMIT_OPTS")
        session = spark_session(spark_settings, app_name="tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(materialize, "_publish_partitions", counting("pipelines", materialize._publish_partitions))
        patch.setattr(Warehouse, "create_missing", copying_empty_tables(Warehouse.create_missing))
        once = _once_a_session(register_functions)
        for module in (sql, pipeline):
            patch.setattr(module, "register_functions", once)
        yield session
    session.stop()


def _once_a_session(register: Callable[..., None]) -> Callable[..., None]:
    """The functions are the same for every warehouse, and take Spark a second each time; no test drops one."""
    have_them: list[SparkSession] = []

    def register_once(spark: SparkSession, *, persistent: bool = False) -> None:
        if persistent or spark not in have_them:
            register(spark, persistent=persistent)
            have_them.append(spark)

    return register_once


@pytest.fixture
def users_plans(spark: SparkSession) -> Iterator[None]:
    """Spark plans and compiles as for users (see `planning`)."""
    from planning import planned_as_for_users

    with planned_as_for_users(spark):
        yield
