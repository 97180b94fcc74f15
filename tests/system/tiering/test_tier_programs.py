"""Test that copy_segments and expire_segments run as programs where there is no Java."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.runtime.settings_sources import REPOSITORY

NOW, DAY = time.time_ns() // 1_000_000, 86_400_000


def _segment(first: int, age_days: int) -> Segment:
    records = tuple(Record(timestamp_ms=NOW - age_days * DAY + at, value=b"v" * 30) for at in range(10))
    return Segment(batches=(Batch(base_offset=first, records=records),), index_interval_bytes=0)


def test_segments_are_copied_and_expired_by_programs_without_java(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write_partition(logs, "orders", 0, [_segment(0, 10), _segment(10, 5), _segment(20, 1), _segment(30, 0)])
    write_offset_checkpoint(logs / HIGH_WATERMARKS, {("orders", 0): 40})
    settings = {
        "broker.id": 7,
        "copy.log_directories": logs,
        "archive.uri": tmp_path / "archive",
        "metadata.uri": tmp_path / "metadata",
        "warehouse.uri": tmp_path / "warehouse",
        "rlmm.config.remote.log.metadata.topic.num.partitions": 2,
        "retention.ms": 3 * DAY,
    }
    arguments = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "lib"), "HOME": str(tmp_path)}
    for job, printed in (("copy_segments", "3 segments copied"), ("expire_segments", "2 segments deleted")):
        command = [sys.executable, str(REPOSITORY / "jobs" / f"{job}.py"), *arguments]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr.count(printed)) == (0, 1), ended.stderr
