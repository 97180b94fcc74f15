"""Do bytes of a stranger end a connection, and nothing else?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from endpoint.conftest import Endpoint, serving
from endpoint.support.each_request import each_request
from endpoint.support.random_requests import many_entries
from endpoint.support.raw_client import connected, fetch, framed, list_offsets, message
from endpoint.test_metrics import metric_samples, metrics_address


def _metadata(version: int, *topics: tuple[str | None, UUID | None]) -> Any:
    """A Metadata request of topics by name or id, as the version has them."""
    names = [{"name": name, **({"topic_id": topic_id} if version >= 10 else {})} for name, topic_id in topics]
    asked = tuple(message(3, version, "MetadataRequestTopic", **each) for each in names)
    cluster = {"include_cluster_authorized_operations": False} if version <= 10 else {}
    return message(3, version, "MetadataRequest", topics=asked, **cluster, include_topic_authorized_operations=False)


def test_a_topic_that_is_named_again_and_again_is_described_once(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        answer = client.ask(3, 9, _metadata(9, *[("orders", None)] * 1000, ("payments", None)))
        assert [topic.name for topic in answer.topics] == ["orders", "payments"]
        groups = tuple(message(9, 8, "OffsetFetchRequestGroup", group_id="group", topics=None) for _ in range(1000))
        assert len(client.ask(9, 8, message(9, 8, "OffsetFetchRequest", groups=groups)).groups) == 1
        described = {"groups": ("group",) * 1000, "include_authorized_operations": False}
        assert len(client.ask(15, 5, message(15, 5, "DescribeGroupsRequest", **described)).groups) == 1


def test_a_topic_without_name_is_refused_where_the_answer_must_name_it(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        (topic,) = client.ask(3, 10, _metadata(10, (None, UUID(int=7)))).topics
        assert (topic.name, topic.error_code) == ("", ErrorCode.invalid_request)
        (topic,) = client.ask(3, 12, _metadata(12, (None, UUID(int=7)))).topics
        assert (topic.name, topic.error_code) == (None, ErrorCode.unknown_topic_id)


def test_a_long_request_is_answered_and_one_with_too_many_entries_ends_its_connection(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        client.connection.sendall(many_entries(50_000))
        assert b"\0\1a" in client.receive()
        client.connection.sendall(many_entries(100_001))
        assert client.is_closed()


def test_a_client_that_goes_while_it_waits_leaves_no_connection(
    golden_uri: str, golden_archive: Path, tmp_path: Path
) -> None:
    settings = "serve.metrics=127.0.0.1:0", "group.initial.rebalance.delay.ms=600000"
    end = fetch(12, [("orders", 0, 3953)], max_wait_ms=30_000)
    with serving(tmp_path / "notes", golden_uri, golden_archive, *settings) as endpoint:
        address = metrics_address(endpoint)
        for sent in (framed(1, 12, end), *(each for each in each_request() if each[4:6] == b"\0\x0b")):
            with connected(endpoint.port) as client:
                client.connection.sendall(sent)
                time.sleep(0.5)
                assert metric_samples(address)["connections",] == 1, "it waits"
            deadline = time.monotonic() + 10
            while metric_samples(address)["connections",]:
                assert time.monotonic() < deadline, "the connection stays"


def test_lengths_out_of_bounds_and_apis_that_are_not_offered_end_the_connection(endpoint: Endpoint) -> None:
    header = b"\0\0\0\0\0\0\0\7\xff\xff"
    lengths = b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0"
    unknown_api, list_offsets_0 = (b"\0\0\0\x0a" + key + header[2:] for key in (b"\x03\xe7", b"\0\x02"))
    for content in (*lengths, unknown_api, list_offsets_0):
        with connected(endpoint.port) as client:
            client.connection.sendall(content)
            assert client.is_closed()


def test_a_newer_version_of_api_versions_is_told_the_offered_ones(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        client.connection.sendall(b"\0\0\0\x0a" + b"\0\x12\0\x63\0\0\0\7\xff\xff")
        answer = client.receive()
    assert answer[:6] == b"\0\0\0\7\0\x23"
    assert b"\0\x01\0\x04\0\x12" in answer  # Fetch, 4 to 18


def test_a_silent_connection_and_one_too_many_are_closed(golden_uri: str, golden_archive: Path, tmp_path: Path) -> None:
    limits = "serve.max_connections=1", "serve.idle_seconds=0.5"
    with (
        serving(tmp_path / "notes", golden_uri, golden_archive, *limits) as endpoint,
        connected(endpoint.port) as first,
    ):
        first.ask(2, 11, list_offsets([("orders", 0, -1)]))
        with connected(endpoint.port) as second:
            assert second.is_closed()
        assert first.is_closed()
        assert "more than 1 connections" in endpoint.said()
