"""Test that each bucket of a replay is one partition of Spark, in the way of each version."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coldlog.replay.runs import replay_order
from coldlog.runtime.spark.spark_versions import SERIES, installed_series


@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("name", [each for each in SERIES if each <= installed_series().name])
def test_a_bucket_is_the_partition_of_its_number(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    monkeypatch.setattr(replay_order, "installed_series", lambda: SERIES[name])
    rows = spark.range(3 * count).select((F.col("id") % count).cast("int").alias("bucket"))
    placed = replay_order.in_partitions(rows, count)
    assert placed.columns == ["bucket"]
    # Buckets are a few records, and sizes do not decide what is read together.
    found = placed.select("bucket", F.spark_partition_id().alias("place")).toArrow().to_pylist()
    assert sorted((row["bucket"], row["place"]) for row in found) == sorted(
        (bucket, bucket) for bucket in range(count) for _ in range(3)
    )
