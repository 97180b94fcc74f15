"""planning: how does Spark run the thousands of small queries of the tests?

Their tables have some rows, and Spark's processors go into planning them again with what each stage found and into
compiling Java for them: without both, a pipeline over such a table takes a fifth less, and a lookup in SQL two fifths.
What users run has both, and so have most jobs that tests start as commands, the sample's whole pipeline among them,
and the tests with the fixture `users_plans`: they compare all answers in SQL with those of the broker and of a scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from coldlog.indexing.builds import build_tasks
from coldlog.indexing.scan import listing
from coldlog.tables.delta import warehouse_reads

FOR_SMALL_TABLES = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
ASSIGNMENTS_FOR_SMALL_TABLES = tuple(f"{key}={value}" for key, value in FOR_SMALL_TABLES.items())
"""The same, as words behind `--set`, for jobs of which a test shows something else than how they plan."""
_AS_FOR_USERS = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}


@contextmanager
def planned_as_for_users(spark: SparkSession) -> Iterator[None]:
    """Spark's own settings, for a while."""
    with _planned(spark, _AS_FOR_USERS):
        yield


@contextmanager
def planned_for_small_tables(spark: SparkSession) -> Iterator[None]:
    """Those of small tables, for a while, also within a test that plans as users do."""
    with _planned(spark, FOR_SMALL_TABLES):
        yield


@contextmanager
def as_large_tables() -> Iterator[None]:
    """Within the block, no table and no archive is small enough to be read, listed, built or changed without Spark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warehouse_reads, "FEW_ROWS", 0)
        patch.setattr(listing, "_MOST_DIRECTORIES_HERE", -1)
        patch.setattr(build_tasks, "MOST_SEGMENTS_HERE", 0)
        yield


@contextmanager
def _planned(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key) for key in options}
    _set(spark, options)
    try:
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, options: Mapping[str, str | None]) -> None:
    for key, value in options.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
