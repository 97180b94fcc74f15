"""Test merges of rows by key without Spark: what is updated, added, removed, and what is left to Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from coldlog.archive.stores.s3_client import S3Options
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta import row_edits
from coldlog.tables.delta.files.data_files import DataFileWriter
from coldlog.tables.delta.files.table_files import read_if_small, read_whole_file
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import Key, Row, RowMerge, RowRemoval
from contents.job_runs_table import actions_of, log_path, race_commit, rows_of, run_row, unpack_job_runs

NEWEST = 2
"""The version of the table as it was unpacked."""


@pytest.fixture
def runs(tmp_path: Path) -> str:
    location = unpack_job_runs(tmp_path)
    assert _merge(location, [run_row("a"), run_row("b")]) == 0
    return location


def _merge(location: str, rows: Sequence[Row], *, update: Sequence[str] = (), remove: str = "") -> int | None:
    return commit_rows(location, JOB_RUNS, RowMerge(table=JOB_RUNS, rows=rows, update=update, remove=remove))


def _is_there(location: str, version: int) -> bool:
    return log_path(location, version).exists()


def test_stored_rows_are_updated_others_added_and_marked_ones_removed(runs: str) -> None:
    before = rows_of(runs)
    marked = [
        run_row("a", outcome="failed") | {"is_gone": False},
        run_row("b") | {"is_gone": True},
        run_row("c") | {"is_gone": False},
        run_row("never there") | {"is_gone": True},
    ]
    assert _merge(runs, marked, remove="is_gone") == 2
    del before["b"]
    assert rows_of(runs) == before | {"a": run_row("a", outcome="failed"), "c": run_row("c")}
    assert not _is_there(runs, NEWEST + 3), "one commit"


def test_update_writes_its_columns_only_and_adds_nothing(runs: str) -> None:
    before = rows_of(runs)
    late: Row = {"outcome": "failed", "error": "late"}
    changed = [late | {"run_id": "a"}, late | {"run_id": "x"}]
    assert _merge(runs, changed, update=("outcome", "error")) == 1
    assert rows_of(runs) == before | {"a": run_row("a", outcome="failed", error="late")}


def test_rows_that_are_stored_already_make_no_commit(runs: str) -> None:
    assert _merge(runs, [run_row("a"), run_row("b")]) == 0
    assert _merge(runs, [{"run_id": "a", "outcome": "running"}], update=("outcome",)) == 0
    assert not _is_there(runs, NEWEST + 2)


def test_file_whose_rows_are_all_removed_gets_no_successor(runs: str) -> None:
    gone = [run_row(name) | {"is_gone": True} for name in "ab"]
    assert _merge(runs, gone, remove="is_gone") == 2
    assert not {"a", "b"} & set(rows_of(runs))
    assert not actions_of(runs, NEWEST + 2, "add")
    assert len(actions_of(runs, NEWEST + 2, "remove")) == 1


def test_files_with_many_rows_are_left_to_spark(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowMerge, "most_read_rows", 1)
    before = rows_of(runs)
    assert _merge(runs, [run_row("a", outcome="failed")]) is None
    assert rows_of(runs) == before
    assert not _is_there(runs, NEWEST + 2)


def test_files_with_many_rows_stay_as_they_are_if_they_have_none_of_the_keys(
    runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last files have one row each; the others count as large."""
    before = rows_of(runs)
    assert _merge(runs, [run_row("c")]) == 0
    assert _merge(runs, [run_row("d")]) == 0
    monkeypatch.setattr(RowMerge, "most_read_rows", 1)
    assert _merge(runs, [run_row("b2")]) == 0
    assert not actions_of(runs, NEWEST + 4, "remove")
    assert _merge(runs, [run_row("c", outcome="failed"), run_row("c2")]) == 1
    assert len(actions_of(runs, NEWEST + 5, "remove")) == 1
    assert _merge(runs, [run_row("d") | {"is_gone": True}], remove="is_gone") == 1
    after = before | {"c": run_row("c", outcome="failed"), "b2": run_row("b2"), "c2": run_row("c2")}
    assert rows_of(runs) == after
    # Two large files have a key each: together they are too large.
    assert _merge(runs, [run_row("a", outcome="failed"), run_row("c", outcome="late")]) is None
    monkeypatch.setattr(RowRemoval, "most_read_rows", 1)
    assert commit_rows(runs, JOB_RUNS, RowRemoval(rows=[{"run_id": "b2"}])) == 1
    assert commit_rows(runs, JOB_RUNS, RowRemoval(rows=[{"run_id": "b2"}])) == 0
    del after["b2"]
    assert rows_of(runs) == after


