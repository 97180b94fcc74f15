"""What do clients get while more of them ask for offsets than may wait?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

from coldlog.model.list_offsets import SpecialTimestamp
from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import READERS
from endpoint.support.raw_client import connected, fetch, list_offsets, message
from endpoint.support.truth import true_records
from endpoint.test_metrics import metric_samples, metrics_address
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket

_TIME_MS, _OFFSET = 1_700_042_400_000, 2592
_PATIENCE_S = 60
_HANG_S, _TIMED_OUT = 5, 7
_SETTINGS = (
    "remote.log.offset.reader.threads=1",
    "remote.log.offset.read.max.pending.tasks=1",
    "serve.metrics=127.0.0.1:0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Busy:
    """An endpoint that may be given more questions than it takes."""

    endpoint: Endpoint
    store: S3Proxy
    pool: ThreadPoolExecutor
    asked: list[Future[int]] = field(default_factory=list)

    def fill(self) -> None:
        """Let one question hang and another wait."""
        self.store.forget()
        self.store.strikes = lambda request: request.is_get and "/time_index/" in request.path
        self.store.faults = [Fault(hangs=True)] * 1000
        self.asked.append(self.pool.submit(self.ask))
        self._wait_for_hang()
        self.asked.append(self.pool.submit(self.ask))
        self._wait_for("queue_size", "lookup", value=1)

    def fill_until_one_is_refused(self) -> None:
        """Let the store answer again when the third one is refused."""
        self.fill()
        self.asked.append(self.pool.submit(self._empty))

    def ask(self) -> int:
        """Ask for an offset; return it, or the error as a negative number."""
        with connected(self.endpoint.port) as client:
            answer = client.ask(2, 11, list_offsets([("orders", 0, _TIME_MS)], timeout_ms=_PATIENCE_S * 1000))
        found = answer.topics[0].partitions[0]
        return -int(found.error_code) if found.error_code else int(found.offset)

    def _wait_for(self, *name: str, value: float) -> None:
        """Wait until a metric has a value, or a higher one."""
        deadline = time.monotonic() + _PATIENCE_S
        while metric_samples(metrics_address(self.endpoint)).get(name, 0) < value:
            assert time.monotonic() < deadline, f"{name} is below {value}"
            time.sleep(0.02)

    def _wait_for_hang(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not any("/time_index/" in request.path for request in self.store.gets):
            assert time.monotonic() < deadline, "nothing hangs"
            time.sleep(0.02)

    def _empty(self) -> int:
        self._wait_for("queue_full_total", "lookup", value=1)
        self.store.begin()
        return _OFFSET


@pytest.fixture
def busy(golden_bucket: Bucket, golden_archive: Path, s3_access: S3Proxy, tmp_path: Path) -> Iterator[_Busy]:
    """The sample's tables in a bucket, a thread for questions, and room for one that waits."""
    with (
        serving(tmp_path / "notes", golden_bucket.uri("warehouse"), golden_archive, *_SETTINGS) as endpoint,
        ThreadPoolExecutor(4) as pool,
    ):
        yield _Busy(endpoint=endpoint, store=s3_access, pool=pool)


def _ask_librdkafka(address: str, fill: Callable[[], None]) -> int:
    """It asks again a few times; after that its application has to."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "unused"})
    consumer.get_watermark_offsets(confluent_kafka.TopicPartition("orders", 0), timeout=_PATIENCE_S)
    fill()
    found, errors = list[int](), set[int]()
    while not found:
        try:
            asked = [confluent_kafka.TopicPartition("orders", 0, _TIME_MS)]
            answered = consumer.offsets_for_times(asked, timeout=_PATIENCE_S)
            errors |= {each.error.code() for each in answered if each.error is not None}
            found = [each.offset for each in answered if each.error is None]
        except confluent_kafka.KafkaException as refused:
            errors.add(refused.args[0].code())
    consumer.close()
    assert errors <= {_TIMED_OUT}
    return found[0]


def _ask_kafka_python(address: str, fill: Callable[[], None]) -> int:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address)
    place = kafka.TopicPartition("orders", 0)
    consumer.end_offsets([place])
    fill()
    found = consumer.offsets_for_times({place: _TIME_MS})[place]
    consumer.close()
    return int(found.offset)


def _ask_aiokafka(address: str, fill: Callable[[], None]) -> int:
    async def ask() -> int:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=address) as consumer:
            place = aiokafka.TopicPartition("orders", 0)
            await consumer.end_offsets([place])
            fill()
            return int((await consumer.offsets_for_times({place: _TIME_MS}))[place].offset)

    return asyncio.run(ask())


def test_records_and_metadata_are_answered_while_all_threads_for_questions_are_taken(busy: _Busy) -> None:
    later = list_offsets([("late.events", 0, 2**62)])
    with connected(busy.endpoint.port) as client:
        client.ask(2, 11, later)
    busy.fill()
    with connected(busy.endpoint.port) as client:
        client.connection.settimeout(_HANG_S)
        (topic,) = client.ask(1, 12, fetch(12, [("late.events", 0, 0)])).responses
        assert (topic.partitions[0].error_code, bool(topic.partitions[0].records)) == (0, True)
        end = client.ask(2, 11, list_offsets([("orders", 0, int(SpecialTimestamp.LATEST))])).topics[0].partitions[0]
        assert (end.error_code, end.offset) == (0, 3953)
        known = client.ask(2, 11, later).topics[0].partitions[0]
        assert (known.error_code, known.offset) == (0, -1), "needs no thread, because nothing must be read for it"
        assert client.ask(
            3, 12, message(3, 12, "MetadataRequest", topics=None, include_topic_authorized_operations=False)
        ).topics
    busy.store.begin()
    assert [each.result() for each in busy.asked] == [_OFFSET] * 2


@pytest.mark.parametrize("ask", [_ask_librdkafka, _ask_kafka_python, _ask_aiokafka])
def test_a_client_whose_question_is_refused_asks_again(
    busy: _Busy, ask: Callable[[str, Callable[[], None]], int]
) -> None:
    assert ask(busy.endpoint.address, busy.fill_until_one_is_refused) == _OFFSET
    assert [each.result() for each in busy.asked] == [_OFFSET] * 3, "those that waited have their answers"
    assert "remote.log.offset.read.max.pending.tasks" in busy.endpoint.said()


@pytest.mark.parametrize("client", READERS)
def test_clients_that_start_while_questions_are_refused_read_on_after_it(busy: _Busy, client: str) -> None:
    place = "late.events", 0
    busy.fill()
    assert busy.ask() == -_TIMED_OUT
    threading.Timer(_HANG_S, busy.store.begin).start()
    assert READERS[client](busy.endpoint.address, [place], "read_uncommitted")[place] == true_records(
        place, "read_uncommitted"
    )
    assert [each.result() for each in busy.asked] == [_OFFSET] * 2
