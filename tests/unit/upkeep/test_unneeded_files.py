"""Test which files and log entries of a table maintenance removes: those that no version of the last hours needs."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from coldlog.errors import RetriableError
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.files.file_checksums import write_checksums
from coldlog.tables.delta.log_check import check_log, create_checkpoint
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.upkeep.unneeded_files import remove_old_entries, remove_unneeded
from contents.job_runs_table import rows_of, run_row, unpack_job_runs

_COMMITS = 24
_HOUR_MS = 3_600_000
_NOW_MS = 2_000_000_000_000
"""In the future, so that no checkpoint leaves out a removed file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A table that changed every hour, and the files of each version."""

    location: str
    files: dict[int, set[str]]

    def written_ms(self, version: int) -> int:
        return _NOW_MS - (max(self.files) - version) * _HOUR_MS

    def since(self, moment_ms: int) -> list[int]:
        """The versions that were the newest one at that moment or later."""
        first = max((each for each in self.files if self.written_ms(each) <= moment_ms), default=0)
        return [each for each in self.files if each >= first]

    def copy(self, folder: Path) -> str:
        return str(shutil.copytree(self.location, folder))


@pytest.fixture(scope="module", params=(1, 2))
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> History:
    location, random = unpack_job_runs(tmp_path_factory.mktemp("history")), Random(request.param)
    first = DeltaTable(location).version() + 1
    history = History(location=location, files={each: set() for each in range(first + _COMMITS)})
    for version in range(first):
        _date(history, version)
    with pytest.MonkeyPatch.context() as patch:
        for version in range(first, first + _COMMITS):
            patch.setattr("time.time_ns", lambda at=version: history.written_ms(at) * 1_000_000)
            change = RowChange(added=[run_row(f"run {version}")])
            if random.random() < 0.6:
                known = sorted(rows_of(location))
                change = RowChange(where={"run_id": random.choice(known)}, values={"error": str(version)})
            commit_rows(location, JOB_RUNS, change)
            _date(history, version)
    history.files.update((each, _files_of(location, each)) for each in history.files)
    create_checkpoint(DeltaTable(location), location)
    return history


def _files_of(location: str, version: int | None = None) -> set[str]:
    return set(pa.table(DeltaTable(location, version=version).get_add_actions()).column("path").to_pylist())


def _date(history: History, version: int) -> None:
    """Give a commit, the files that it has written, and those that it has removed, their times."""
    written_ms, commit = history.written_ms(version), Path(history.location, "_delta_log", f"{version:020d}.json")
    actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    for action in actions:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] = written_ms
        if "add" in action:
            _set_time(Path(history.location, action["add"]["path"]), written_ms)
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
    write_checksums(str(commit))
    _set_time(commit, written_ms)


def _set_time(file: Path, written_ms: int) -> None:
    os.utime(file, (written_ms / 1000, written_ms / 1000))


def _leave_behind(location: str, name: str, written_ms: int) -> None:
    """A file that is part of no version."""
    file = Path(location, name)
    file.write_bytes(b"x" * 100)
    _set_time(file, written_ms)


@pytest.mark.parametrize("hours", [0, 1, 3, 8, 15, 22, 400])
def test_files_of_all_versions_since_then_stay_and_others_go(history: History, tmp_path: Path, hours: int) -> None:
    location, moment_ms = history.copy(tmp_path / "table"), _NOW_MS - hours * _HOUR_MS - 1
    needed = set().union(*(history.files[each] for each in history.since(moment_ms)))
    others = {"notes.txt", ".hidden.parquet", "_other.parquet", "not-committed-yet.parquet"}
    for name in others - {"not-committed-yet.parquet"}:
        _leave_behind(location, name, moment_ms - 500 * _HOUR_MS)
    _leave_behind(location, "not-committed-yet.parquet", moment_ms + 1)
    _leave_behind(location, "of-a-killed-job.parquet", moment_ms - 1)
    before = _names(location)
    count, size_bytes = remove_unneeded(location, moment_ms)
    left = _names(location)
    assert left == {*needed, *others}
    assert (count, size_bytes >= 100 * count) == (len(before - left), True)
    assert not [name for name in os.listdir(location) if name.endswith(".crc") and name[1:-4] not in left]
    assert rows_of(location) == rows_of(history.location)
    assert remove_unneeded(location, moment_ms) == (0, 0)


def _names(location: str) -> set[str]:
    return {name for name in os.listdir(location) if not name.endswith(".crc") and Path(location, name).is_file()}


@pytest.mark.parametrize("hours", [0, 1, 4, 8, 15, 22, 400])
def test_every_version_since_then_can_be_opened_without_the_older_entries(
    history: History, tmp_path: Path, hours: int
) -> None:
    location, moment_ms = history.copy(tmp_path / "table"), _NOW_MS - hours * _HOUR_MS - 1
    kept = history.since(moment_ms)
    log = Path(location, "_delta_log")
    checkpoints = [int(each.name[:20]) for each in log.glob("*.checkpoint.parquet")]
    remove_old_entries(location, moment_ms)
    check_log(location)
    for version in kept:
        assert _files_of(location, version) == history.files[version], version
        check_log(location, version)
    base = max((each for each in checkpoints if each <= kept[0]), default=0)
    assert min(int(found[1]) for name in os.listdir(log) if (found := re.match(r"\.?([0-9]{20})", name))) == base
    assert _files_of(location) == history.files[max(history.files)]


def test_without_a_checkpoint_that_names_removed_files_nothing_is_removed(history: History, tmp_path: Path) -> None:
    location = history.copy(tmp_path / "table")
    for name in ("_last_checkpoint", "._last_checkpoint.crc"):
        Path(location, "_delta_log", name).unlink(missing_ok=True)
    before = _names(location)
    assert remove_unneeded(location, _NOW_MS + _HOUR_MS) == (0, 0)
    assert _names(location) == before


def test_a_file_that_cannot_be_removed_is_named_with_what_to_do(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = history.copy(tmp_path / "table")

    def refuse(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("coldlog.upkeep.unneeded_files.os.unlink", refuse)
    with pytest.raises(RetriableError, match="cannot be removed: Permission denied; give this user the right"):
        remove_unneeded(location, _NOW_MS + _HOUR_MS)
