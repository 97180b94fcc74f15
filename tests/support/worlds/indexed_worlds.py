"""Build the warehouses that many tests read: the sample archives and written ones, indexed.

A world is built once for all tests and processes, in build/worlds below a digest of everything that it depends on; the
next run of the same code finds it there. Worlds are read only. A test that changes one copies it first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from coldlog.model.states import IndexDepth
from servers.kafka_clusters import copy_all_archives, copy_all_metadata_logs
from worlds.aiven_sample import AIVEN_SAMPLE, keys_setting
from worlds.aiven_worlds import build_aiven, build_aiven_shallow, build_aiven_sidecar, keys_named, open_variant
from worlds.golden_warehouse import build_settings, run_pipeline, write_log_start_offsets
from worlds.grown_mirror import build_grown_mirror
from worlds.kafka_sample import KAFKA_SAMPLE
from worlds.recreated_topics import build_recreated
from worlds.staged_archive import build_stages
from worlds.written_topics import build_written

ARCHIVE = KAFKA_SAMPLE / "archive"


def _golden(spark: SparkSession, folder: Path) -> None:
    log_starts = write_log_start_offsets(folder / "log_start_offsets.csv")
    run_pipeline(spark, ARCHIVE, folder / "warehouse", log_start_offsets=log_starts)


def _golden_shallow(spark: SparkSession, folder: Path) -> None:
    log_starts = write_log_start_offsets(folder / "log_start_offsets.csv")
    settings = build_settings(IndexDepth.BATCH)
    run_pipeline(spark, ARCHIVE, folder / "warehouse", log_start_offsets=log_starts, settings=settings)


def _golden_with_events(spark: SparkSession, folder: Path) -> None:
    run_pipeline(spark, ARCHIVE, folder / "warehouse", metadata=KAFKA_SAMPLE / "rlmm")


def _golden_sidecar(spark: SparkSession, folder: Path) -> None:
    settings = build_settings(IndexDepth.SIDECAR)
    run_pipeline(spark, ARCHIVE, folder / "warehouse", metadata=KAFKA_SAMPLE / "rlmm", settings=settings)


def _zstd_encrypted(spark: SparkSession, folder: Path) -> None:
    variant = "zstd-encrypted"
    with keys_named(spark, keys_setting(variant)):
        run_pipeline(spark, open_variant(variant), folder / "warehouse", metadata=AIVEN_SAMPLE / variant / "rlmm")


def _clusters(spark: SparkSession, folder: Path) -> None:
    copy_all_archives(folder / "archive")
    copy_all_metadata_logs(folder / "metadata")
    run_pipeline(spark, folder / "archive", folder / "warehouse", metadata=folder / "metadata")


WORLDS: dict[str, Callable[[SparkSession, Path], None]] = {
    "golden": _golden,
    "golden-shallow": _golden_shallow,
    "golden-with-events": _golden_with_events,
    "golden-sidecar": _golden_sidecar,
    "zstd-encrypted": _zstd_encrypted,
    "aiven": build_aiven,
    "aiven-shallow": build_aiven_shallow,
    "aiven-sidecar": build_aiven_sidecar,
    "clusters": _clusters,
    "stages": build_stages,
    "written": build_written,
    "recreated": build_recreated,
    "grown-mirror": build_grown_mirror,
}
"""How each world is built into a folder of its own."""
