"""Test what a user reads when Spark finds no space to write. A limit on the size of files stands for a full disk."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from coldlog.runtime.spark.spark_failures import explain_failure

AGAIN = "then start the job again: it continues from what was published"


@contextmanager
def _limited_files(spark: SparkSession, size_bytes: int) -> Iterator[None]:
    """Let the JVM write no file of more bytes."""
    assert spark._jvm is not None
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    before = resource.prlimit(jvm, resource.RLIMIT_FSIZE)
    resource.prlimit(jvm, resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, before)


def _append(rows: DataFrame, table: str) -> None:
    rows.write.format("delta").mode("append").save(table)


def _shuffle(rows: DataFrame, _: str) -> None:
    rows.repartition(2).write.format("noop").mode("overwrite").save()


def _commit(rows: DataFrame, table: str) -> None:
    rows.sparkSession.sql(f"DELETE FROM delta.`{table}`")


@pytest.mark.parametrize(
    ("write", "size_bytes", "where", "advice"),
    [
        (_append, 100_000, "{table} cannot be written", "free space there"),
        (_shuffle, 100_000, "spark could not write a file", "free space for the warehouse and for spark's temporary"),
        (_commit, 10, "spark could not write a file", "free space for the warehouse and for spark's temporary"),
    ],
)
def test_a_full_disk_is_one_line_with_its_place(
    spark: SparkSession,
    tmp_path: Path,
    write: Callable[[DataFrame, str], None],
    size_bytes: int,
    where: str,
    advice: str,
) -> None:
    table = str(tmp_path / "table")
    _append(spark.range(9).selectExpr("uuid() AS name", "id"), table)
    rows = spark.range(0, 50_000, 1, 2).selectExpr("uuid() AS name", "id")
    with _limited_files(spark, size_bytes), pytest.raises(Exception) as failed:  # noqa: PT011 - Spark's, of any class
        write(rows, table)
    told = explain_failure(failed.value)
    assert told is not None
    assert told.startswith(f"{where.format(table=table)} (File too large): {advice}")
    assert told.endswith(AGAIN)
    assert "\n" not in told
