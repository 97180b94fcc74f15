"""Test what SIGINT and SIGTERM do to a job without Spark."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from coldlog.errors import ColdlogError
from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.launch.stop_signals import StoppedBySignal, StopSignals
from coldlog.runtime.job import PlainJob


@pytest.fixture(autouse=True)
def _usual_handlers() -> Iterator[None]:
    """Those of a program that a terminal starts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _exit_code(call: Callable[[PlainJob], None]) -> int:
    return run_plain_job(call, job_argument_parser("stop.py", ""), [])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_ends_the_job_cleanly_with_one_line(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned_up = []

    def call(_: PlainJob) -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # `timeout` sends it twice
            cleaned_up.append(number)

    assert _exit_code(call) == code
    assert capsys.readouterr().err == f"spark-submit.sh stop: stopped by {number.name}\n"
    assert cleaned_up == [number]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("failure", "what"), [(ColdlogError("the store is down"), "the store is down"), (KeyError(7), "KeyError")]
)
def test_a_failure_after_a_stop_is_on_its_line(
    failure: Exception, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(_: PlainJob) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            raise failure

    assert _exit_code(call) == 143
    assert capsys.readouterr().err == f"spark-submit.sh stop: stopped by SIGTERM; then: {what}\n"


def test_a_signal_that_was_ignored_from_the_start_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = StopSignals()
    with stop.listening():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as pyspark does
        with stop.calling_before(lambda: None):
            signal.raise_signal(signal.SIGINT)
    assert stop.stopped is None


def test_a_later_signal_interrupts_a_cleanup_that_hangs_and_the_first_one_counts() -> None:
    now_s = [0.0]
    stop = StopSignals(clock=lambda: now_s[0])
    with stop.listening():
        with pytest.raises(StoppedBySignal):
            signal.raise_signal(signal.SIGTERM)
        now_s[0] = 0.9
        signal.raise_signal(signal.SIGTERM)
        now_s[0] = 2.0
        with pytest.raises(StoppedBySignal, match="SIGINT"):
            signal.raise_signal(signal.SIGINT)
    assert stop.stopped is not None
    assert stop.stopped.exit_code == 143
