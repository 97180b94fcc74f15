"""Test that a Delta table of requests is read, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.lookups.requests.requests_table import read_requests_table
from coldlog.lookups.requests.rows import requests_from_rows


def test_delta_table_of_requests_is_read(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "asked")
    spark.sql("SELECT 'orders' AS topic, 1L AS partition, 5 AS timestamp_ms, 'x' AS more").write.format("delta").save(
        location
    )
    assert read_requests_table(location, spark).to_pylist() == requests_from_rows([("orders", 1, 5)]).to_pylist()


def test_place_without_a_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Delta table"):
        read_requests_table(str(tmp_path / "none"), spark)
