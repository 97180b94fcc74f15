"""Is a fetch bounded, fair and honest about what cannot be read?"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import confluent_kafka
import kafka
import pytest

from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import read_with_librdkafka
from endpoint.support.raw_client import RawClient, connected, fetch, framed, message
from endpoint.support.truth import PLACES, true_records

_CORRUPT, _OUT_OF_RANGE, _FENCED, _UNKNOWN_EPOCH, _UNKNOWN_ID = 2, 1, 74, 75, 100
_NO_TOPIC = UUID(int=7)
_LOST = (2692, 2939)
"""Offsets of the segment of orders-0 that `with_a_lost_segment` removes."""


def _errors(client: RawClient, places: list[tuple[str, int, int]], **options: int) -> list[int]:
    answer = client.ask(1, 12, fetch(12, places, **options))
    return [int(partition.error_code) for topic in answer.responses for partition in topic.partitions]


def _poll_for_ever(consumer: kafka.KafkaConsumer, offsets: list[int]) -> None:
    while True:
        offsets += [each.offset for records in consumer.poll(1000).values() for each in records]


@pytest.fixture(scope="module")
def with_a_lost_segment(golden_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's archive without the log of one segment of orders-0, which the tables name."""
    archive = tmp_path_factory.mktemp("lost") / "archive"
    shutil.copytree(golden_archive, archive)
    (log,) = archive.glob(f"kafka-tiered-storage/orders-0-*/{_LOST[0]:020d}-*.log")
    log.unlink()
    return archive


def test_an_answer_has_at_most_max_bytes_and_begins_with_another_partition_each_time(endpoint: Endpoint) -> None:
    places = [("orders", 0, 0), ("mixed-codecs", 0, 0), ("late.events", 0, 0)]
    seen = set()
    with connected(endpoint.port) as client:
        for correlation_id in range(5):
            client.connection.sendall(framed(1, 12, fetch(12, places, max_bytes=20_000), correlation_id))
            answer = client.answer(1, 12)
            sizes = {topic.topic: len(topic.partitions[0].records) for topic in answer.responses}
            assert 0 < sum(sizes.values()) <= 20_000
            seen |= {topic for topic, size in sizes.items() if size}
        assert len(seen) == 3


@pytest.mark.parametrize("version", range(13, 19))
def test_topics_are_fetched_by_id_in_later_versions(endpoint: Endpoint, version: int) -> None:
    names = (message(3, 12, "MetadataRequestTopic", topic_id=None, name="orders"),)
    with connected(endpoint.port) as client:
        (topic,) = client.ask(
            3, 12, message(3, 12, "MetadataRequest", topics=names, include_topic_authorized_operations=False)
        ).topics
        by_name = client.ask(1, 12, fetch(12, [("orders", 0, 100)])).responses[0].partitions[0]
        found, unknown = client.ask(1, version, fetch(version, [(topic.topic_id, 0, 100), (_NO_TOPIC, 0, 0)])).responses
    assert (found.topic_id, unknown.topic_id) == (topic.topic_id, _NO_TOPIC)
    assert found.partitions[0].records == by_name.records != b""
    assert (int(unknown.partitions[0].error_code), unknown.partitions[0].records) == (_UNKNOWN_ID, b"")


def test_the_first_batch_is_sent_whole(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        answer = client.ask(1, 12, fetch(12, [("orders", 0, 0)], max_bytes=1, partition_max_bytes=1))
    (partition,) = answer.responses[0].partitions
    assert len(partition.records) > 61


def test_offsets_outside_the_log_and_other_leader_epochs_are_refused(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        outside = [("records-deleted", 0, 1224), ("orders", 0, 3954), ("no-such-topic", 0, 0)]
        assert _errors(client, outside) == [_OUT_OF_RANGE, _OUT_OF_RANGE, 3]
        assert _errors(client, [("mixed-codecs", 0, 0)], leader_epoch=0) == [_FENCED]
        assert _errors(client, [("mixed-codecs", 0, 0)], leader_epoch=99) == [_UNKNOWN_EPOCH]


def test_a_lost_segment_is_an_error_that_the_application_gets(
    golden_uri: str, with_a_lost_segment: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "notes", golden_uri, with_a_lost_segment) as endpoint:
        with connected(endpoint.port) as client:
            assert _errors(client, [("orders", 0, _LOST[0])]) == [_CORRUPT]
        consumer = kafka.KafkaConsumer(bootstrap_servers=endpoint.address, auto_offset_reset="earliest")
        place = kafka.TopicPartition("orders", 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        offsets: list[int] = []
        with pytest.raises(kafka.errors.KafkaError):
            _poll_for_ever(consumer, offsets)
        consumer.close()
        assert offsets == list(range(_LOST[0]))
        assert "is missing" in endpoint.said()


def test_a_gap_is_passed_over_if_the_operator_says_so(
    golden_uri: str, with_a_lost_segment: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "notes", golden_uri, with_a_lost_segment, "serve.on_gap=skip") as endpoint:
        found = read_with_librdkafka(endpoint.address, [("orders", 0)], "read_uncommitted")[("orders", 0)]
    true = true_records(("orders", 0), "read_uncommitted")
    assert found == [row for row in true if not _LOST[0] <= row["o"] <= _LOST[1]]


@pytest.fixture
def renamed(golden_uri: str, golden_archive: Path, tmp_path: Path) -> Iterator[Endpoint]:
    """The sample, every topic with a prefix."""
    with serving(tmp_path / "notes", golden_uri, golden_archive, "serve.topic_prefix=archive.") as endpoint:
        yield endpoint


def test_topics_are_known_by_their_name_with_the_prefix_only(renamed: Endpoint) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=renamed.address)
    assert consumer.topics() == {f"archive.{topic}" for topic, _ in PLACES}
    consumer.close()
    with connected(renamed.port) as client:
        assert _errors(client, [("archive.orders", 0, 0), ("orders", 0, 0)]) == [0, 3]


def test_records_cannot_be_produced(endpoint: Endpoint) -> None:
    failures: list[int] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": endpoint.address})
    producer.produce(
        "orders", b"value", partition=0, on_delivery=lambda error, _: failures.append(error.code() if error else 0)
    )
    producer.flush(60)
    assert failures == [confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_a_fetch_that_waits_is_answered_when_the_endpoint_ends(
    golden_uri: str, golden_archive: Path, tmp_path: Path
) -> None:
    with serving(tmp_path / "notes", golden_uri, golden_archive) as endpoint, connected(endpoint.port) as client:
        assert _errors(client, [("orders", 0, 0)]) == [0]
        answers: list[list[int]] = []
        waiting = threading.Thread(
            target=lambda: answers.append(_errors(client, [("orders", 0, 3953)], max_wait_ms=25_000))
        )
        waiting.start()
        with connected(endpoint.port) as other:  # Answered after the first fetch was read.
            _errors(other, [("orders", 0, 0)])
        assert endpoint.end() == 0
        waiting.join()
        assert answers == [[0]]
