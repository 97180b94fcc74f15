"""A mirror of a broker's log directories whose newest log was copied in the middle of a batch, and grows later.

`payments` has no `partition.metadata`, as with brokers before Kafka 2.8, so its topic id is not known.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from builders.mirror_writer import SIDE_FILES, write_mirror
from coldlog.archive.open_archive import open_archive
from contents.record_rows import true_batches
from worlds.golden_warehouse import run_pipeline, write_log_start_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownLog:
    """The newest log of orders-0: its file has the first half of its batches and a part of the next; `whole` is what
    it becomes, and `last_offset` the last one of the first half."""

    file: Path
    whole: bytes
    last_offset: int


def write_grown_mirror(mirror: Path) -> GrownLog:
    """Write a mirror of topics orders and payments."""
    write_mirror(mirror, topics={"orders"}, kinds=SIDE_FILES)
    write_mirror(mirror, topics={"payments"}, kinds=SIDE_FILES, with_topic_ids=False)
    log = max((mirror / "orders-0").glob("*.log"))
    whole, own = log.read_bytes(), [each for each in true_batches("orders", 0) if each["base"] >= int(log.stem)]
    ended = own[len(own) // 2]
    os.truncate(log, ended["pos"] + ended["size"] + 100)
    return GrownLog(file=log, whole=whole, last_offset=ended["last"])


def build_grown_mirror(spark: SparkSession, folder: Path) -> None:
    """Index it, as it was before it grew."""
    write_grown_mirror(folder / "mirror")
    run_pipeline(
        spark,
        open_archive(str(folder / "mirror"), "log_directories"),
        folder / "warehouse",
        log_start_offsets=write_log_start_offsets(folder / "log_starts.csv"),
    )
