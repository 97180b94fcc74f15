"""Test that tables and lookups follow the log start of expire_segments."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.indexing.pipeline import build, materialize, scan
from coldlog.indexing.scan.log_starts import read_tier_log_starts, stored_log_starts
from coldlog.reader import OffsetReader
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.tier_partitions import TierPartitions
from contents.table_contents import rows_in
from copying_tier import ORDERS, Tier


def test_tables_and_lookups_follow_the_log_start_even_if_the_run_was_killed_after_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    tier = Tier(root=tmp_path)
    now_ms, age_ms = tier.clock.time_ms, 10_000
    segments = [
        Segment(
            batches=(
                Batch(
                    base_offset=first,
                    records=tuple(Record(timestamp_ms=now_ms - age_ms * (first == 0) + at) for at in range(10)),
                ),
            ),
            index_interval_bytes=0,
        )
        for first in (0, 10, 20, 30)
    ]
    write_partition(tier.logs, "orders", 0, segments)
    write_offset_checkpoint(tier.logs / HIGH_WATERMARKS, {("orders", 0): 40})
    tier.copy()
    assert tier.expire(age_ms // 2).deleted_count == 1
    TierPartitions.below(str(tier.warehouse), tier.clock).move_log_start(ORDERS, since=10, to=15)
    places = {"archive": tier.archive, "metadata": tier.metadata, "warehouse": tier.warehouse}
    values = [f"{name}.uri={place}" for name, place in places.items()]
    settings = load_settings("local", [*values, "rlmm.config.remote.log.metadata.topic.num.partitions=3"])
    job = Job(spark=spark, settings=settings, arguments=argparse.Namespace(), console=Console())
    scan(job)
    warehouse = Warehouse(spark=spark, uri=str(tier.warehouse))
    assert stored_log_starts(warehouse) == read_tier_log_starts(warehouse) == {("orders", 0): 15}
    build(job)
    materialize(job)
    (row,) = rows_in(warehouse, PARTITION_METADATA)
    assert (row["log_start_offset"], row["earliest_offset"], row["latest_tiered_offset"]) == (15, 15, 29)
    with OffsetReader(warehouse.uri) as reader:
        found = reader.offset_for_timestamp("orders", 0, 0)
    assert found is not None
    assert found.offset == 15
