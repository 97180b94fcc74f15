"""Test what a job prints with --quiet and with --log-format."""

from __future__ import annotations

import json

import pytest

from coldlog.errors import ColdlogError
from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.runtime.installation import COMMAND
from coldlog.runtime.job import PlainJob


@pytest.mark.parametrize(("option", "progress"), [([], ["copying", "copy        FAILED   "]), (["--quiet"], [])])
def test_a_quiet_job_prints_results_and_errors_only(
    option: list[str], progress: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def call(job: PlainJob) -> None:
        job.console.result("7 segments")
        with job.console.stage("copy"):
            job.console.note("copying")
            raise ColdlogError("the store is down")

    assert run_plain_job(call, job_argument_parser("copy.py", ""), option) == 1
    printed = capsys.readouterr()
    assert printed.out == "7 segments\n"
    *before, last = printed.err.splitlines()
    assert [line.partition("0.0 s")[0] for line in before] == progress
    assert last == "spark-submit.sh copy: the store is down"


@pytest.mark.parametrize(
    ("failure", "arguments", "exit_code", "message", "has_traceback"),
    [
        (ColdlogError("the store is down"), [], 1, "the store is down", False),
        (ZeroDivisionError("by 0"), [], 1, "ZeroDivisionError('by 0')", True),
        (
            None,
            ["--set", "archive.url=/x"],
            2,
            f"unknown setting archive.url (--set): did you mean archive.uri? `{COMMAND} config show` lists all",
            False,
        ),
    ],
)
def test_each_line_on_standard_error_is_json_if_asked(
    failure: Exception | None,
    arguments: list[str],
    exit_code: int,
    message: str,
    has_traceback: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def call(job: PlainJob) -> None:
        job.console.result("7 segments")
        with job.console.stage("copy"):
            job.console.warn("a link is broken")
            if failure is not None:
                raise failure

    assert run_plain_job(call, job_argument_parser("copy.py", ""), ["--log-format", "json", *arguments]) == exit_code
    printed = capsys.readouterr()
    *before, last = [json.loads(line) for line in printed.err.splitlines()]
    assert (last["level"], last["program"]) == ("error", "spark-submit.sh copy")
    assert message in last["message"]
    assert ("Traceback (most recent call last)" in last.get("traceback", "")) is has_traceback
    if failure is not None:
        assert printed.out == "7 segments\n"
        assert [(line["level"], line["message"]) for line in before] == [
            ("warning", "a link is broken"),
            ("info", "copy: FAILED"),
        ]
