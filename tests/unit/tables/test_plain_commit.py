"""Test commits without Spark: what they write, what they refuse, and that no change of another writer is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.files.file_checksums import check_file, checksums_path, find_checksums
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.plain_commit import LaterWriterError, commit_rows, create_table
from coldlog.tables.delta.row_edits import RowChange
from contents.job_runs_table import actions_of, commit_of, log_path, race_commit, rows_of, run_row, unpack_job_runs

_LINKED = 0
NEWEST = 2
"""The version of the table as it was unpacked."""


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return unpack_job_runs(tmp_path)


def _change(location: str, change: RowChange, transaction: tuple[str, int] | None = None) -> int | None:
    return commit_rows(location, JOB_RUNS, change, transaction)


def _append(location: str, run_id: str, **changed: object) -> None:
    assert _change(location, RowChange(added=[run_row(run_id, **changed)])) == 0


def _contents(location: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(location).rglob("*") if path.is_file()}


def test_append_adds_its_rows_in_one_commit_that_read_nothing(runs: str) -> None:
    before = rows_of(runs)
    _append(runs, "a")
    assert rows_of(runs) == before | {"a": run_row("a")}
    (info,) = actions_of(runs, NEWEST + 1, "commitInfo")
    assert (info["isBlindAppend"], info["readVersion"], info["operation"]) == (True, NEWEST, "WRITE")
    (added,) = actions_of(runs, NEWEST + 1, "add")
    assert added["dataChange"] is True
    assert "clusteringProvider" not in added
    assert added["size"] == (Path(runs) / added["path"]).stat().st_size
    assert json.loads(added["stats"]) == {
        "numRecords": 1,
        "minValues": {"started_ms": 7, "job": "scan_segments", "outcome": "running"},
        "maxValues": {"started_ms": 7, "job": "scan_segments", "outcome": "running"},
        "nullCount": {"started_ms": 0, "job": 0, "outcome": 0},
    }
    check_log(runs)
    assert find_checksums(str(log_path(runs, NEWEST + 1))) is not None
    check_file(str(log_path(runs, NEWEST + 1)))


def test_change_rewrites_only_the_files_that_hold_matching_rows(runs: str) -> None:
    _change(runs, RowChange(added=[run_row("a"), run_row("b")]))
    _append(runs, "c", outcome="failed")
    before, added = rows_of(runs), actions_of(runs, NEWEST + 1, "add")[0]
    assert _change(runs, RowChange(where={"run_id": "a", "started_ms": 7}, values={"outcome": "killed"})) == 1
    assert rows_of(runs) == before | {"a": run_row("a", outcome="killed")}
    (removed,) = actions_of(runs, NEWEST + 3, "remove")
    assert removed.pop("deletionTimestamp") > 0
    assert removed == {
        "path": added["path"],
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": added["size"],
        "stats": '{"numRecords":2}',
    }
    assert actions_of(runs, NEWEST + 3, "commitInfo")[0]["isBlindAppend"] is False


def test_rows_that_were_looked_at_make_an_append_no_blind_one(runs: str) -> None:
    assert _change(runs, RowChange(added=[run_row("a")], where={"outcome": "running"}, values={"outcome": "?"})) == 0
    assert actions_of(runs, NEWEST + 1, "commitInfo")[0]["isBlindAppend"] is False
    assert rows_of(runs)["a"]["outcome"] == "running"


def test_change_that_matches_no_row_makes_no_commit(runs: str) -> None:
    before = _contents(runs)
    assert _change(runs, RowChange(where={"run_id": "nobody"}, values={"outcome": "killed"})) == 0
    assert _contents(runs) == before


def test_files_whose_statistics_exclude_the_rows_are_not_read(runs: str) -> None:
    _append(runs, "a", started_ms=8)
    for path in Path(runs).glob("part-00000-*.parquet"):
        path.unlink()
    assert _change(runs, RowChange(where={"run_id": "a", "started_ms": 8}, values={"outcome": "killed"})) == 1


def test_null_in_a_required_column_is_refused_and_leaves_nothing(runs: str) -> None:
    before = _contents(runs)
    with pytest.raises(ValueError, match="job_runs.outcome is required"):
        _change(runs, RowChange(added=[run_row("a", outcome=None)]))
    assert _contents(runs) == before


def test_commit_carries_its_number_and_is_refused_below_the_newest_number(runs: str) -> None:
    _change(runs, RowChange(added=[run_row("a")]), ("writer", 5))
    (transaction,) = actions_of(runs, NEWEST + 1, "txn")
    assert (transaction["appId"], transaction["version"]) == ("writer", 5)
    before = _contents(runs)
    for number in (4, 5):
        with pytest.raises(LaterWriterError, match=f"number 5 of writer, and this commit has {number}"):
            _change(runs, RowChange(added=[run_row("b")]), ("writer", number))
    assert _contents(runs) == before
    _change(runs, RowChange(added=[run_row("b")]), ("another", 1))
    _change(runs, RowChange(added=[run_row("c")]), ("writer", 6))
    assert {"a", "b", "c"} <= set(rows_of(runs))


def _protocol(**changed: object) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "protocol" in action:
            features = [*action["protocol"]["writerFeatures"], *changed.pop("more", [])]  # type: ignore[misc]
            action["protocol"] |= {"writerFeatures": features} | changed
            if action["protocol"]["minWriterVersion"] < 7:
                del action["protocol"]["writerFeatures"]

    return change


def _metadata(**changed: object) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"] |= changed

    return change


def _property(name: str, value: str) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["configuration"][name] = value

    return change


def _columns(change_columns: Callable[[list[dict[str, Any]]], object]) -> Callable[[dict[str, Any]], None]:
    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            change_columns(schema["fields"])
            action["metaData"]["schemaString"] = json.dumps(schema)

    return change


_MORE = {"name": "more", "type": "string", "nullable": True, "metadata": {}}


@pytest.mark.parametrize(
    "change",
    [
        _protocol(more=["rowTracking"]),
        _protocol(more=["inCommitTimestamp"]),
        _protocol(more=["checkConstraints"]),
        _protocol(more=["deletionVectors"], minReaderVersion=3, readerFeatures=["deletionVectors"]),
        _protocol(minWriterVersion=4),
        _protocol(minReaderVersion=2, minWriterVersion=5),
        _protocol(minReaderVersion=2),
        _metadata(partitionColumns=["job"]),
        _property("delta.appendOnly", "true"),
        _columns(lambda fields: fields.append(_MORE)),
        _columns(lambda fields: fields.pop()),
        _columns(lambda fields: fields[2].update(type="integer")),
        _columns(lambda fields: fields[3].update(nullable=False)),
        _columns(lambda fields: fields[1].update(metadata={"delta.invariants": '{"expression":"true"}'})),
    ],
)
def test_table_that_needs_more_of_its_writer_is_left_to_spark(
    runs: str, change: Callable[[dict[str, Any]], None]
) -> None:
    actions = commit_of(runs, 0)
    for action in actions:
        change(action)
    shutil.rmtree(runs)
    log_path(runs, 0).parent.mkdir(parents=True)
    log_path(runs, 0).write_text("".join(json.dumps(action) + "\n" for action in actions), encoding="utf-8")
    before = _contents(runs)
    assert _change(runs, RowChange(added=[run_row("a")])) is None
    assert _contents(runs) == before


def test_folder_without_hard_links_is_left_to_spark(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_paths: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        assert _change(runs, RowChange(added=[run_row("a")])) is None
    assert DeltaTable(runs).version() == NEWEST
    assert not list((Path(runs) / "_delta_log").glob("*.tmp")) + list((Path(runs) / "_delta_log").glob(".*.tmp"))


def _require_true_checksum(location: str) -> dict[str, Any]:
    """The version checksum of the newest version, which says of the table what its log says."""
    delta = DeltaTable(location)
    path = log_path(location, delta.version(), "crc")
    check_file(str(path))
    checksum: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    files = {name: (Path(location) / name).stat().st_size for name in (Path(uri).name for uri in delta.file_uris())}
    assert (checksum["numFiles"], checksum["tableSizeBytes"]) == (len(files), sum(files.values()))
    assert {file["path"]: file["size"] for file in checksum["allFiles"]} == files
    assert checksum["txnId"] == actions_of(location, delta.version(), "commitInfo")[0]["txnId"]
    first = {name: action for line in commit_of(location, 0) for name, action in line.items()}
    assert (checksum["metadata"], checksum["protocol"]) == (first["metaData"], first["protocol"])
    assert checksum["domainMetadata"] == [first["domainMetadata"]]
    return checksum


def _forget_checksum(location: str) -> None:
    path = log_path(location, DeltaTable(location).version(), "crc")
    path.unlink()
    Path(checksums_path(str(path))).unlink()


def test_version_checksum_says_what_the_log_says_after_each_commit(runs: str) -> None:
    for number in range(1, 4):
        _change(runs, RowChange(added=[run_row(f"r{number}")]), ("writer", number))
        _require_true_checksum(runs)
        _change(runs, RowChange(where={"run_id": f"r{number}"}, values={"outcome": "failed"}), ("other", number))
        newest = _require_true_checksum(runs)["setTransactions"]
        assert sorted((each["appId"], each["version"]) for each in newest) == [("other", number), ("writer", number)]


def test_version_checksum_is_derived_over_commits_whose_writer_was_killed_before_it(runs: str) -> None:
    for run_id in "abc":
        _append(runs, run_id)
        _forget_checksum(runs)
    _change(runs, RowChange(where={"run_id": "b"}, values={"outcome": "failed"}))
    _require_true_checksum(runs)


def test_no_version_checksum_is_derived_over_commits_of_others(runs: str) -> None:
    _forget_checksum(runs)
    _append(runs, "a")
    assert not log_path(runs, NEWEST + 1, "crc").exists()
    assert "a" in rows_of(runs)


def test_version_checksum_lists_no_more_files_than_deltas_own(runs: str) -> None:
    for number in range(51 - len(DeltaTable(runs).file_uris())):
        _append(runs, f"r{number}")
    newest = log_path(runs, DeltaTable(runs).version(), "crc")
    checksum = json.loads(newest.read_text(encoding="utf-8"))
    assert (checksum["numFiles"], "allFiles" in checksum) == (51, False)


def test_change_that_loses_a_race_starts_again_from_the_newest_version(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _change(runs, RowChange(added=[run_row("a"), run_row("b")]))
    before = rows_of(runs)
    other = RowChange(where={"run_id": "b"}, values={"outcome": "failed"})
    race_commit(monkeypatch, lambda: _change(runs, other))
    assert _change(runs, RowChange(where={"run_id": "a"}, values={"outcome": "killed"})) == 1
    assert rows_of(runs) == before | {"a": run_row("a", outcome="killed"), "b": run_row("b", outcome="failed")}
    assert actions_of(runs, NEWEST + 3, "commitInfo")[0]["readVersion"] == NEWEST + 2
    _require_true_checksum(runs)


def test_change_that_loses_a_race_to_a_later_writer_is_refused(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    race_commit(monkeypatch, lambda: _change(runs, RowChange(added=[run_row("theirs")]), ("writer", 9)))
    with pytest.raises(LaterWriterError):
        _change(runs, RowChange(added=[run_row("mine")]), ("writer", 8))
    assert "theirs" in rows_of(runs)
    assert "mine" not in rows_of(runs)


def test_checksums_that_a_lost_commit_left_are_removed(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = log_path(runs, NEWEST + 1)
    stale = Path(checksums_path(str(path)))
    race_commit(monkeypatch, lambda: stale.write_bytes(b"crc\0\0\0\2\0stale"))
    seen: list[bool] = []
    link = os.link

    def watched(source: str, target: str) -> None:
        seen.append(stale.exists())
        link(source, target)

    monkeypatch.setattr(os, "link", watched)
    _append(runs, "a")
    assert seen == [False]
    check_file(str(path))


def test_checkpoint_is_written_at_its_interval_and_keeps_all_facts(runs: str) -> None:
    for number in range(NEWEST, 10):
        _change(runs, RowChange(added=[run_row(f"r{number}")]), ("writer", number))
    assert json.loads((Path(runs) / "_delta_log" / "_last_checkpoint").read_text())["version"] == 10
    before = rows_of(runs)
    kept = pq.read_table(log_path(runs, 10, "checkpoint.parquet")).to_pylist()
    kinds = {kind for row in kept for kind, action in row.items() if action is not None}
    assert {"domainMetadata", "txn", "protocol", "metaData", "add"} <= kinds
    for version in range(10):
        log_path(runs, version).unlink()
    _append(runs, "last")
    assert rows_of(runs) == before | {"last": run_row("last")}
    check_log(runs)


def test_files_have_statistics_of_the_columns_that_cluster_their_table() -> None:
    assert [table.name for table in ALL_TABLES if not set(table.clustered_by) <= set(table.skipping_columns)] == []


def test_data_file_and_commit_are_on_the_disk_before_the_version_is_taken(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power could leave a version whose file is empty."""
    synchronized, link, fsync = list[int](), os.link, os.fsync
    found = dict[str, bool]()

    def record_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synchronized.append(os.fstat(descriptor).st_ino)

    def record_link(complete: str, path: str) -> None:
        (file,) = set(Path(runs).glob("*.parquet")) - before
        needed = {"data file": file, "commit": Path(complete), "names of data files": Path(runs)}
        found.update({name: each.stat().st_ino in synchronized for name, each in needed.items()})
        link(complete, path)
        synchronized.append(_LINKED)

    before = set(Path(runs).glob("*.parquet"))
    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "link", record_link)
    _append(runs, "a")
    assert found == {"data file": True, "commit": True, "names of data files": True}
    assert Path(runs, "_delta_log").stat().st_ino in synchronized[synchronized.index(_LINKED) :]


def test_tables_with_other_defaults_and_in_other_stores_are_left_to_spark(tmp_path: Path) -> None:
    place = str(tmp_path / "job_runs")
    for key, value in (("logRetentionDuration", "interval 3 days"), ("enableRowTracking", "true")):
        assert not create_table(place, JOB_RUNS, "", {f"delta.{key}": value})
    assert not create_table("hdfs://namenode/job_runs", JOB_RUNS, "", {})
    assert not Path(place).exists()


def test_a_table_is_created_once(tmp_path: Path) -> None:
    place = str(tmp_path / "here" / "job_runs")
    schema = json.dumps({"type": "struct", "fields": []})
    assert create_table(place, JOB_RUNS, schema, {})
    made = _contents(place)
    assert create_table(place, JOB_RUNS, schema, {})
    assert _contents(place) == made
    check_log(place)
