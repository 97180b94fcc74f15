"""Test which commands there are, and that each has help."""

from __future__ import annotations

import pytest

from coldlog.command.main import COMMANDS, JOBS, NAMED_JOBS, PROGRAMS, main
from coldlog.launch.submit import list_jobs
from coldlog.runtime.installation import ROOT


def test_every_job_is_a_command_by_its_own_name() -> None:
    assert {*NAMED_JOBS, *(job for job, _ in JOBS.values())} == {*list_jobs(ROOT / "jobs")}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    written = capsys.readouterr().out
    assert written.startswith(f"usage: coldlog {command}")
    assert f"\n    coldlog {command}" in written


def test_without_a_command_all_are_listed_and_the_exit_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    listed = capsys.readouterr().out
    assert [name for name in (*COMMANDS, *PROGRAMS, *JOBS) if f"  {name} " not in listed] == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["lookup", "--partitions", "0"], "unrecognized arguments: --partitions"),
        (["segments", "-p", "one"], "argument -p/--partition: invalid int value: 'one'"),
        (["cat"], "the following arguments are required: TOPIC"),
        (["launch-options", "--jar"], "unrecognized arguments: --jar"),
    ],
)
def test_wrong_arguments_are_one_line_that_names_the_help(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:  # of a program
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    prog = f"coldlog {arguments[0]}"
    assert (code, printed.out) == (2, "")
    assert printed.err == f"{prog}: error: {complaint}; see {prog} --help\n"
