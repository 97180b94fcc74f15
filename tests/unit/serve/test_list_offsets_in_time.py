"""Test what the metrics of an endpoint say of questions for offsets that wait, or were not answered in time."""

from __future__ import annotations

import argparse
import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coldlog.lookups.list_offsets import LookupOptions
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.source.archived_log import Incarnation
from coldlog.runtime.job import PlainJob
from coldlog.runtime.settings_sources import load_settings
from coldlog.serve.answers.offsets import answer_list_offsets
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.context import Context
from coldlog.serve.messages import Request
from coldlog.serve.program import follow_settings
from coldlog.serve.security.rights import ALL_RIGHTS, Names, Rights
from coldlog.serve.threads import Threads
from endpoint_context import endpoint_context

_TIMED_OUT, _HOUR_MS = 7, 3_600_000


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _HangingTables:
    """They say which topics there are, and hang when they are asked for a partition."""

    has_begun: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def incarnations(self) -> list[Incarnation]:
        places = ("orders", 0), ("orders", 1), ("payments", 0)
        return [Incarnation(topic=topic, partition=each, is_current=True, topic_id="") for topic, each in places]

    def partition(self, *_: object) -> None:
        self.has_begun.set()
        self.may_end.wait()


@pytest.fixture
def tables() -> Iterator[_HangingTables]:
    hanging = _HangingTables()
    yield hanging
    hanging.may_end.set()


def _context(tables: _HangingTables, threads: Threads) -> Context:
    view = ArchiveView("memory", cast(RecordSource, SimpleNamespace(tables=tables)), LookupOptions())
    view.topics()
    others = Threads("others", 1)
    return endpoint_context(view, others, lookup_threads=threads, request_seconds=1)


def _question(*places: tuple[str, int], timeout_ms: int = 0, rights: Rights = ALL_RIGHTS) -> Request:
    topics = [
        SimpleNamespace(name=name, partitions=[SimpleNamespace(partition_index=number, timestamp=5)])
        for name, number in places
    ]
    body = SimpleNamespace(topics=topics, timeout=timedelta(milliseconds=timeout_ms))
    return Request(api_key=2, version=11, correlation_id=1, client_id=None, body=body, rights=rights)


def _errors(answer: Any) -> list[int]:
    return [int(each["error_code"]) for topic in answer["topics"] for each in topic["partitions"]]


def _expired(context: Context) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["topic"], sample.labels["partition"]): sample.value
        for metric in context.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "coldlog_serve_list_offsets_expired_total"
    }


def _waiting(context: Context) -> float | None:
    return context.metrics.registry.get_sample_value("coldlog_serve_list_offsets_waiting")


def test_late_questions_are_counted_by_partition_and_names_that_a_client_may_not_see_are_not(
    tables: _HangingTables,
) -> None:
    orders = Rights(topics=Names(literal=frozenset(["orders"])), groups=Names())
    questions = [
        _question(("orders", 1), ("orders", 0), ("nonsense", 0), ("orders", 2)),
        _question(("orders", 1), ("payments", 0), rights=orders),
    ]
    with closing(Threads("lookup", 9)) as threads:
        context = _context(tables, threads)

        async def ask() -> list[list[int]]:
            return [_errors(await answer_list_offsets(context, question)) for question in questions]

        assert asyncio.run(ask()) == [[_TIMED_OUT] * 4, [_TIMED_OUT] * 2]
    assert _expired(context) == {("orders", "1"): 2, ("orders", "0"): 1, ("", ""): 3}


def test_questions_that_wait_are_counted_and_those_refused_by_a_full_queue_have_not_expired(
    tables: _HangingTables,
) -> None:
    with closing(Threads("lookup", 1, 1)) as threads:
        context = _context(tables, threads)

        async def ask() -> list[list[int]]:
            question = _question(("orders", 0), timeout_ms=_HOUR_MS)
            waiting = [asyncio.create_task(answer_list_offsets(context, question))]
            await asyncio.to_thread(tables.has_begun.wait)
            waiting.append(asyncio.create_task(answer_list_offsets(context, question)))
            await asyncio.sleep(0)
            assert _waiting(context) == 2
            refused = _errors(await answer_list_offsets(context, question))
            assert (_waiting(context), threads.refused) == (2, 1)
            tables.may_end.set()
            return [refused, *(_errors(each) for each in await asyncio.gather(*waiting))]

        refused, *answered = asyncio.run(ask())
    assert refused == [_TIMED_OUT]
    assert answered == [[0]] * 2
    assert _waiting(context) == 0
    assert _expired(context) == {}


class _Name(str):
    """A topic's name that counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        _Name.compared += 1
        return str.__eq__(self, other)


def test_a_partition_that_is_named_again_and_again_costs_as_much_each_time(tables: _HangingTables) -> None:
    """This is done while other clients wait."""
    count = 1000
    with closing(Threads("lookup", 1)) as threads:
        question = _question(*((_Name("orders"), 0) for _ in range(count)))
        assert len(_errors(asyncio.run(answer_list_offsets(_context(tables, threads), question)))) == count
    assert 0 < _Name.compared < 10 * count


_CHANGED = (
    "remote.list.offsets.request.timeout.ms=1",
    "remote.log.offset.reader.threads=3",
    "remote.log.reader.threads=4",
    "serve.request_seconds=7",
)


def test_time_for_questions_follows_the_settings_while_the_endpoint_runs(tables: _HangingTables) -> None:
    with closing(Threads("lookup", 1)) as threads:
        context = _context(tables, threads)
        context.timeout_ms = _HOUR_MS
        changed = argparse.Namespace(env="local", set=list(_CHANGED), config=None)
        follow_settings(PlainJob(settings=load_settings("local"), arguments=changed, console=context.console), context)
        assert (threads.count, context.fetch_threads.count, context.request_seconds) == (3, 4, 7)
        assert _errors(asyncio.run(answer_list_offsets(context, _question(("orders", 0))))) == [_TIMED_OUT]
