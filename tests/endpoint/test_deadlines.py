"""Does a store that hangs hold up nothing but what it keeps?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import READERS
from endpoint.support.raw_client import RawClient, connected, fetch, list_offsets, message
from endpoint.support.truth import true_records
from endpoint.test_metrics import metric_samples, metrics_address
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket

_STORAGE_ERROR, _TIMED_OUT, _NOT_LEADER, _NOT_COORDINATOR = 56, 7, 5, 15
_THREADS = 2
_PATIENCE_MS = 55_000
_HANG_S = 5


@pytest.fixture
def hanging_archive(golden_archive: Path, bucket: Bucket, s3_proxy: S3Proxy) -> str:
    """The sample's archive in a bucket, which never answers a read of orders-0."""
    bucket.put_directory(golden_archive, "archive")
    s3_proxy.strikes = lambda request: request.is_get and "/orders-0-" in request.path
    s3_proxy.faults = [Fault(hangs=True)] * 1000
    return bucket.uri("archive")


@pytest.fixture
def with_a_hanging_log(golden_uri: str, hanging_archive: str, tmp_path: Path) -> Iterator[Endpoint]:
    """The sample, whose logs of orders-0 cannot be read."""
    settings = f"remote.log.reader.threads={_THREADS}", "serve.request_seconds=5", "serve.metrics=127.0.0.1:0"
    with serving(tmp_path / "notes", golden_uri, hanging_archive, *settings) as endpoint:
        yield endpoint


def _fetched(client: RawClient, *topics: str) -> dict[str, tuple[int, bool]]:
    """Ask for the beginning of topics; return error code and whether there are records."""
    answer = client.ask(1, 12, fetch(12, [(topic, 0, 0) for topic in topics]))
    return {
        topic.topic: (int(topic.partitions[0].error_code), bool(topic.partitions[0].records))
        for topic in answer.responses
    }


def test_what_hangs_is_an_error_at_its_deadline_and_all_else_is_served(with_a_hanging_log: Endpoint) -> None:
    endpoint, answers, waiting = with_a_hanging_log, list[object](), list[float]()
    with connected(endpoint.port) as client:
        both = _fetched(client, "orders", "late.events")
    assert both == {"orders": (_STORAGE_ERROR, False), "late.events": (0, True)}

    def ask_for_the_hanging_log() -> None:
        with connected(endpoint.port) as client:
            answers.append(_fetched(client, "orders"))

    askers = [threading.Thread(target=ask_for_the_hanging_log) for _ in range(4 * _THREADS)]
    for asker in askers:
        asker.start()
    with connected(endpoint.port) as client:
        offsets = client.ask(2, 11, list_offsets([("orders", 0, -1)]))
        assert offsets.topics[0].partitions[0].offset == 3953
    address = metrics_address(endpoint)
    while any(asker.is_alive() for asker in askers):
        waiting.append(metric_samples(address)["fetches_waiting",])
    assert 1 <= max(waiting) <= len(askers)
    assert answers == [{"orders": (_STORAGE_ERROR, False)}] * len(askers)
    samples = metric_samples(address)
    errors = {name: value for name, value in samples.items() if name[0] == "fetch_errors_total"}
    assert errors == {("fetch_errors_total", "orders"): 1 + len(askers)}
    with connected(endpoint.port) as client:
        assert _fetched(client, "late.events") == {"late.events": (0, True)}
    assert "orders-0" in endpoint.said()
    assert "has not answered within 5 s" in endpoint.said()


def test_the_endpoint_ends_though_a_read_hangs(with_a_hanging_log: Endpoint) -> None:
    with connected(with_a_hanging_log.port) as client:
        _fetched(client, "orders")
    assert with_a_hanging_log.end() == 0


def test_a_lookup_that_hangs_is_timed_out_and_the_next_one_is_answered(
    golden_bucket: Bucket, golden_archive: Path, s3_access: S3Proxy, tmp_path: Path
) -> None:
    asked = [("orders", 0, 1_700_042_400_000)]
    threads = f"remote.log.offset.reader.threads={_THREADS}"
    with serving(tmp_path / "notes", golden_bucket.uri("warehouse"), golden_archive, threads) as endpoint:
        deadline = time.monotonic() + _PATIENCE_MS / 1000
        with connected(endpoint.port) as client:
            while _fetched(client, "orders") != {"orders": (0, True)}:  # Then the tables of fetches are open.
                assert time.monotonic() < deadline
        s3_access.strikes = lambda request: request.is_get and "/time_index/" in request.path
        s3_access.faults = [Fault(hangs=True)] * 1000
        for _ in range(_THREADS + 1):
            with connected(endpoint.port) as client:
                answer = client.ask(2, 11, list_offsets(asked, timeout_ms=1000))
                assert answer.topics[0].partitions[0].error_code == _TIMED_OUT
                assert _fetched(client, "orders") == {"orders": (0, True)}
        s3_access.begin()
        with connected(endpoint.port) as client:
            answer = client.ask(2, 11, list_offsets(asked, timeout_ms=_PATIENCE_MS))
            assert answer.topics[0].partitions[0].offset == 2592
        # The lookups that nobody waits for any more have stopped.
        opened = [each for each in s3_access.requests if each.method == "HEAD" and "/time_index/" in each.path]
        assert len(opened) == 1


