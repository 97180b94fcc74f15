"""Test what a fetch from a file system gets while a read hangs, or no thread is free."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from builders.segment_builder import Segment
from coldlog.archive.layouts.layout import ListedSegment
from coldlog.archive.layouts.wrapped_layout import WrappedLayout
from coldlog.archive.stores import stored_file
from coldlog.archive.stores.stored_file import StoredFile
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.model.states import IndexDepth
from coldlog.records.fetch.record_source import RecordSource
from coldlog.serve.answers import fetch_reads
from coldlog.serve.answers.fetch import answer_fetch
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.context import Context
from coldlog.serve.messages import Request
from coldlog.serve.read_quota import ReadQuota
from coldlog.serve.sending import Outlet
from coldlog.serve.threads import Threads
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.system_clock import SystemClock
from endpoint_context import endpoint_context
from stores.telling_folder import forget, telling_folder
from tables.scattered_tables import write
from worlds.sidecar_world import EPOCH_MS, LIMITS, batch, sidecar_world

SECOND = 10
"""The first offset of the second segment, and the number of offsets in each."""


def _segment(first: int) -> Segment:
    offsets = range(first, first + SECOND)
    return Segment(batches=tuple(batch(at, EPOCH_MS + at, value=bytes([at]) * 5_000) for at in offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class _HookedLayout(WrappedLayout):
    """An ArchiveLayout over another; `before_read` is called with the id of each segment that is read or opened. Logs
    are files if `has_files`."""

    before_read: Callable[[str], None]
    has_files: Callable[[], bool]

    def open_log(self, segment: ListedSegment) -> StoredFile | None:
        if not self.has_files():
            return None
        self.before_read(segment.segment_id)
        return self.layout.open_log(segment)

    def read_log_range(
        self, segment: ListedSegment, position: int, length: int, until: int | None = None
    ) -> memoryview:
        self.before_read(segment.segment_id)
        return WrappedLayout.read_log_range(self, segment, position, length, until)


class _Served:
    """A partition of two segments on a file system, and pools of threads. `before_read` gets the number of the segment
    that is read."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.has_files = False
        world = sidecar_world(folder, [_segment(0), _segment(SECOND)], depths=[IndexDepth.BATCH] * 2)
        write(world.warehouse, QUARANTINE, [])
        ids = [each.segment_id for each in world.written]
        self.before_read: Callable[[int], None] = lambda _: None
        layout = _HookedLayout(
            layout=world.layout,
            before_read=lambda each: self.before_read(ids.index(each)),
            has_files=lambda: self.has_files,
        )
        self.logs = [each.log for each in world.written]
        source = opened.enter_context(closing(RecordSource(str(world.warehouse), lambda: layout, LIMITS)))
        self.view = ArchiveView(str(world.warehouse), source, LookupOptions())
        self.quota = QuotaConfig()
        self.fetch_threads, self.others = (opened.enter_context(closing(Threads("test", 3))) for _ in range(2))

    def fetch(
        self, *offsets: int, seconds: float = 3600, outlet: Outlet | None = None
    ) -> dict[int, tuple[ErrorCode, int]]:
        """Ask for the partition at several offsets in one fetch; return error and bytes of each."""

        async def ask() -> Any:
            return await answer_fetch(self._context(seconds), _request(outlet or Outlet(), *offsets))

        ((topic),) = asyncio.run(ask())["responses"]
        answers = zip(offsets, topic["partitions"], strict=True)
        return {offset: (each["error_code"], len(each["records"])) for offset, each in answers}

    def _context(self, seconds: float) -> Context:
        return endpoint_context(
            self.view,
            self.others,
            fetch_threads=self.fetch_threads,
            request_seconds=seconds,
            quota=ReadQuota(self.quota, SystemClock()),
            is_local=True,
        )


