"""golden_warehouse: the sample archive, indexed once for every test that asks it something."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pyspark.sql import SparkSession

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.open_archive import open_archive, open_store
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.build import BuildSettings, build_indexes
from coldlog.indexing.builds.segment_build import BuildOptions
from coldlog.indexing.events.event_sources import LogSegmentsSource
from coldlog.indexing.events.read_events import read_events
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.indexing.scan.log_starts import merge_log_start_offsets
from coldlog.indexing.scan.scan import scan_segments
from coldlog.model.states import IndexDepth
from coldlog.tables.delta.table_storage import keeping_tables_open
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.expiry.supplied_log_starts import read_log_start_offsets
from coldlog.upkeep.reconcile import reconcile
from planning import planned_for_small_tables
from worlds.kafka_sample import KAFKA_SAMPLE


def build_settings(depth: IndexDepth = IndexDepth.RECORD, **changes: object) -> BuildSettings:
    """Small windows and commits, so that the tests cross their borders."""
    values: dict[str, object] = {
        "options": BuildOptions(
            depth=depth,
            limits=DecodeLimits(max_batch_bytes=64 << 20, max_decompressed_bytes=64 << 20),
            window_bytes=1 << 20,
        ),
        "max_bytes_per_commit": 1 << 40,
        "tasks_per_core": 1,
        "max_quarantined_share": 1.0,
        "retry_quarantined": False,
    }
    return BuildSettings(**(values | changes))  # type: ignore[arg-type]  # a test names one setting at a time


def run_pipeline(
    spark: SparkSession,
    archive: Path | ArchiveLayout,
    location: Path,
    *,
    log_start_offsets: Path | None = None,
    metadata: Path | None = None,
    settings: BuildSettings | None = None,
    around: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Warehouse:
    """Scan, build, materialize and reconcile, as the job does it but planned for small tables; a path is that of a
    LocalTieredStorage archive. `around` is entered with the name of each step."""
    warehouse = Warehouse(spark=spark, uri=str(location))
    layout = open_archive(str(archive), "local_tiered_storage") if isinstance(archive, Path) else archive
    with planned_for_small_tables(spark), keeping_tables_open():
        warehouse.create_missing()
        if log_start_offsets is not None:
            merge_log_start_offsets(warehouse, read_log_start_offsets(str(log_start_offsets)))
        if metadata is not None:
            read_events(warehouse, log_segments_source(metadata))
        with around("scan"):
            scan_segments(warehouse, layout)
        with ServingPlan(warehouse) as plan:
            with around("build"):
                build_indexes(warehouse, layout, settings or build_settings(), plan=plan)
            with around("materialize"):
                materialize_metadata(warehouse, plan)
        with around("reconcile"):
            reconcile(warehouse)
    return warehouse


def log_segments_source(metadata: Path) -> LogSegmentsSource:
    """The metadata topic's log segments below a directory."""
    return LogSegmentsSource(
        store=open_store(str(metadata)),
        topic=METADATA_TOPIC,
        limits=DecodeLimits(max_batch_bytes=64 << 20, max_decompressed_bytes=64 << 20),
    )


def golden_partitions() -> list[dict[str, object]]:
    """The lines of truth/partitions.jsonl."""
    with (KAFKA_SAMPLE / "truth" / "partitions.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def golden_queries() -> list[dict[str, object]]:
    """The lines of truth/queries.jsonl."""
    with (KAFKA_SAMPLE / "truth" / "queries.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def is_true_answer(query: dict[str, object], answer: dict[str, object], *, broker_compatible: bool) -> bool:
    """Whether a lookup's row answers the query as the broker did or, by the exact rule, as a scan of the archive."""
    if "scan" in query and not broker_compatible:
        scan: dict[str, object] = query["scan"]  # type: ignore[assignment]
        return (answer["offset"], answer["offset_timestamp_ms"]) == (scan["offset"], scan["ts"])
    found = answer["offset"], answer["offset_timestamp_ms"], answer["leader_epoch"]
    true: dict[str, object] = query["ru"] if query["archive"] else {}  # type: ignore[assignment]
    return found == (true.get("offset"), true.get("ts"), true.get("epoch"))


def write_log_start_offsets(path: Path, prefixes: Sequence[str] = ("",)) -> Path:
    """The log start offsets of truth/partitions.jsonl, as an operator supplies them, of topics with these prefixes."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["topic", "partition", "log_start_offset"])
        for prefix in prefixes:
            for row in golden_partitions():
                writer.writerow([f"{prefix}{row['topic']}", row["partition"], row["log_start"]])
    return path
