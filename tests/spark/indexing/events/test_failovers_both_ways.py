"""Test that runs with the preflight and runs without it end in equal tables while the leaders of a real cluster change.

The cluster of Kafka 3.6.2 goes on in three parts: its archive and its metadata topic before the unclean elections,
after them, and at the end. The tables at the end are those of one run over the archives of all clusters.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from both_ways import BothWays, limit_of
from coldlog.archive.metadata_log import METADATA_TOPIC, list_metadata_partitions
from coldlog.archive.metadata_log_reader import iter_metadata_records
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.formats.kafka.remote_log.remote_log_events import SegmentMetadataEvent
from coldlog.formats.kafka.remote_log.remote_log_metadata import decode_event
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import list_table_files, read_file_rows
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import BUILD_NUMBERS, table_contents, table_rows
from servers.kafka_clusters import CLUSTERS, true_lines
from worlds.golden_warehouse import log_segments_source

CLUSTER = "3.6.2"
SOURCE = CLUSTERS / CLUSTER
PARTS: tuple[tuple[int, int | None, int], ...] = ((30_000, None, 0), (50_000, 3, 2), (60_000, 11, 2))
"""Until how many ms after the first event; to how many partitions the run is limited; how many segments of `lost` are
outside the leader's lineage then."""


def _go_on(folder: Path, until_ms: int) -> None:
    """Let the cluster go on until so many ms after its first event."""
    metadata = log_segments_source(SOURCE / "rlmm")
    partitions = list_metadata_partitions(metadata.store)
    records = [
        record for each in partitions for record in iter_metadata_records(metadata.store, each, 0, metadata.limits)
    ]
    last_ms = min(record.timestamp_ms for record in records) + until_ms
    events = [decode_event(record.value or b"") for record in records if record.timestamp_ms <= last_ms]
    begun = {each.remote_log_segment_id.segment_id for each in events if isinstance(each, SegmentMetadataEvent)}
    (archive,) = (SOURCE / "archive").iterdir()
    for line in true_lines(CLUSTER, "segments"):
        if line["segment_id"] in begun:
            copied = folder / "archive" / archive.name / line["path"]
            copied.parent.mkdir(parents=True, exist_ok=True)
            for file in (archive / line["path"]).parent.glob(f"{copied.name}.*"):
                shutil.copy2(file, copied.parent)
    for each in partitions:
        (log,) = (SOURCE / "rlmm" / f"{METADATA_TOPIC}-{each.partition}").iterdir()
        content = log.read_bytes()
        headers = read_batch_headers(
            memoryview(content), position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 26
        ).headers
        ends = (headers.position + headers.size_bytes)[headers.max_timestamp_ms <= last_ms]
        copied = folder / "rlmm" / log.parent.name / log.name
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(content[: max(ends, default=0)])


def _lost_count(location: Path) -> int:
    """How many segments are outside the lineage of the last leader."""
    files = list_table_files(str(location / SEGMENTS.name), SEGMENTS, [])
    rows = list(read_file_rows(files, ("topic", "is_within_lineage")))
    assert {row["topic"] for row in rows if row["is_within_lineage"] is False} <= {f"lost-{CLUSTER}"}
    return sum(row["is_within_lineage"] is False for row in rows)


def test_tables_are_equal_with_and_without_preflight_while_leaders_change(
    spark: SparkSession, clusters: Warehouse, tmp_path: Path
) -> None:
    assignments = [f"archive.uri={tmp_path / 'archive'}", f"metadata.uri={tmp_path / 'rlmm'}"]
    both_ways = BothWays(spark=spark, assignments=[*assignments, "scan.full_listing_hours=0"])
    limited, whole = tmp_path / "limited", tmp_path / "whole"

    def opened(location: Path) -> Warehouse:
        return Warehouse(spark=spark, uri=str(location))

    for until_ms, partition_count, lost_count in PARTS:
        _go_on(tmp_path, until_ms)
        assert not both_ways.run(limited), until_ms
        if not whole.exists():
            shutil.copytree(limited, whole)
        else:
            assert not both_ways.run(whole, "pipeline.skip_unchanged=false"), until_ms
        assert (limit_of(limited), limit_of(whole)) == (partition_count, None), until_ms
        tables = [table_contents(each) for each in map(opened, (limited, whole))]
        assert tables[0] == tables[1], until_ms
        assert _lost_count(limited) == lost_count, until_ms
    both_ways.repeat(limited)

    of_cluster = f"'topic': '[a-z]+-{re.escape(CLUSTER)}'"
    for table in ALL_TABLES:
        if table not in (JOB_RUNS, SEGMENT_EVENTS):  # Metadata partitions have other numbers there.
            rows, at_once = (table_rows(each, table, without=BUILD_NUMBERS) for each in (opened(limited), clusters))
            assert rows == [row for row in at_once if re.search(of_cluster, row)], table.name
