"""Test what a kill leaves at each step of a commit without Spark: the table before it or after it, nothing between.

Before each call of the system that names a file, the table is copied. The copy is what a kill at that moment leaves.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.files.file_checksums import checksums_path
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from contents.job_runs_table import log_path, rows_of, run_row, unpack_job_runs

_STEPS = {"open", "os.link", "os.rename", "os.remove", "os.truncate"}


class _Copies:
    """Copies a table at each step while `source` is set. An audit hook stays as long as the process."""

    source: Path | None = None
    target: Path
    count = 0

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.source is None or event not in _STEPS or not str(arguments[0]).startswith(str(self.source)):
            return
        source, self.source = self.source, None
        shutil.copytree(source, self.target / str(self.count))
        self.count += 1
        self.source = source


_COPIES = _Copies()
sys.addaudithook(_COPIES.hook)


@contextmanager
def _copying(location: str, target: Path) -> Iterator[None]:
    _COPIES.source, _COPIES.target, _COPIES.count = Path(location), target, 0
    try:
        yield
    finally:
        _COPIES.source = None


@pytest.mark.parametrize("commits_before", [0, 7], ids=["a plain version", "a version with a checkpoint"])
def test_killed_commit_leaves_the_table_before_or_after_it(tmp_path: Path, commits_before: int) -> None:
    location = unpack_job_runs(tmp_path)
    for number in range(commits_before):
        commit_rows(location, JOB_RUNS, RowChange(added=[run_row(f"r{number}")]))
    commit_rows(location, JOB_RUNS, RowChange(added=[run_row("lost", outcome="killed")]))
    before, version = rows_of(location), DeltaTable(location).version()
    if commits_before:
        version += 1
        commit_rows(location, JOB_RUNS, RowChange(where={"run_id": "lost"}, values={"outcome": "running"}))
        before = rows_of(location)
    # Of a version that was lost: they fit no version checksum that is written now.
    Path(checksums_path(str(log_path(location, version + 1, "crc")))).write_bytes(b"crc\0\0\0\2\0")
    change = RowChange(added=[run_row("a")], where={"run_id": "lost"}, values={"error": "killed"})
    with _copying(location, tmp_path / "copies"):
        commit_rows(location, JOB_RUNS, change)
    after = rows_of(location)
    assert after["lost"]["error"] == "killed"
    found = []
    for number in range(_COPIES.count):
        copy = str(tmp_path / "copies" / str(number))
        check_log(copy)
        found.append(rows_of(copy) == after)
        assert found[-1] or rows_of(copy) == before
        assert DeltaTable(copy).version() == version + found[-1]
        # The next run goes on in it.
        commit_rows(copy, JOB_RUNS, RowChange(added=[run_row("next")]))
        assert rows_of(copy) == (after if found[-1] else before) | {"next": run_row("next")}
        check_log(copy)
    assert found == sorted(found)
    assert set(found) == {False, True}