def _request(outlet: Outlet, *offsets: int) -> Request:
    partitions = [SimpleNamespace(partition=0, fetch_offset=each, partition_max_bytes=1 << 20) for each in offsets]
    topics = [SimpleNamespace(topic="orders", partitions=partitions)]
    body = SimpleNamespace(topics=topics, max_wait=timedelta(0), max_bytes=1 << 20)
    return Request(api_key=1, version=12, correlation_id=0, client_id=None, body=body, outlet=outlet)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[_Served]:
    """Such a partition, which only threads read, because there is a quota: a read that hangs may hang."""
    with ExitStack() as opened:
        found = _Served(tmp_path, opened)
        found.quota = QuotaConfig(bytes_per_second=1 << 40)
        yield found


def test_what_hangs_is_an_error_at_its_deadline_and_the_partitions_after_it_are_served(served: _Served) -> None:
    sound, may_end = served.fetch(0, SECOND), threading.Event()
    assert [error for error, _ in sound.values()] == [ErrorCode.none] * 2
    served.before_read = lambda segment: cast(None, segment == 0 and may_end.wait())
    found = served.fetch(0, SECOND, seconds=1)
    may_end.set()
    assert found == {0: (ErrorCode.kafka_storage_error, 0), SECOND: sound[SECOND]}


def test_what_is_slow_is_served_with_the_partitions_after_it(served: _Served) -> None:
    sound, is_other_read = served.fetch(0, SECOND), threading.Event()

    def wait_for_the_other(segment: int) -> None:
        """So the first read ends only if the other one does not wait for it."""
        if segment == 0:
            is_other_read.wait()
        else:
            is_other_read.set()

    served.before_read = wait_for_the_other
    assert served.fetch(0, SECOND, seconds=30) == sound


def test_a_fetch_is_served_though_no_thread_stays_free_beside_it(served: _Served) -> None:
    sound = served.fetch(0, SECOND)
    served.fetch_threads.resize(1)
    assert served.fetch(0, SECOND) == sound


