"""The table `job_runs` of an earlier commit's warehouse, as Spark wrote it: two versions and two files."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta import plain_commit
from coldlog.tables.delta.files.parquet_files import read_rows
from coldlog.tables.delta.log_files import LogFiles, open_log

PACKED = Path(__file__).parents[2] / "golden" / "warehouses" / "2026-11-24.tar.gz"


def unpack_job_runs(folder: Path) -> str:
    """Unpack the table; return its location."""
    with tarfile.open(PACKED) as files:
        members = [member for member in files.getmembers() if member.name.startswith("./job_runs")]
        files.extractall(folder, members, filter="data")
    return str(folder / "job_runs")


def run_row(run_id: str, **changed: object) -> dict[str, object]:
    """The row of a run that has started."""
    started = {"run_id": run_id, "job": "scan_segments", "started_ms": 7, "finished_ms": None}
    return started | {"outcome": "running", "error": None, "summary": "{}"} | changed


def rows_of(location: str) -> dict[str, dict[str, object]]:
    """All rows that a reader without Spark sees, by their run."""
    paths = [Path(uri).name for uri in DeltaTable(location).file_uris()]
    rows = [row for path in paths for row in read_rows(location, path, JOB_RUNS.column_names)]
    found = {str(row["run_id"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def log_path(location: str, version: int, ending: str = "json") -> Path:
    return Path(location) / "_delta_log" / f"{version:020d}.{ending}"


def commit_of(location: str, version: int) -> list[dict[str, Any]]:
    """The actions of a commit."""
    return [json.loads(line) for line in log_path(location, version).read_text(encoding="utf-8").splitlines()]


def actions_of(location: str, version: int, kind: str) -> list[dict[str, Any]]:
    """The actions of one kind."""
    return [action[kind] for action in commit_of(location, version) if kind in action]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RacedLog:
    """A log in which another writer acts just before the first put."""

    log: LogFiles
    others: list[Callable[[], object]]

    def read(self, name: str) -> bytes | None:
        return self.log.read(name)

    def put(self, name: str, content: bytes) -> bool:
        if self.others:
            self.others.pop()()
        return self.log.put(name, content)

    def replace(self, name: str, content: bytes) -> None:
        self.log.replace(name, content)


def race_commit(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Let another writer act between the reading of the log and the next put of `plain_commit`."""
    others = [other]
    monkeypatch.setattr(plain_commit, "open_log", lambda location: _RacedLog(log=open_log(location), others=others))
