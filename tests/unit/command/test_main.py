"""Test which commands there are, and that each has help."""

from __future__ import annotations

import pytest

from coldlog.command.main import COMMANDS, JOBS, NAMED_JOBS, PROGRAMS, main
from coldlog.errors import UsageError
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
        (["lookup", "orders", "-2h"], "unrecognized arguments: -2h; did you mean '2h ago'?"),
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


def test_launch_options_take_the_short_name_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def note(words: list[str]) -> int:
        asked.append(words)
        return 0

    monkeypatch.setattr("coldlog.launch_options.main", note)
    for words in (["run"], ["build", "--master", "local[2]"], ["--master", "local[2]", "scan"], ["fetch_records"]):
        assert main(["launch-options", *words]) == 0
    assert [each[0] for each in asked] == ["run_pipeline", "build_indexes", "--master", "fetch_records"]
    assert asked[2][-1] == "scan_segments"


def test_an_error_of_a_program_has_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: list[str]) -> int:
        raise UsageError("nothing is right")

    monkeypatch.setattr("coldlog.launch_options.main", fail)
    assert main(["launch-options"]) == 2
    assert capsys.readouterr().err == "coldlog launch-options: nothing is right\n"


@pytest.mark.parametrize(
    ("time", "hint"),
    [
        ("2 hours", "did you mean '2 hours ago'? give epoch milliseconds"),
        ("5h", "did you mean '5h ago'? give epoch milliseconds"),
        ("0 latest", "give the partition as an option: latest -p 0"),
        ("0 2 hours ago", "give the partition as an option: 2 hours ago -p 0"),
        ("2 huors ago", "not a timestamp: '2 huors ago'; give seconds, minutes"),
        ("latest-tierd", "earliest-pending-upload; did you mean latest-tiered?"),
        ("9" * 20, "does not fit in 64 bits; give epoch milliseconds"),
    ],
)
def test_a_time_that_is_nearly_right_is_told_what_was_meant(
    time: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["offsets", "orders", *time.split()]) == 2
    assert hint in capsys.readouterr().err
