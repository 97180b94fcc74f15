"""Test what a job prints with --quiet."""

from __future__ import annotations

import pytest

from coldlog.errors import ColdlogError
from coldlog.launch.entry_point import job_argument_parser, run_plain_job
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
