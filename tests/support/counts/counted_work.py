"""Count the pipelines and programs that tests start. A tier that starts more than its ceiling fails.

A JVM of Spark is a program. Times depend on the machine, counts do not. A whole tier prints its counts at the end; a
narrowed run (-k, -m, a file) prints them without a ceiling. To start one more, raise the ceiling in `CEILINGS` and say
why in the commit.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

CEILINGS = {
    ("tests/unit", "tests/sweep"): {"pipelines": 0, "programs": 0},
    ("tests/spark", "tests/s3"): {"pipelines": 210, "programs": 36},
    ("tests/system",): {"pipelines": 9, "programs": 113},
}
"""By the folders of a run with two processes: at most so many of each. Each process of pytest-xdist starts some
programs at the first file that needs them: the system tier starts about 107, Spark's and S3's 27 to 31. The 193 to 202
pipelines of Spark and S3 are so many as some worlds are made by one process or by both. The system tier makes a world
if it runs first. More processes may start more."""
_PROCESSES = 2

COUNTED: Counter[str] = Counter()
"""Of this process; `pytest_testnodedown` adds those of pytest-xdist's."""
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def counting(name: str, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """`function`, each call counted."""

    def counted(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        COUNTED[name] += 1
        return function(*args, **kwargs)

    return counted


class _Now:
    is_in_test = False


def _count_program(event: str, _arguments: tuple[object, ...]) -> None:
    if event != "subprocess.Popen" or not _Now.is_in_test:
        return
    COUNTED["programs"] += 1


sys.addaudithook(_count_program)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Count what a test starts with its fixtures, not what pytest itself does."""
    _Now.is_in_test = True
    try:
        return (yield)
    finally:
        _Now.is_in_test = False


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """One of pytest-xdist's processes has ended."""
    COUNTED.update(getattr(node, "workeroutput", {}).get("counted", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the counts to the process that collects them, which compares."""
    workeroutput = getattr(session.config, "workeroutput", None)
    if workeroutput is not None:
        workeroutput["counted"] = dict(COUNTED)
    elif _excess(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the counts, and which are too many."""
    counts = ", ".join(f"{count} {name}" for name, count in sorted(COUNTED.items())) or "nothing"
    terminalreporter.write_line(f"started by these tests: {counts}")
    for line in _excess(config):
        terminalreporter.write_line(line, red=True)


def _excess(config: pytest.Config) -> list[str]:
    if config.option.keyword or config.option.markexpr or config.option.collectonly:
        return []
    folders = tuple(str(Path(each)) for each in config.args)
    share = max(1, (config.getoption("numprocesses", None) or 1) / _PROCESSES)
    ceilings = {name: int(ceiling * share) for name, ceiling in CEILINGS.get(folders, {}).items()}
    return [
        f"too many {name}: {COUNTED[name]}, at most {ceiling} (CEILINGS in tests/support/counts/counted_work.py)"
        for name, ceiling in ceilings.items()
        if COUNTED[name] > ceiling
    ]
