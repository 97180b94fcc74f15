"""Test that the path of another archive does not empty a warehouse."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.indexing.scan.scan import scan_segments
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in


def segment(start_offset: int) -> Segment:
    return Segment(batches=(Batch(base_offset=start_offset, records=(Record(timestamp_ms=1),)),))


def test_an_archive_without_any_known_segment_is_refused_unless_accepted(
    spark: SparkSession, warehouse: Path, tmp_path: Path
) -> None:
    write_archive(tmp_path / "one", {TopicPartition(topic="a", partition=0): [segment(0), segment(1)]})
    write_archive(tmp_path / "two", {TopicPartition(topic="b", partition=0): [segment(0)]})
    one, two = (open_archive(str(tmp_path / name), "local_tiered_storage") for name in ("one", "two"))
    tables = Warehouse(spark=spark, uri=str(warehouse))
    tables.create_missing()
    scan_segments(tables, one)
    with pytest.raises(UsageError, match="holds none of the segments"):
        scan_segments(tables, two)
    assert {row["index_status"] for row in rows_in(tables, SEGMENTS)} == {"pending"}
    summary = scan_segments(tables, two, accept_replaced=True)
    assert (summary.new_count, summary.gone_count) == (1, 2)
    assert scan_segments(tables, two).new_count == 0
