"""Test tables that a job keeps open: they are never older than the log, and a damage behind them is still found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldlog.errors import ColdlogError
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.files.table_files import list_table_files, open_table
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.table_storage import keeping_tables_open, open_newest
from contents.job_runs_table import log_path, race_commit, rows_of, run_row, unpack_job_runs

NEWEST = 2
"""The version of the table as it was unpacked."""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[str]:
    with keeping_tables_open():
        yield unpack_job_runs(tmp_path)


def _add(location: str, run_id: str) -> None:
    assert commit_rows(location, JOB_RUNS, RowChange(added=[run_row(run_id)])) == 0


def test_a_version_is_opened_once_and_the_next_one_is_seen_at_once(runs: str) -> None:
    first = open_newest(runs)
    assert open_newest(runs) is first
    for number in range(12):
        _add(runs, str(number))
        assert open_newest(runs).version() == NEWEST + 1 + number
        assert first.version() == NEWEST, "who works on a version keeps it"
    assert rows_of(runs).keys() >= {str(number) for number in range(12)}


def test_a_commit_of_another_process_is_seen(runs: str) -> None:
    open_newest(runs)
    with keeping_tables_open():  # of another process
        _add(runs, "a")
    assert open_newest(runs).version() == NEWEST + 1


def test_a_change_that_lost_a_race_is_made_on_top_of_the_other_one(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_newest(runs)
    race_commit(monkeypatch, lambda: _add(runs, "b"))
    change = RowChange(where={"run_id": "b"}, values={"error": "e"})
    commit_rows(runs, JOB_RUNS, change)
    _add(runs, "a")
    assert rows_of(runs).keys() >= {"a", "b"}


def test_the_past_is_opened_beside_the_newest_version(runs: str) -> None:
    newest = open_newest(runs)
    then_ms = int(log_path(runs, 1).stat().st_mtime * 1000) + 1
    assert list_table_files(runs, JOB_RUNS, [], as_of_ms=then_ms).version <= NEWEST
    assert open_table(runs, JOB_RUNS, then_ms) is not newest
    assert (open_newest(runs).version(), open_newest(runs)) == (NEWEST, newest)


def test_a_damaged_commit_behind_a_checked_version_is_refused(runs: str) -> None:
    check_log(runs)
    _add(runs, "a")
    content = log_path(runs, NEWEST + 1).read_bytes()
    log_path(runs, NEWEST + 1).write_bytes(content.replace(b"job_runs", b"job_runz") + b" ")
    with pytest.raises(ColdlogError, match=f"{NEWEST + 1}.json is damaged"):
        check_log(runs)


def test_a_table_is_opened_again_after_some_minutes(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_newest(runs)
    now_s = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now_s + 301)
    assert open_newest(runs) is not first


def test_nothing_is_kept_behind_the_job(tmp_path: Path) -> None:
    location = unpack_job_runs(tmp_path)
    with keeping_tables_open():
        check_log(location)
        first = open_newest(location)
    assert open_newest(location) is not first
    newest = log_path(location, NEWEST)
    newest.write_bytes(newest.read_bytes()[:-5])
    with pytest.raises(ColdlogError, match="is damaged"):
        check_log(location)
