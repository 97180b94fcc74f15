"""Test that the suites cover every table and enum value, and that an invalid suite is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coldlog.errors import Reason, UsageError
from coldlog.index.log_start import LogStartSource
from coldlog.index.served_ranges import NotServedReason
from coldlog.model.states import IndexDepth, IndexStatus, RemoteLogSegmentState, RemotePartitionDeleteState
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.discrepancies import DiscrepancyKind
from coldlog.tables.definitions.job_runs import RunOutcome
from coldlog.upkeep.expectation_suites import EXPECTATIONS, ExpectationSeverity, load_suites

SUITES = {suite.table: suite for suite in load_suites()}


def test_every_table_has_a_suite_that_knows_its_enum_values() -> None:
    assert set(SUITES) == {table.name for table in ALL_TABLES}
    words = {
        "segments.state_is_kafkas": [state.name for state in RemoteLogSegmentState],
        "segments.index_status_is_known": [status.value for status in IndexStatus],
        "segments.index_depth_is_known": [depth.value for depth in IndexDepth],
        "segments.not_served_reason_is_known": [reason.value for reason in NotServedReason],
        "partition_metadata.log_start_source_is_known": [source.value for source in LogStartSource],
        "segment_events.state_is_kafkas": [
            *(state.name for state in RemoteLogSegmentState),
            *(state.name for state in RemotePartitionDeleteState),
        ],
        "quarantine.reason_is_known": [reason.value for reason in Reason],
        "discrepancies.kind_is_as_grave_as_told": [f"{k.value}: {k.severity.value}" for k in DiscrepancyKind],
        "job_runs.outcome_is_known": [outcome.value for outcome in RunOutcome],
        "validation_results.severity_is_known": [severity.value for severity in ExpectationSeverity],
    }
    for name, expected in words.items():
        table, _, expectation = name.partition(".")
        (found,) = (each for each in SUITES[table].expectations if each.id == expectation)
        assert sorted(found.definition["kwargs"]["value_set"]) == sorted(expected), name  # type: ignore[index]
    valid = [
        f"{before.name} to {after.name}"
        for states in (RemoteLogSegmentState, RemotePartitionDeleteState)
        for before in states
        for after in states
        if before.can_become(after)  # type: ignore[arg-type]
    ]
    (transitions,) = (each for each in SUITES["segment_events"].expectations if each.id == "transition_is_valid")
    told = set(transitions.definition["kwargs"]["value_set"])  # type: ignore[index]
    assert set(valid) - told == {"DELETE_SEGMENT_FINISHED to DELETE_SEGMENT_FINISHED"}, "announced anew, nothing else"


def _suite_files(folder: Path, text: str) -> Path:
    """Write all suites, with `text` as the suite of `segments`."""
    shutil.copytree(EXPECTATIONS, folder)
    (folder / "sql" / "rows.sql").write_text("SELECT * FROM IDENTIFIER(:segments)", encoding="utf-8")
    (folder / "segments.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('"segments"', '"other"', "the suite is named 'other'"),
        ('"view": "rows"', '"view": "lines"', "the view 'lines' of x is not in meta.views"),
        ('"critical"', '"grave"', "'grave' is not a valid"),
        ('"kwargs"', '"arguments"', "KeyError: 'kwargs'"),
        ('"rows": {', '"columns": {', "columns.sql is missing"),
        ('"id": "x"', '"id": "x", "holds": ["a", "is", "b"]', "must compare two columns"),
        ('"id": "x"', '"id": "x", "holds": ["a", "=", "b"]', "so its kwargs must be"),
        ('"id": "x"', '"id": ["x"]', "id and view of an expectation must be texts"),
        ('"view": "rows"', '"view": ["rows"]', "id and view of an expectation must be texts"),
        ('{"rows": {"where": ["topic"]}}', "[]", "meta.views is not an object"),
        ('{"rows": {"where": ["topic"]}}', '"rows"', "meta.views is not an object"),
        ('{"where": ["topic"]}', "null", "meta.views.rows is not an object"),
        ('["topic"]', "[1]", "where of rows is not a list of columns"),
        ('"rows": {', '"../sql/rows": {', "not a valid name of a query"),
        ('{"name"', "[" * 100_000 + '{"name"', "nested too deeply"),
        ('{"name"', '\ufeff{"name"', "BOM"),
    ],
)
def test_suite_that_refers_to_something_undefined_is_refused(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    text = json.dumps(
        {
            "name": "segments",
            "meta": {"views": {"rows": {"where": ["topic"]}}},
            "expectations": [
                {
                    "type": "expect_column_values_to_be_between",
                    "kwargs": {"column": "partition", "min_value": 0},
                    "severity": "critical",
                    "description": "d",
                    "meta": {"id": "x", "view": "rows"},
                }
            ],
        }
    )
    assert load_suites(_suite_files(tmp_path / "good", text))[0].expectations[0].id == "x", "segments is the first"
    assert before in text
    with pytest.raises(UsageError, match=told):
        load_suites(_suite_files(tmp_path / "bad", text.replace(before, after)))


def test_a_table_without_expectations_needs_an_empty_suite(tmp_path: Path) -> None:
    nothing = json.dumps({"name": "segments", "meta": {"views": {}}, "expectations": []})
    suite = load_suites(_suite_files(tmp_path / "expectations", nothing))[0]
    assert (suite.table, suite.views, suite.expectations) == ("segments", (), ())


def test_changed_query_changes_the_digest_of_the_suite(tmp_path: Path) -> None:
    digests = set()
    for number, end in enumerate(("", " -- another")):
        folder = tmp_path / str(number)
        shutil.copytree(EXPECTATIONS, folder)
        with (folder / "sql" / "log_start_offsets_rows.sql").open("a", encoding="utf-8") as query:
            query.write(end)
        digests.add(tuple(suite.digest for suite in load_suites(folder) if suite.table == "log_start_offsets"))
    assert len(digests) == 2


def _replace_by_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe{")


def _replace_by_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _remove_suites(folder: Path) -> None:
    for path in folder.glob("*.json"):
        path.unlink()


@pytest.mark.parametrize(
    ("damage", "name", "told"),
    [
        (_replace_by_bytes, "quarantine.json", "quarantine.json is not UTF-8"),
        (_replace_by_bytes, "sql/quarantine_rows.sql", "quarantine_rows.sql is not UTF-8"),
        (_replace_by_directory, "quarantine.json", "quarantine.json cannot be read: Is a directory"),
        (_replace_by_directory, "sql/quarantine_rows.sql", "quarantine_rows.sql cannot be read: Is a directory"),
        (_replace_by_directory, "x.json", "x.json: no such table"),
        (Path.unlink, "quarantine.json", 'quarantine.json missing: restore .*"expectations": \\[\\]'),
        (_remove_suites, ".", "holds no suite of expectations: nothing would be validated"),
        (shutil.rmtree, ".", "holds no suite of expectations: nothing would be validated"),
    ],
)
def test_suites_that_cannot_be_read_are_refused_with_file_and_cause(
    tmp_path: Path, damage: Callable[[Path], None], name: str, told: str
) -> None:
    folder = tmp_path / "expectations"
    shutil.copytree(EXPECTATIONS, folder)
    damage(folder / name)
    with pytest.raises(UsageError, match=told):
        load_suites(folder)
