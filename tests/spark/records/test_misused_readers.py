"""Test that wrong arguments, closed readers and forked processes are refused, and that no request ends a thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.fetcher import RecordFetcher
from coldlog.model.fetch import FetchAnswer, FetchedRecords, FetchRequest
from coldlog.reader import OffsetReader
from coldlog.records.fetch.fetch_pool import FetchPool
from coldlog.records.fetch.pool_fetch import PoolOptions
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slices import LogSlice
from coldlog.tiering.system_clock import SystemClock
from fetching import LIMITS

REQUEST = FetchRequest(topic="orders", partition=0, offset=2592)


class Panic(BaseException):
    """As pyo3's PanicException, which is no Exception."""


class ClockThatFailsOnce(SystemClock):
    """A clock that fails in a thread of the pool, once `is_armed` is set."""

    is_armed = False

    def monotonic_ms(self) -> int:
        if self.is_armed and threading.current_thread().name.startswith("coldlog-reader"):
            self.is_armed = False
            raise OverflowError("the clock is wrong")
        return SystemClock.monotonic_ms(self)


class PanickingSource(RecordSource):
    """A source that panics for one topic."""

    def plan(self, request: FetchRequest) -> LogSlice | FetchAnswer:
        if request.topic == "panics":
            raise Panic(str(request))
        return RecordSource.plan(self, request)


@pytest.fixture
def source(golden_uri: str, golden_archive: Path) -> Iterator[RecordSource]:
    opened = PanickingSource(golden_uri, lambda: open_archive(str(golden_archive), "local_tiered_storage"), LIMITS)
    yield opened
    opened.close()


def _threads() -> set[str]:
    return {each.name for each in threading.enumerate() if each.name.startswith("coldlog-reader")}


def _unchecked(name: str, value: object) -> FetchRequest:
    request = FetchRequest(topic="orders", partition=0, offset=2592)
    object.__setattr__(request, name, value)
    return request


def _fetch_again(pool: FetchPool) -> FetchAnswer:
    """Fetch until no error of the clock is the answer."""
    while True:
        with suppress(OverflowError):
            return pool.fetch_records(REQUEST)


def test_no_thread_of_a_pool_ends_by_a_request(source: RecordSource) -> None:
    clock = ClockThatFailsOnce()
    with FetchPool(source, PoolOptions(threads=2), clock) as pool:
        threads = _threads()
        for _ in range(3):
            with pytest.raises(TypeError, match="unhashable"):
                pool.submit(_unchecked("topic", ["orders"]))
            assert isinstance(pool.fetch_records(_unchecked("timeout_ms", 2**63 - 1)), FetchedRecords)
            with pytest.raises(Panic, match="panics-0 at offset 0"):
                pool.fetch_records(FetchRequest(topic="panics", partition=0, offset=0))
            with pytest.raises((TypeError, ValueError)):
                pool.fetch_records(_unchecked("offset", "first"))
        for _ in range(3):
            clock.is_armed = True
            while clock.is_armed:
                _fetch_again(pool)
        assert isinstance(_fetch_again(pool), FetchedRecords)
        assert _threads() == threads
        assert len(threads) == 3
        assert (pool.pending_count, pool.running_count) == (0, 0)


@pytest.mark.parametrize(
    ("topic", "partition", "timestamp_ms", "error"),
    [
        ("\ud800", 0, 5, "not the name of a topic: .*: not UTF-8"),
        (["orders"], 0, 5, "not the name of a topic"),
        ("orders", True, 5, "partition is True: expected a whole number"),
        ("orders", 2**31, 5, "partition is 2147483648: expected -2147483648 to 2147483647"),
        ("orders", 0, True, "timestamp_ms is True: expected a whole number"),
        ("orders", 0, 2**63, "timestamp_ms is 9223372036854775808: expected"),
    ],
)
def test_arguments_that_no_partition_has_are_refused(
    golden_uri: str, topic: str, partition: int, timestamp_ms: int, error: str
) -> None:
    with OffsetReader(golden_uri) as reader:
        with pytest.raises(UsageError, match=error):
            reader.offset_for_timestamp(topic, partition, timestamp_ms)
        with pytest.raises(UsageError, match=r"^request 0 is not \(topic, partition, timestamp_ms\)"):
            reader.list_offsets([(topic, partition, timestamp_ms)])
        if topic != "orders":
            with pytest.raises(UsageError, match=error):
                reader.partitions(topic)


