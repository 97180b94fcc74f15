"""Index the archives that the Aiven plugin wrote: two of them as one, one at batch and one at sidecar depth."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE
from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.open_archive import open_archive
from coldlog.model.states import IndexDepth
from worlds.aiven_sample import AIVEN_SAMPLE, archive_of, keys_setting, true_partitions
from worlds.golden_warehouse import build_settings, run_pipeline

TOGETHER = ("plain", "faults")
SHALLOW, SIDECAR = "encrypted", "zstd"
"""The variants that are indexed at these depths."""


@contextmanager
def keys_named(spark: SparkSession, setting: str) -> Iterator[None]:
    """Set the variable in this process and in Spark's workers, which get their environment from the driver."""
    context = spark.sparkContext
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT_VARIABLE, setting)
        patch.setitem(context.environment, ENVIRONMENT_VARIABLE, setting)
        yield


def open_variant(variant: str) -> ArchiveLayout:
    return open_archive(str(archive_of(variant)), "aiven")


def _write_log_starts(path: Path, *variants: str) -> Path:
    """Write the log starts that the brokers reported; an archive does not show what DeleteRecords deleted."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["topic", "partition", "log_start_offset"])
        for row in (row for variant in variants for row in true_partitions(variant)):
            earliest: dict[str, int] = row["earliest"]  # type: ignore[assignment]
            writer.writerow([row["topic"], row["partition"], earliest["offset"]])
    return path


def build_aiven(spark: SparkSession, folder: Path) -> None:
    """The archives of two brokers as one, with their metadata topics. They have no topic in common."""
    for number, variant in enumerate(TOGETHER):
        shutil.copytree(archive_of(variant), folder / "archive", dirs_exist_ok=True)
        for partition in (0, 1):
            copied = AIVEN_SAMPLE / variant / "rlmm" / f"{METADATA_TOPIC}-{partition}"
            shutil.copytree(copied, folder / "metadata" / f"{METADATA_TOPIC}-{2 * number + partition}")
    archive = open_archive(str(folder / "archive"), "aiven")
    log_starts = _write_log_starts(folder / "log_starts.csv", *TOGETHER)
    run_pipeline(spark, archive, folder / "warehouse", log_start_offsets=log_starts, metadata=folder / "metadata")


def build_aiven_shallow(spark: SparkSession, folder: Path) -> None:
    """What the plugin encrypted, at batch depth."""
    _index(spark, SHALLOW, folder, IndexDepth.BATCH)


def build_aiven_sidecar(spark: SparkSession, folder: Path) -> None:
    """What the plugin compressed, at sidecar depth."""
    _index(spark, SIDECAR, folder, IndexDepth.SIDECAR)


def _index(spark: SparkSession, variant: str, folder: Path, depth: IndexDepth) -> None:
    """Index the archive of a variant with its metadata topic."""
    with keys_named(spark, keys_setting(variant)):
        run_pipeline(
            spark,
            open_variant(variant),
            folder / "warehouse",
            log_start_offsets=_write_log_starts(folder / "log_starts.csv", variant),
            metadata=AIVEN_SAMPLE / variant / "rlmm",
            settings=build_settings(depth),
        )