def _sent(served: _Served, *offsets: int) -> tuple[dict[int, tuple[ErrorCode, int]], bytes]:
    """Ask for the partition where a thread may send the answer; return the answer, and what was sent so."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for each in (ours, theirs):
            each.setblocking(False)
        outlet = Outlet(ours.fileno)
        found, sending = served.fetch(*offsets, outlet=outlet), outlet.take()
        content = b""
        while sending is not None and len(content) < sending.size_bytes:
            sending.send()
            content += theirs.recv(1 << 16)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
    return found, content


def test_the_thread_that_has_read_everything_sends_parts_of_files(served: _Served) -> None:
    served.has_files = True
    for _ in range(100):  # Not if this machine is so busy that others help.
        found, content = _sent(served, 0, SECOND)
        if content:
            break
    assert int.from_bytes(content[:4], "big") == len(content) - 4
    logs = [log.read_bytes() for log in served.logs]
    assert found == {0: (ErrorCode.none, len(logs[0])), SECOND: (ErrorCode.none, len(logs[1]))}
    assert [content.count(log) for log in logs] == [1, 1]


def test_a_slow_answer_is_sent_once(served: _Served) -> None:
    served.has_files = True
    sound = served.fetch(0)
    served.before_read = lambda _: cast(None, threading.Event().wait(0.3))
    found, _ = _sent(served, 0)
    assert found == sound


def test_an_answer_that_others_help_to_read_is_not_sent_by_the_thread(served: _Served) -> None:
    served.has_files = True
    sound, is_other_read = served.fetch(0, SECOND), threading.Event()
    served.before_read = lambda segment: cast(None, is_other_read.wait() if segment == 0 else is_other_read.set())
    assert _sent(served, 0, SECOND) == (sound, b"")


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Served, bool]]:
    """Such a partition on a file system that tells what is in memory, if there is one: then it is True."""
    monkeypatch.setattr(stored_file, "_SETTLED_NS", 0)  # The files have the age of this test.
    monkeypatch.setattr(fetch_reads, "_PATIENCE_S", 60)  # On a busy machine, others would help to read.
    with ExitStack() as opened:
        found = opened.enter_context(telling_folder())
        folder = found or Path(opened.enter_context(TemporaryDirectory()))
        served = _Served(folder, opened)
        served.has_files = True
        yield served, found is not None


def _readers(served: _Served, *offsets: int) -> tuple[list[str], dict[int, tuple[ErrorCode, int]], bytes]:
    """Ask for the partition; return the threads that have opened logs, the answer and what was sent."""
    names = list[str]()
    served.before_read = lambda _: names.append(threading.current_thread().name)
    return names, *_sent(served, *offsets)


_LOOP, _POOL = threading.main_thread().name, "test"


def test_records_in_memory_are_sent_by_the_event_loop_and_all_others_by_a_thread(
    on_disk: tuple[_Served, bool],
) -> None:
    served, tells = on_disk
    here, twice = ([_LOOP], [_LOOP, _POOL]) if tells else ([_POOL], [_POOL])
    names, sound, content = _readers(served, 0)
    assert names == [_POOL], "the tables were not read"
    assert served.logs[0].read_bytes() in content
    assert _readers(served, 0) == (here, sound, content)
    assert _readers(served, SECOND)[0] == [_POOL], "these batches are not known yet"
    assert _readers(served, SECOND)[0] == here
    os.utime(served.logs[0])
    assert _readers(served, 0) == (here, sound, content), "it is checked again"
    forget(served.logs[0])
    assert _readers(served, 0) == (twice, sound, content), "it must be read from the disk"
    assert _readers(served, 0) == (here, sound, content)


def test_a_file_is_opened_in_the_event_loop_only_where_the_file_system_is_known(on_disk: tuple[_Served, bool]) -> None:
    served, tells = on_disk
    served.has_files = False
    served.fetch(0, SECOND)
    served.has_files = True
    assert _readers(served, 0)[0] == [_POOL]
    assert _readers(served, SECOND)[0] == [_LOOP if tells else _POOL]


def test_the_event_loop_sends_no_damaged_batch(on_disk: tuple[_Served, bool]) -> None:
    served, tells = on_disk
    _, sound, _ = _readers(served, 0, SECOND)
    with served.logs[1].open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    names, found, _ = _readers(served, 0, SECOND)
    assert names[:2] == [_LOOP if tells else _POOL] * 2
    assert found == {0: sound[0], SECOND: (ErrorCode.corrupt_message, 0)}


def test_a_large_fetch_leaves_the_event_loop_to_others(
    on_disk: tuple[_Served, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, tells = on_disk
    _readers(served, 0, SECOND)
    size = served.logs[0].stat().st_size
    for most, reader in ((2 * size, _LOOP if tells else _POOL), (2 * size - 1, _POOL)):
        monkeypatch.setattr(fetch_reads, "_MOST_BYTES", most)
        assert _readers(served, 0, SECOND)[0] == [reader] * 2


def test_a_reader_at_the_end_of_the_archive_needs_no_thread(on_disk: tuple[_Served, bool]) -> None:
    served, _ = on_disk
    end = {2 * SECOND: (ErrorCode.none, 0)}
    assert served.fetch(2 * SECOND) == end
    served.fetch_threads.close()
    served.others.close()
    assert served.fetch(2 * SECOND, seconds=1) == end


def test_a_read_quota_is_charged_once_where_the_records_are_not_in_memory(on_disk: tuple[_Served, bool]) -> None:
    served, _ = on_disk
    _, sound, _ = _readers(served, 0)
    served.quota = QuotaConfig(bytes_per_second=1 << 40)
    assert _readers(served, 0)[:2] == ([_POOL], sound)


def test_a_log_that_is_gone_is_not_waited_for_in_the_event_loop(on_disk: tuple[_Served, bool]) -> None:
    served, tells = on_disk
    _readers(served, 0)
    served.logs[0].unlink()
    names, found, _ = _readers(served, 0)
    assert names[: int(tells)] == [_LOOP] * int(tells)
    assert set(names[int(tells) :]) == {_POOL}
    assert found == {0: (ErrorCode.corrupt_message, 0)}
