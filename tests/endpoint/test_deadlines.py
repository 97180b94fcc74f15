"""Does a store that hangs hold up nothing but what it keeps?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoint.conftest import Endpoint, serving
from endpoint.raw_client import RawClient, connected, fetch, list_offsets
from s3_proxy import Fault, S3Proxy
from s3_server import Bucket

_STORAGE_ERROR, _TIMED_OUT = 56, 7
_THREADS = 2
_PATIENCE_MS = 55_000


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
    settings = f"remote.log.reader.threads={_THREADS}", "serve.request_seconds=5"
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
    endpoint, answers = with_a_hanging_log, []
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
    for asker in askers:
        asker.join()
    assert answers == [{"orders": (_STORAGE_ERROR, False)}] * len(askers)
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
        with connected(endpoint.port) as client:
            assert _fetched(client, "orders") == {"orders": (0, True)}  # The tables of fetches are open now.
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
