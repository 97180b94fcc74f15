"""Tests below tests/unit and tests/sweep are pure: an import of Spark, a process, a socket or a sleep fails them."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

_PURE = tuple(Path(__file__).parents[1] / each for each in ("unit", "sweep"))
_REFUSED = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.connect", "socket.bind",
            "time.sleep"}  # fmt: skip
_REFUSED_MODULES = {"pyspark", "py4j", "boto3", "moto", "great_expectations"}


class _Guard:
    """Audit hooks stay as long as the process: this one acts while a pure test is collected or runs."""

    is_active = False

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.is_active:
            return
        if event in _REFUSED:
            raise AssertionError(
                f"a test of this tier must not do this: {event} {arguments[:2]}; see CONTRIBUTING.md, Tests"
            )
        if event == "import" and str(arguments[0]).partition(".")[0] in _REFUSED_MODULES:
            raise AssertionError(f"a test of this tier must not import {arguments[0]}; see CONTRIBUTING.md, Tests")


def _is_pure(node: pytest.Item | pytest.Collector) -> bool:
    return any(node.path.is_relative_to(each) for each in _PURE)


_GUARD = _Guard()
sys.addaudithook(_GUARD.hook)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Guard what a test module imports."""
    _GUARD.is_active = isinstance(collector, pytest.Module) and _is_pure(collector)
    try:
        return (yield)
    finally:
        _GUARD.is_active = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Guard a test with its fixtures."""
    _GUARD.is_active = _is_pure(item)
    try:
        return (yield)
    finally:
        _GUARD.is_active = False