def test_first_wrong_request_of_many_is_named(golden_uri: str) -> None:
    with OffsetReader(golden_uri) as reader:
        for number in range(16):
            requests: list[tuple[object, ...]] = [("orders", 0, 5)] * 17
            requests[number] = requests[16] = ("orders", "zero", 5)
            with pytest.raises(UsageError, match=f"^request {number} is not"):
                reader.list_offsets(requests)


@pytest.mark.parametrize("uri", [None, 7, b"warehouse", "w\0"])
def test_what_is_no_uri_of_a_warehouse_is_refused(uri: str) -> None:
    with pytest.raises(UsageError, match="not the uri of a warehouse"):
        OffsetReader(uri)


def test_a_closed_reader_or_fetcher_says_that_it_is_closed(golden_uri: str, source: RecordSource) -> None:
    reader = OffsetReader(golden_uri)
    with reader:
        assert reader.partitions("orders") == [0]
    for ask in (
        lambda: reader.earliest_offset("orders", 0),
        lambda: reader.list_offsets([("orders", 0, -2)]),
        lambda: reader.partitions("orders"),
        reader.refresh,
    ):
        with pytest.raises(UsageError, match=f"the reader of {golden_uri} is closed; open it again"):
            ask()
    reader.close()
    fetcher = RecordFetcher(source)
    with fetcher:
        assert isinstance(fetcher.fetch_records("orders", 0, 2592), FetchedRecords)
    for fetch in (
        lambda: fetcher.fetch_records("orders", 0, 2592),
        lambda: fetcher.partition_ends("orders", 0),
        fetcher.refresh,
    ):
        with pytest.raises(UsageError, match=f"the fetcher of {golden_uri} is closed; open it again"):
            fetch()


_FORKED = """
import os, sys
from coldlog.errors import UsageError
from coldlog.fetcher import RecordFetcher, open_pool, open_fetcher
from coldlog.model.fetch import FetchRequest
from coldlog.reader import OffsetReader
uri, archive = sys.argv[1:]
settings = [f"warehouse.uri={uri}", f"archive.uri={archive}"]

def in_a_fork(ask):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            print(ask())
        except UsageError as refused:
            print("refused:", refused)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)

in_a_fork(lambda: OffsetReader(uri).latest_tiered_offset("orders", 0))
with OffsetReader(uri) as reader, open_fetcher(settings) as fetcher, open_pool(settings) as pool:
    in_a_fork(lambda: reader.latest_tiered_offset("orders", 0))
    in_a_fork(lambda: reader.close())
    in_a_fork(lambda: reader.refresh())
    in_a_fork(lambda: fetcher.fetch_records("orders", 0, 2592))
    in_a_fork(lambda: pool.submit(FetchRequest(topic="orders", partition=0, offset=2592)))
    in_a_fork(lambda: OffsetReader(uri))
    print(reader.latest_tiered_offset("orders", 0), "pyspark" in sys.modules)
"""


def test_neither_spark_nor_java_is_needed_and_a_forked_process_is_refused_unless_its_parent_opened_no_table(
    golden_uri: str, golden_archive: Path
) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", _FORKED, golden_uri, str(golden_archive)],
        env={"PATH": "/nonexistent"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    before, reader, closed, refreshed, fetcher, pool, opened, after = finished.stdout.splitlines()
    assert (before, closed, after, finished.stderr) == ("3952", "None", "3952 False", "")
    for refused, name in (
        (reader, f"the reader of {golden_uri}"),
        (refreshed, f"the reader of {golden_uri}"),
        (fetcher, f"the fetcher of {golden_uri}"),
        (pool, "the pool"),
        (opened, "a table"),
    ):
        assert refused.startswith(f"refused: {name} was opened in process ")
        assert refused.endswith("start processes with spawn or forkserver, and open the tables there")
