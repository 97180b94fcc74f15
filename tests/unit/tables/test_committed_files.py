"""Test commits of files that are written already, and of numbers alone: what they write, and what they refuse."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coldlog.archive.stores.s3_client import S3Options
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.files.data_files import DataFile, DataFileWriter
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.plain_commit import LaterWriterError, commit_files, commit_rows
from coldlog.tables.delta.row_edits import RowChange
from contents.job_runs_table import actions_of, commit_of, log_path, race_commit, rows_of, run_row, unpack_job_runs

NEWEST = 2
"""The version of the table as it was unpacked."""


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return unpack_job_runs(tmp_path)


def written(location: str, run_id: str) -> DataFile:
    """A file with the row of a run, which no commit names yet."""
    (row,) = pa.Table.from_pylist([run_row(run_id)], schema=JOB_RUNS.arrow_schema).to_batches()
    with closing(DataFileWriter(table=JOB_RUNS)) as writer:
        writer.add(dict(zip(row.schema.names, row.columns, strict=True)))
        return writer.finish(location, S3Options())


def test_rows_of_all_files_are_added_in_one_commit_with_its_numbers(runs: str) -> None:
    before, files = rows_of(runs), [written(runs, "a"), written(runs, "b")]
    assert rows_of(runs) == before
    assert commit_files(runs, JOB_RUNS, files, [("writer", 5), ("publish", 1)]) == NEWEST + 1
    assert rows_of(runs) == before | {"a": run_row("a"), "b": run_row("b")}
    (info,) = actions_of(runs, NEWEST + 1, "commitInfo")
    assert (info["operation"], info["isBlindAppend"], info["readVersion"]) == ("WRITE", True, NEWEST)
    assert [each["path"] for each in actions_of(runs, NEWEST + 1, "add")] == [file.path for file in files]
    numbers = {each["appId"]: each["version"] for each in actions_of(runs, NEWEST + 1, "txn")}
    assert numbers == {"writer": 5, "publish": 1}
    check_log(runs)


def test_page_that_was_changed_after_it_was_written_is_noticed_by_its_checksum(runs: str) -> None:
    file = Path(runs, written(runs, "a").path)
    chunk = pq.read_metadata(file).row_group(0).column(0)
    content = bytearray(file.read_bytes())
    content[min(chunk.data_page_offset, chunk.dictionary_page_offset or 1 << 62) + chunk.total_compressed_size - 1] ^= (
        16
    )
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(pa.BufferReader(bytes(content)), page_checksum_verification=True)


def test_without_files_only_the_numbers_are_committed(runs: str) -> None:
    before = rows_of(runs)
    assert commit_files(runs, JOB_RUNS, [], [("publish", 1)]) == NEWEST + 1
    assert rows_of(runs) == before
    assert [next(iter(action)) for action in commit_of(runs, NEWEST + 1)] == ["commitInfo", "txn"]


@pytest.mark.parametrize("number", [4, 5])
def test_number_that_is_not_above_the_newest_one_commits_no_file(runs: str, number: int) -> None:
    commit_files(runs, JOB_RUNS, [], [("writer", 5)])
    before = rows_of(runs)
    with pytest.raises(LaterWriterError, match=f"number 5 of writer, and this commit has {number}"):
        commit_files(runs, JOB_RUNS, [written(runs, "a")], [("another", 9), ("writer", number)])
    assert rows_of(runs) == before
    assert not log_path(runs, NEWEST + 2).exists()


def test_files_are_added_after_the_commit_of_another_writer(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, file = rows_of(runs), written(runs, "a")
    race_commit(monkeypatch, lambda: commit_rows(runs, JOB_RUNS, RowChange(added=[run_row("b")])))
    assert commit_files(runs, JOB_RUNS, [file], []) == NEWEST + 2
    assert rows_of(runs) == before | {"a": run_row("a"), "b": run_row("b")}


def test_number_that_another_writer_commits_meanwhile_is_refused(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(runs, "a")
    race_commit(monkeypatch, lambda: commit_files(runs, JOB_RUNS, [], [("writer", 7)]))
    with pytest.raises(LaterWriterError, match="number 7 of writer, and this commit has 7"):
        commit_files(runs, JOB_RUNS, [file], [("writer", 7)])
    assert "a" not in rows_of(runs)
