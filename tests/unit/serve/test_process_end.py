"""Test that the end of an endpoint does not wait for a store that hangs."""

from __future__ import annotations

import threading

import pytest

from coldlog.errors import RetriableError
from coldlog.serve import process_end
from coldlog.serve.process_end import close_in_time


def test_what_hangs_or_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_end, "_CLOSE_S", 0.01)
    may_end, has_ended = threading.Event(), threading.Event()

    def hang() -> None:
        may_end.wait()
        has_ended.set()

    def fail() -> None:
        has_failed.set()
        raise RetriableError("the store does not answer")

    has_failed = threading.Event()
    close_in_time(hang)
    assert not has_ended.is_set()
    may_end.set()
    monkeypatch.undo()
    close_in_time(fail)
    assert has_failed.is_set()
