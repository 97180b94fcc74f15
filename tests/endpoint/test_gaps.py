"""Does a client get an error at a gap, or the records after it, and never a jump that it does not see?

The archive is that of `written_topics`: segments are missing (gap, undecided), in quarantine (bad, bad-end), or have
lost some batches (torn).
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

from broker.tiered_broker import KAFKA_VERSION, broker_jars
from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import READERS
from servers.kafka_jars import find_tool

_SERVED = {
    "gap": [*range(50), *range(100, 150)],
    "bad": [*range(50), *range(100, 150)],
    "bad-end": [*range(100)],
    "torn": [*range(5, 60), *range(70, 80), *range(85, 145)],
}
_BEFORE_THE_GAP = {"gap": [*range(50)], "bad": [*range(50)], "bad-end": [*range(100)], "torn": []}
_CORRUPT = confluent_kafka.KafkaError.INVALID_MSG
_PATIENCE_S = 60


def _read_with_librdkafka(address: str, topic: str, offset: int, most: int) -> tuple[list[int], int]:
    """Return the offsets from one on, at most so many, and the error that ends them; committed records, its default."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
    offsets: list[int] = []
    try:
        while len(offsets) < most:
            message = consumer.poll(_PATIENCE_S)
            assert message is not None
            error, found = message.error(), message.offset()
            if error is not None:
                return offsets, error.code()
            assert found is not None
            offsets.append(found)
    finally:
        consumer.close()
    return offsets, 0


def _read_with_kafka_python(address: str, topic: str, offset: int, most: int) -> tuple[list[int], int]:
    """The same, all records."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="none", enable_auto_commit=False)
    place = kafka.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, offset)
    offsets: list[int] = []
    try:
        while len(offsets) < most:
            polled = consumer.poll(1000, max_records=most - len(offsets))
            offsets += [each.offset for records in polled.values() for each in records]
    except kafka.errors.KafkaError as failed:
        return offsets, failed.errno
    finally:
        consumer.close()
    return offsets, 0


_READERS = {"librdkafka": _read_with_librdkafka, "kafka-python": _read_with_kafka_python}


async def _read_with_aiokafka(address: str, topic: str, is_warned: Callable[[], bool]) -> list[int]:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="none", enable_auto_commit=False, retry_backoff_ms=20
    )
    await consumer.start()
    place = aiokafka.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    offsets: list[int] = []
    while not is_warned():
        for records in (await consumer.getmany(place, timeout_ms=100)).values():
            offsets += [each.offset for each in records]
    await consumer.stop()
    return offsets


@pytest.fixture(scope="module")
def strict(written_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Gaps are errors."""
    archive = Path(written_uri).parent / "archive"
    with serving(tmp_path_factory.mktemp("strict") / "notes", written_uri, archive) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def skipping(written_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Gaps are passed over."""
    archive = Path(written_uri).parent / "archive"
    with serving(tmp_path_factory.mktemp("skipping") / "notes", written_uri, archive, "serve.on_gap=skip") as endpoint:
        yield endpoint


@pytest.mark.parametrize("name", READERS)
def test_gaps_are_passed_over_to_the_end_if_the_operator_says_so(skipping: Endpoint, name: str) -> None:
    found = READERS[name](skipping.address, [(topic, 0) for topic in _SERVED], "read_uncommitted")
    assert {topic: [row["o"] for row in rows] for (topic, _), rows in found.items()} == _SERVED


@pytest.mark.shows("{client}", "gaps", "error")
@pytest.mark.parametrize("topic", _BEFORE_THE_GAP)
@pytest.mark.parametrize("client", _READERS)
def test_the_application_gets_an_error_at_a_gap_and_may_go_on_after_it(
    strict: Endpoint, client: str, topic: str
) -> None:
    read, before = _READERS[client], _BEFORE_THE_GAP[topic]
    assert read(strict.address, topic, 0, len(before) + 1) == (before, _CORRUPT)
    after = [offset for offset in _SERVED[topic] if offset >= len(before)]
    if after:
        assert read(strict.address, topic, after[0], 10) == (after[:10], 0)


@pytest.mark.shows("java", "gaps", "error")
@pytest.mark.shows("console-consumer", "gaps", "error")
def test_java_s_consumer_ends_with_an_error_at_a_gap(strict: Endpoint) -> None:
    tool = [
        find_tool("java"),
        "-cp",
        f"{broker_jars(KAFKA_VERSION)}/*",
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
    ]
    asked = ["--bootstrap-server", strict.address, "--topic", "bad", "--partition", "0", "--offset", "earliest"]
    printed = ["--formatter-property", "print.offset=true", "--formatter-property", "print.value=false"]
    ended = subprocess.run([*tool, *asked, *printed], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("Offset:")]
    assert lines == [f"Offset:{offset}" for offset in _BEFORE_THE_GAP["bad"]]
    assert "corrupt message when fetching offset 50" in ended.stdout + ended.stderr


@pytest.mark.shows("aiokafka", "gaps", "warns, waits")
def test_aiokafka_gets_nothing_from_a_gap_on_and_warns(strict: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    offsets = asyncio.run(_read_with_aiokafka(strict.address, "bad", lambda: "CorruptRecord" in caplog.text))
    assert offsets == _BEFORE_THE_GAP["bad"]


def test_readers_of_committed_records_get_an_error_before_what_a_gap_may_have_aborted(strict: Endpoint) -> None:
    assert _read_with_librdkafka(strict.address, "undecided", 0, 6) == ([*range(5)], _CORRUPT)
