"""Test which runs of lookup_offsets and list_offsets have a row in job_runs before Spark starts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.launch.entry_point import job_argument_parser
from coldlog.lookups.lookup_jobs import LookupJob, add_lookup_options
from coldlog.runtime.console import Console
from coldlog.runtime.job import PlainJob
from coldlog.runtime.settings_sources import load_settings
from contents.job_runs_table import rows_of, unpack_job_runs

QUESTION = ("--topic", "orders", "--partition", "0", "--timestamp")


def start(warehouse: Path, *asked: str) -> int | None:
    """Begin the job, which would go on with Spark."""
    parser = job_argument_parser("lookup_offsets", "")
    add_lookup_options(parser)
    settings = load_settings("local", [f"warehouse.uri={warehouse}", "lookup.engine=spark"])
    console = Console(progress=io.StringIO(), results=io.StringIO())
    return LookupJob().in_process(PlainJob(settings=settings, arguments=parser.parse_args(asked), console=console))


def test_scheduled_run_that_fails_has_a_row_and_questions_and_runs_that_go_on_have_none(tmp_path: Path) -> None:
    location = unpack_job_runs(tmp_path)
    before = rows_of(location)
    for asked in (QUESTION, ("--record-run", *QUESTION)):
        assert start(tmp_path, *asked, "5") is None
    with pytest.raises(UsageError):
        start(tmp_path, *QUESTION, "soon")
    assert rows_of(location) == before
    with pytest.raises(UsageError):
        start(tmp_path, "--record-run", *QUESTION, "soon")
    (row,) = (row for run, row in rows_of(location).items() if run not in before)
    assert (row["job"], row["outcome"]) == ("lookup_offsets", "failed")
    assert "soon" in str(row["error"])