@pytest.fixture
def with_hanging_tables(
    golden_bucket: Bucket, golden_archive: Path, s3_access: S3Proxy, tmp_path: Path
) -> Iterator[Endpoint]:
    """The sample, whose tables are in a bucket that answers until the endpoint listens, and hangs then."""
    warehouse = golden_bucket.uri("warehouse")
    with serving(tmp_path / "notes", warehouse, golden_archive, "serve.request_seconds=1") as endpoint:
        s3_access.strikes = lambda request: request.path.endswith(".parquet")
        s3_access.faults = [Fault(hangs=True)] * 1000
        yield endpoint


def _asked_of_tables() -> dict[str, tuple[int, int, object]]:
    """What is answered from the tables: key, version, request."""
    named = message(3, 12, "MetadataRequestTopic", topic_id=None, name="orders")
    described = message(75, 0, "TopicRequest", name="orders")
    epoch = message(23, 4, "OffsetForLeaderPartition", partition=0, leader_epoch=0)
    epochs = message(23, 4, "OffsetForLeaderTopic", topic="orders", partitions=(epoch,))
    resource = {"resource_type": 2, "resource_name": "orders", "configuration_keys": None}
    configs = message(32, 4, "DescribeConfigsResource", **resource)
    commit = message(8, 9, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5, committed_metadata="")
    commits = message(8, 9, "OffsetCommitRequestTopic", name="orders", partitions=(commit,))
    member = {"group_id": "group", "member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
    plain = {"include_topic_authorized_operations": False}
    return {
        "all topics": (3, 12, message(3, 12, "MetadataRequest", topics=None, **plain)),
        "a topic": (3, 12, message(3, 12, "MetadataRequest", topics=(named,), **plain)),
        "its partitions": (75, 0, message(75, 0, "DescribeTopicPartitionsRequest", topics=(described,))),
        "its epochs": (23, 4, message(23, 4, "OffsetForLeaderEpochRequest", topics=(epochs,))),
        "its settings": (32, 4, message(32, 4, "DescribeConfigsRequest", resources=(configs,))),
        "a commit": (8, 9, message(8, 9, "OffsetCommitRequest", **member, topics=(commits,))),
        "records by topic id": (1, 13, fetch(13, [(UUID(int=7), 0, 0)])),
    }


def _codes(answer: Any) -> list[int]:
    """The error codes of topics, partitions or settings in an answer; none for one that names nothing."""
    topics: Any = next(getattr(answer, name) for name in ("topics", "responses", "results") if hasattr(answer, name))
    codes = [int(topic.error_code) for topic in topics if hasattr(topic, "error_code")]
    return codes or [int(each.error_code) for topic in topics for each in topic.partitions]


def test_what_the_tables_do_not_answer_is_a_retriable_error_in_time(
    with_hanging_tables: Endpoint, s3_access: S3Proxy
) -> None:
    found: dict[str, list[int]] = {}
    with connected(with_hanging_tables.port) as client:
        for name, asked in _asked_of_tables().items():
            began = time.monotonic()
            answer = client.ask(*asked)
            assert time.monotonic() - began < _HANG_S
            found[name] = _codes(answer)
            assert name != "all topics" or not answer.brokers, "clients ask again"
    assert found == {
        "all topics": [],
        "a topic": [_NOT_LEADER],
        "its partitions": [_NOT_LEADER],
        "its epochs": [_STORAGE_ERROR],
        "its settings": [_TIMED_OUT],
        "a commit": [_NOT_COORDINATOR],
        "records by topic id": [_STORAGE_ERROR],
    }
    s3_access.begin()
    with connected(with_hanging_tables.port) as client:
        name, asked = "a topic", _asked_of_tables()["a topic"]
        deadline = time.monotonic() + _PATIENCE_MS / 1000
        while _codes(client.ask(*asked)) != [0]:
            assert time.monotonic() < deadline, f"{name} is not answered"
    assert "the tables" in with_hanging_tables.said()


def test_clients_that_start_while_the_tables_hang_read_when_they_answer(
    with_hanging_tables: Endpoint, s3_access: S3Proxy
) -> None:
    place = "late.events", 0
    threading.Timer(_HANG_S, s3_access.begin).start()
    with ThreadPoolExecutor(len(READERS)) as pool:
        reading = {
            client: pool.submit(read, with_hanging_tables.address, [place], "read_uncommitted")
            for client, read in READERS.items()
        }
        found = {client: records.result()[place] for client, records in reading.items()}
    assert found == dict.fromkeys(READERS, true_records(place, "read_uncommitted"))
