"""Test that jobs with little work run as programs where there is no Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coldlog.runtime.installation import ROOT
from tier_jobs import DAY, aged_segment, orders_arguments


def test_segments_are_copied_expired_and_indexed_and_tables_maintained_without_java(tmp_path: Path) -> None:
    aged = [aged_segment(0, 10), aged_segment(10, 5), aged_segment(20, 1), aged_segment(30, 0)]
    arguments = [*orders_arguments(tmp_path, aged), "--set", f"retention.ms={3 * DAY}"]
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "lib"), "HOME": str(tmp_path)}
    for job, printed in (
        ("copy_segments", "3 segments copied"),
        ("run_pipeline", "3 segments indexed"),
        ("expire_segments", "2 segments deleted"),
        ("run_pipeline", "2 gone"),
        ("maintain_tables", "files compacted to"),
    ):
        command = [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *arguments]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr.count(printed)) == (0, 1), ended.stderr
