"""Fixtures and hooks of all tests; those that need Spark or S3 are in tests/support.

Hypothesis repeats the same examples in every run and keeps no database, so that a failure in CI is a failure here;
HYPOTHESIS_PROFILE=explore looks for new ones. The folder of a test below tests/ is its marker.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from coldlog.runtime.spark.spark_versions import NEWEST, installed_series
from drawn_examples import SAMPLED

pytest_plugins = ["pure_tests", "counts.counted_work", "spark_fixtures", "golden_fixtures", "s3_fixtures"]

GOLDEN = Path(__file__).parent / "golden" / "kafka-sample"

# pyspark.sql.connect, which Great Expectations imports, takes a program without a file for a doctest, and ends it; the
# processes of pytest-xdist are such programs.
if not hasattr(sys.modules["__main__"], "__file__"):
    sys.modules["__main__"].__file__ = __file__

# No deadline: the first example of a kernel compiles it.
hypothesis.settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("explore", max_examples=2000, deadline=None)
# For mutants: that a test fails is enough, its smallest example is not looked for.
hypothesis.settings.register_profile(
    "unshrunk",
    hypothesis.settings.get_profile("repeatable"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
# For `make check`.
hypothesis.settings.register_profile("sampled", hypothesis.settings.get_profile("repeatable"), max_examples=SAMPLED)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

TESTS = Path(__file__).parent
_TOO_LATE = "not begun in time"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sampled", action="store_true", help="one case of each sweep, 20 drawn examples of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Allow what PySpark before 4.2 leaves to the garbage collector: the socket of every result that it reads."""
    if config.getoption("--sampled") and "HYPOTHESIS_PROFILE" not in os.environ:
        hypothesis.settings.load_profile("sampled")
    if installed_series() is not NEWEST:
        config.addinivalue_line("filterwarnings", r"ignore:unclosed <socket\.socket:ResourceWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its folder: `-m "not system"`. Leave out what the installed Spark does not have."""
    for each in items:
        each.add_marker(each.path.relative_to(TESTS).parts[0])
    spark = installed_series()
    has = {"pushdown": spark.pushes_filters, "conditional_puts": spark.puts_conditionally}
    left_out = [each for each in items if any(each.get_closest_marker(name) and not has[name] for name in has)]
    if config.getoption("--sampled"):
        left_out += _other_cases([each for each in items if each.get_closest_marker("sweep")])
    config.hook.pytest_deselected(items=left_out)
    items[:] = [each for each in items if each not in left_out]


def _other_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """All but one case of each test: always the same one, anywhere among the cases."""
    cases: dict[str, list[pytest.Item]] = {}
    for each in items:
        cases.setdefault(each.nodeid.partition("[")[0], []).append(each)
    return [each for name, of in cases.items() for each in of if each is not random.Random(name).choice(of)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin no test after the time that CI gives (epoch seconds). If CI were killed, nobody would see the results."""
    if time.time() > float(os.environ.get("TESTS_BEGIN_UNTIL", "inf")):
        pytest.skip(_TOO_LATE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests for which there was no time."""
    late = [each.nodeid for each in terminalreporter.stats.get("skipped", ()) if _TOO_LATE in str(each.longrepr)]
    if late:
        terminalreporter.write_line(f"== warning: {len(late)} tests were not run, as there was no time: {late}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that was skipped has failed: what is missing there has to be installed."""
    report = yield
    if report.skipped and os.environ.get("CI") and _TOO_LATE not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def golden_archive() -> Path:
    """The archive that a real broker wrote."""
    return GOLDEN / "archive"


@pytest.fixture(scope="session")
def golden_truth() -> Path:
    """What that broker answered."""
    return GOLDEN / "truth"


@pytest.fixture
def kafka_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """kafka-python 3.0.12 leaves sockets that could not connect to the garbage collector: here they go with the test
    that knows of them, after the threads of its clients, which still connect."""
    tell, before = sys.unraisablehook, {*threading.enumerate()}

    def tell_others(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, ResourceWarning):
            tell(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", tell_others)
    yield
    deadline = time.monotonic() + 20
    for thread in {*threading.enumerate()} - before:
        if "kafka" in thread.name:
            thread.join(max(0, deadline - time.monotonic()))
    gc.collect()


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """An empty warehouse of the test's own."""
    return tmp_path / "warehouse"