def test_only_the_keys_of_a_large_file_without_them_are_read(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _merge(runs, [run_row("c"), run_row("d")]) == 0
    read = list[Sequence[str] | None]()

    def watched(location: str, path: str, table: TableDefinition, columns: Sequence[str] | None = None) -> pa.Table:
        read.append(columns)
        return read_whole_file(location, path, table, columns)

    monkeypatch.setattr("coldlog.tables.delta.row_edits.read_whole_file", watched)
    assert _merge(runs, [run_row("e")]) == 0
    assert None in read, "small files are read whole"
    monkeypatch.setattr("coldlog.tables.delta.row_edits._KEYS_FIRST", 0)
    read.clear()
    assert _merge(runs, [run_row("f")]) == 0
    assert read
    assert None not in read
    assert _merge(runs, [run_row("c", outcome="failed")]) == 1
    assert rows_of(runs)["c"] == run_row("c", outcome="failed")


@pytest.mark.parametrize("seed", range(40))
def test_key_is_found_among_keys_that_share_its_values(seed: int) -> None:
    """A row that has each value of the key, but from different rows, is another row."""
    chance = random.Random(seed)
    schema = pa.schema([SEGMENTS.arrow_schema.field(name) for name in SEGMENTS.key])

    def some_keys(count: int) -> list[Row]:
        keys = {(chance.choice("ab"), chance.randint(0, 1), chance.randint(0, 2), "s") for _ in range(count)}
        return [dict(zip(SEGMENTS.key, key, strict=True)) for key in keys]

    stored, rows = some_keys(chance.randint(0, 4)), some_keys(chance.randint(1, 3))
    found = RowMerge(table=SEGMENTS, rows=rows).matches_any(pa.Table.from_pylist(stored, schema=schema))
    assert found == any(row in stored for row in rows)


def test_merge_that_loses_a_race_is_planned_anew(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other writer adds the row that this one would have added, and removes the one that it would have updated."""
    theirs = [run_row("c", error="theirs") | {"is_gone": False}, run_row("a") | {"is_gone": True}]
    race_commit(monkeypatch, lambda: _merge(runs, theirs, remove="is_gone"))
    before = rows_of(runs)
    assert _merge(runs, [run_row("c", outcome="failed"), run_row("a", outcome="failed")]) == 1
    assert rows_of(runs) == before | {"c": run_row("c", outcome="failed"), "a": run_row("a", outcome="failed")}


@pytest.mark.parametrize("seed", range(60))
def test_merge_of_any_rows_equals_that_of_a_map(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are spread over files by chance; each is updated, removed, added or left as it is."""
    chance = random.Random(seed)
    monkeypatch.setattr(row_edits, "_BY_COLUMNS", chance.choice((-1, 1_000)))
    names = [f"r{at}" for at in range(8)]
    rows = {name: run_row(name, outcome=chance.choice("xyz")) for name in names}
    stored = {name: row for name, row in rows.items() if chance.random() < 0.7}
    files = [[row for row in stored.values() if (int(str(row["run_id"])[1:]) * 7 + seed) % 3 == at] for at in range(3)]
    merged = [
        rows[name] | {"outcome": chance.choice("xyz"), "is_gone": chance.random() < 0.3}
        for name in chance.sample(names, chance.randint(0, 8))
    ]
    update, remove = chance.choice([("outcome",), ()]), chance.choice(["is_gone", ""])
    expected = dict(stored)
    for row in merged:
        name, after = str(row["run_id"]), {key: value for key, value in row.items() if key != "is_gone"}
        if remove and row["is_gone"]:
            expected.pop(name, None)
        elif name in stored or not update:
            expected[name] = after

    given: list[Row] | pa.Table = merged
    if chance.random() < 0.5:
        given = pa.Table.from_pylist(merged, schema=JOB_RUNS.arrow_schema.append(pa.field("is_gone", pa.bool_())))
    change, found, result = RowMerge(table=JOB_RUNS, rows=given, update=update, remove=remove), set[Key](), list[Row]()
    for file in files:
        after_change, count = change.change(pa.Table.from_pylist(file, schema=JOB_RUNS.arrow_schema), found)
        kept = after_change.to_pylist()
        result += kept
        lost = {row["run_id"] for row in file} - {row["run_id"] for row in kept}
        assert count == len(lost) + sum(row != stored[row["run_id"]] for row in kept)
    result += change.rows_to_add(found)
    assert {str(row["run_id"]): row for row in result} == expected
    assert len(result) == len(expected)


@pytest.mark.parametrize("seed", range(20))
def test_rows_with_lists_change_by_columns_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)

    def row(at: int) -> Row:
        objects = [{"kind": "log", "name": chance.choice("ab"), "size_bytes": 1} for _ in range(chance.randint(0, 2))]
        epochs = chance.choice([None, [], [{"leader_epoch": 1, "start_offset": at}]])
        changed = {"objects": objects, "segment_leader_epochs": epochs, "build_number": chance.choice([None, 1, 2])}
        return _required_values() | changed | {"topic": "t", "partition": 0, "start_offset": at, "segment_id": f"s{at}"}

    stored = pa.Table.from_pylist([row(at) for at in range(30)], schema=SEGMENTS.arrow_schema)
    wanted = [row(at) for at in chance.sample(range(40), 25)]
    update = chance.choice([("objects",), ("segment_leader_epochs", "build_number"), ()])
    results = []
    for given in (wanted, pa.Table.from_pylist(wanted, schema=SEGMENTS.arrow_schema)):
        change = RowMerge(table=SEGMENTS, rows=given, update=update)
        for most in (1_000, -1):
            monkeypatch.setattr(row_edits, "_BY_COLUMNS", most)
            found = set[Key]()
            rows, count = change.change(stored, found)
            results.append((sorted(rows.to_pylist(), key=lambda each: each["start_offset"]), count, found))
            assert rows.schema == SEGMENTS.arrow_schema
    assert all(each == results[0] for each in results)


def test_small_table_is_read_and_others_are_left_to_spark(runs: str) -> None:
    """Small: few rows, in files that need no engine."""
    rows = read_if_small(runs, JOB_RUNS, 100)
    assert rows is not None
    assert {row["run_id"]: row for row in rows.to_pylist()} == rows_of(runs)
    assert rows.schema == JOB_RUNS.arrow_schema
    assert read_if_small(runs, JOB_RUNS, rows.num_rows - 1) is None, "too many rows"
    assert read_if_small(runs, JOB_RUNS, 100, version=NEWEST) is None, "a version that is not the newest"
    assert read_if_small(runs, JOB_RUNS, 100, version=NEWEST + 1) is not None
    features = {"minReaderVersion": 3, "minWriterVersion": 7}
    vectors = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    log_path(runs, NEWEST + 2).write_text(json.dumps({"protocol": features | vectors}) + "\n", encoding="utf-8")
    assert read_if_small(runs, JOB_RUNS, 100) is None, "rows may be deleted by vectors"


def test_statistics_are_those_of_their_columns_also_behind_nested_ones(tmp_path: Path) -> None:
    """Readers skip files by them, and `segments` has lists before most of its columns."""
    known: list[Row] = [
        {"topic": "t", "partition": 3, "start_offset": 70, "end_offset": 79, "index_status": "pending"},
        {"topic": "t", "partition": 1, "start_offset": 50, "index_status": "indexed", "build_number": 9},
    ]
    rows = [_required_values() | row for row in known]
    writer = DataFileWriter(table=SEGMENTS)
    columns = pa.Table.from_pylist(rows, schema=SEGMENTS.arrow_schema)
    writer.add({name: columns.column(name).chunk(0) for name in columns.column_names})
    statistics = json.loads(writer.finish(str(tmp_path), S3Options()).statistics)
    assert statistics["minValues"] == {
        "topic": "t",
        "partition": 1,
        "start_offset": 50,
        "end_offset": 79,
        "index_status": "indexed",
        "build_number": 9,
    }
    assert statistics["maxValues"]["start_offset"] == 70
    nulls = dict.fromkeys(SEGMENTS.skipping_columns, 2) | dict.fromkeys(known[0].keys() & known[1].keys(), 0)
    assert statistics["nullCount"] == nulls | {"end_offset": 1, "build_number": 1}


def _required_values() -> Row:
    """Any value for each column of `segments` that must have one."""
    values: Row = {}
    for column in SEGMENTS.columns:
        kind = SEGMENTS.arrow_schema.field(column.name).type
        empty: object = [] if pa.types.is_list(kind) else False if pa.types.is_boolean(kind) else 0
        if column.required:
            values[column.name] = "" if kind == pa.string() else empty
    return values


def test_rows_that_equal_one_of_a_removal_in_its_columns_go(runs: str) -> None:
    before = rows_of(runs)

    def remove(*rows: Row) -> int | None:
        return commit_rows(runs, JOB_RUNS, RowRemoval(rows=rows))

    assert remove({"run_id": "a", "outcome": "failed"}, {"run_id": "b", "outcome": None}) == 0
    assert remove({"run_id": "a", "error": None}) == 0, "NULL equals nothing"
    assert not _is_there(runs, NEWEST + 2)
    assert remove({"run_id": "a", "outcome": "running"}, {"run_id": "x", "outcome": "running"}) == 1
    del before["a"]
    assert rows_of(runs) == before
    assert remove() == 0
