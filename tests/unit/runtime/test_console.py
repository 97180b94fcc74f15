"""How jobs speak."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from coldlog.runtime.console import Console, counted, human_bytes, human_duration, human_timestamp, plain_table


def _console(times: Iterator[float], progress: io.StringIO) -> Console:
    return Console(progress=progress, results=io.StringIO(), clock=lambda: next(times))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_stage_is_one_line_with_its_facts_and_its_duration() -> None:
    progress = io.StringIO()
    with _console(iter([1.0, 2.25]), progress).stage("scan") as stage:
        stage.add(counted(30, "partition"), counted(1251, "segment"), human_bytes(12_943_023))
    assert progress.getvalue() == "scan        30 partitions, 1,251 segments, 12.9 MB   1.2 s\n"


def test_a_stage_that_fails_shows_failed_and_raises() -> None:
    progress = io.StringIO()
    with pytest.raises(ValueError, match="broken"), _console(iter([0.0, 1.0]), progress).stage("build"):
        raise ValueError("broken")
    assert progress.getvalue() == "build       FAILED   1.0 s\n"


def test_a_stage_in_which_the_job_is_stopped_says_so() -> None:
    progress = io.StringIO()
    with pytest.raises(KeyboardInterrupt), _console(iter([0.0, 1.0]), progress).stage("build"):
        raise KeyboardInterrupt
    assert progress.getvalue() == "build       stopped   1.0 s\n"


def test_a_terminal_shows_a_running_stage_and_then_only_its_line() -> None:
    progress = _Terminal()
    with _console(iter([0.0, 1.0]), progress).stage("build"):
        assert progress.getvalue() == "build       ..."
    assert progress.getvalue().endswith("\r\x1b[Kbuild          1.0 s\n")


def test_a_table_aligns_numbers_right_and_shows_none_as_an_empty_cell() -> None:
    rows = [("orders", 7, None, True), ("late.events", 1234, 5, False)]
    assert plain_table(["topic", "count", "offset", "ok"], rows).splitlines() == [
        "topic        count  offset  ok",
        "-----------  -----  ------  -----",
        "orders           7          true",
        "late.events   1234       5  false",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert plain_table(["topic", "count"], []).splitlines() == ["topic  count", "-----  -----"]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_999, "1.0 MB"),
        (3 * 10**18, "3000.0 PB"),
    ],
)
def test_bytes_have_a_decimal_unit(size_bytes: int, text: str) -> None:
    assert human_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 m 0 s"), (136, "2 m 16 s"), (7500, "2 h 5 m")]
)
def test_durations_are_seconds_minutes_or_hours(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


def test_timestamps_are_utc_and_those_outside_the_calendar_stay_numbers() -> None:
    assert human_timestamp(1_767_607_200_000) == "2026-01-05T10:00:00.000Z"
    assert human_timestamp(-1) == "1969-12-31T23:59:59.999Z"
    assert human_timestamp(2**63 - 1) == str(2**63 - 1)
    assert human_timestamp(None) == ""


def test_a_quiet_console_shows_warnings_only() -> None:
    progress = _Terminal()
    console = Console(progress=progress, results=io.StringIO(), is_quiet=True)
    with console.stage("build"):
        console.note("commit 1 of 2")
        console.warn("a directory cannot be listed")
    assert progress.getvalue() == "a directory cannot be listed\n"


def test_json_lines_say_when_how_grave_and_what() -> None:
    progress = _Terminal()
    console = Console(
        progress=progress, clock=iter([1.0, 2.25]).__next__, now_s=iter([1.0, 2.5, 3.0, 4.0]).__next__, is_json=True
    )
    with console.stage("scan") as stage:
        stage.add("2 partitions", "7 segments")
        console.note('reading "orders-0"\nand é')
    console.warn("a directory cannot be listed")
    console.error("coldlog run", "RuntimeError()", traceback="Traceback\nRuntimeError\n")
    assert [json.loads(line) for line in progress.getvalue().splitlines()] == [
        {"time": "1970-01-01T00:00:01.000Z", "level": "info", "message": 'reading "orders-0"\nand é'},
        {
            "time": "1970-01-01T00:00:02.500Z",
            "level": "info",
            "message": "scan: 2 partitions, 7 segments",
            "stage": "scan",
            "facts": ["2 partitions", "7 segments"],
            "seconds": 1.25,
            "failed": False,
        },
        {"time": "1970-01-01T00:00:03.000Z", "level": "warning", "message": "a directory cannot be listed"},
        {
            "time": "1970-01-01T00:00:04.000Z",
            "level": "error",
            "message": "RuntimeError()",
            "program": "coldlog run",
            "traceback": "Traceback\nRuntimeError\n",
        },
    ]


def test_a_quiet_console_writes_no_progress_as_json() -> None:
    progress = io.StringIO()
    console = Console(progress=progress, is_quiet=True, is_json=True)
    with console.stage("build"):
        console.note("commit 1 of 2")
    assert progress.getvalue() == ""
