"""Test rows of runs beside writers: that the newest run of the others is found, and which files are read for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from coldlog.tables.definitions.job_runs import JOB_RUNS, JOBS_BESIDE_WRITERS
from coldlog.tables.delta import run_rows
from coldlog.tables.delta.files.table_files import TableFiles, read_file_rows
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.run_rows import read_newest_run
from contents.job_runs_table import run_row, unpack_job_runs


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of which rows were read."""
    read = list[str]()

    def counted(files: TableFiles, columns: Sequence[str], numbers: Sequence[int]) -> Iterator[dict[str, object]]:
        read.extend(files.paths[number] for number in numbers)
        return read_file_rows(files, columns, numbers)

    monkeypatch.setattr(run_rows, "read_file_rows", counted)
    return read


def append(location: str, *rows: dict[str, object]) -> None:
    assert commit_rows(location, JOB_RUNS, RowChange(added=rows)) == 0


def ended(run_id: str, job: str, started_ms: int) -> dict[str, object]:
    end = {"finished_ms": started_ms, "outcome": "succeeded"}
    return run_row(run_id, job=job, started_ms=started_ms, **end)


LATER = 2 * 10**12


@pytest.mark.parametrize("job", sorted(JOBS_BESIDE_WRITERS))
def test_runs_beside_writers_do_not_hide_the_last_run_of_the_pipeline(
    tmp_path: Path, job: str, read_files: list[str]
) -> None:
    location = unpack_job_runs(tmp_path)
    append(location, ended("pipeline", "run_pipeline", LATER))
    for number in range(3):
        append(location, ended(f"beside {number}", job, LATER + 1 + number))
    newest = read_newest_run(str(tmp_path))
    assert newest is not None
    assert newest["run_id"] == "pipeline"
    assert len(read_files) == 1


def test_newest_run_is_found_in_files_that_hold_both_kinds(tmp_path: Path, read_files: list[str]) -> None:
    location = unpack_job_runs(tmp_path)
    # As after a compaction: the second file ends later, and only with runs beside writers.
    append(location, ended("newest", "validate_tables", LATER + 5), ended("a", "copy_segments", LATER + 6))
    append(location, ended("older", "run_pipeline", LATER + 4), ended("b", "copy_segments", LATER + 9))
    newest = read_newest_run(str(tmp_path))
    assert newest is not None
    assert newest["run_id"] == "newest"
    assert len(read_files) == 2
