"""Warehouses that earlier commits wrote: the pipeline goes on in them, and answers stay as they were."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.archive.open_archive import open_archive
from coldlog.indexing.builds.build import build_indexes
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.scan.scan import scan_segments
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.files.table_files import PUBLISH_APPLICATION
from coldlog.tables.delta.manifest import NUMBERED_TABLES
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in
from planning import planned_for_small_tables
from worlds.golden_warehouse import build_settings, golden_queries, is_true_answer, run_pipeline
from worlds.kafka_sample import KAFKA_SAMPLE

WAREHOUSES = sorted((Path(__file__).parents[2] / "golden" / "warehouses").glob("*.tar.gz"))
INDEXED = [("payments", 1), ("records-deleted", 0)]
ADDED = ("payments", 2)


@pytest.mark.parametrize("packed", WAREHOUSES, ids=lambda path: path.name)
def test_pipeline_goes_on_in_the_warehouse_of_an_earlier_commit(
    packed: Path, spark: SparkSession, tmp_path: Path
) -> None:
    with tarfile.open(packed) as files:
        files.extractall(tmp_path / "warehouse", filter="data")
    for partition in INDEXED:
        _copy_partition(partition, tmp_path / "archive")
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    layout = open_archive(str(tmp_path / "archive"), "local_tiered_storage")
    with planned_for_small_tables(spark):
        assert warehouse.create_missing() == 1, "interval_index is later"
        scanned = scan_segments(warehouse, layout)
        assert (scanned.segment_count, scanned.new_count, scanned.changed_count) == (18, 0, 0)
        assert build_indexes(warehouse, layout, build_settings()).indexed_count == 0
        materialized = materialize_metadata(warehouse)
        assert (materialized.changed_segment_count, materialized.changed_partition_count) == (0, len(INDEXED))
        rows = rows_in(warehouse, PARTITION_METADATA)
    assert [row["finished_max_timestamp_ms"] >= row["max_timestamp_ms"] for row in rows] == [True] * len(INDEXED)
    numbers = [
        DeltaTable(warehouse.location(each)).transaction_version(PUBLISH_APPLICATION) for each in NUMBERED_TABLES
    ]
    assert numbers == [1, 1], "the next run publishes a manifest"
    assert _wrong_answers(warehouse.uri, INDEXED) == []

    _copy_partition(ADDED, tmp_path / "archive")
    run_pipeline(spark, tmp_path / "archive", tmp_path / "warehouse")
    assert _wrong_answers(warehouse.uri, [*INDEXED, ADDED]) == []


def _copy_partition(partition: tuple[str, int], archive: Path) -> None:
    (found,) = (KAFKA_SAMPLE / "archive").rglob(f"{partition[0]}-{partition[1]}-*/")
    shutil.copytree(found, archive / found.relative_to(KAFKA_SAMPLE / "archive"))


def _wrong_answers(uri: str, partitions: list[tuple[str, int]]) -> list[object]:
    queries = [query for query in golden_queries() if (query["topic"], query["partition"]) in partitions]
    assert len({(query["topic"], query["partition"]) for query in queries}) == len(partitions)
    with OffsetReader(uri) as reader:
        answers = reader.list_offsets([(query["topic"], query["partition"], query["ts"]) for query in queries])
        pairs = list(zip(queries, answers, strict=True))
    return [pair for pair in pairs if not is_true_answer(*pair, broker_compatible=False)]
