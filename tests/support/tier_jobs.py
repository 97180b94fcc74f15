"""A log directory with the partition orders-0, and the settings of the jobs that copy and expire its segments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment

DAY = 86_400_000
_NOW = time.time_ns() // 1_000_000
_RECORD_COUNT = 10
"""Of a segment."""


def aged_segment(first_offset: int, age_days: float) -> Segment:
    """Build a segment whose records are that old."""
    first_ms = _NOW - int(age_days * DAY)
    records = tuple(Record(timestamp_ms=first_ms + at, value=b"v" * 30) for at in range(_RECORD_COUNT))
    return Segment(batches=(Batch(base_offset=first_offset, records=records),), index_interval_bytes=0)


def orders_arguments(directory: Path, segments: Sequence[Segment]) -> list[str]:
    """Write orders-0 below `directory`; return the arguments of a job of its tier. The last segment is the open one."""
    logs = directory / "logs"
    write_partition(logs, "orders", 0, segments)
    write_offset_checkpoint(logs / HIGH_WATERMARKS, {("orders", 0): _RECORD_COUNT * len(segments)})
    settings = {
        "broker.id": 7,
        "copy.log_directories": logs,
        "archive.uri": directory / "archive",
        "metadata.uri": directory / "metadata",
        "rlmm.config.remote.log.metadata.topic.num.partitions": 2,
        "warehouse.uri": directory / "warehouse",
    }
    return [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
