"""Does Prometheus learn what the endpoint does?"""

from __future__ import annotations

import re
import shutil
import socket
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from endpoint.conftest import Endpoint, serving
from endpoint.support.raw_client import connected, fetch, list_offsets

OBSERVED = "serve.metrics=127.0.0.1:0"


def metrics_address(endpoint: Endpoint) -> str:
    """Where Prometheus asks."""
    found = re.search(r"metrics at (http://\S+)/metrics", endpoint.said())
    assert found
    return found[1]


def _get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def metric_samples(address: str) -> dict[tuple[str, ...], float]:
    """The value of each sample by its name and its labels' values."""
    status, text = _get(address, "/metrics")
    assert status == 200
    return {
        (sample.name.removeprefix("coldlog_serve_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def wait_for(address: str, path: str, status: int) -> None:
    deadline = time.monotonic() + 60
    while _get(address, path)[0] != status:
        assert time.monotonic() < deadline, f"{path} is not {status}"
        time.sleep(0.05)


def _wait_until_idle(address: str) -> None:
    """A thread may just be looking whether there are newer tables."""
    deadline = time.monotonic() + 60
    while any(metric_samples(address)["idle_ratio", pool] != 1 for pool in ("fetch", "lookup")):
        assert time.monotonic() < deadline, "a thread is never idle"
        time.sleep(0.05)


def test_requests_errors_and_bytes_are_counted(golden_uri: str, golden_archive: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "notes", golden_uri, golden_archive, OBSERVED) as endpoint:
        address = metrics_address(endpoint)
        with connected(endpoint.port) as client:
            asked = [("orders", 0, 0), ("orders", 0, 9_999), ("no-such-topic", 0, 0)]
            answer = client.ask(1, 12, fetch(12, asked))
            records = sum(len(topic.partitions[0].records) for topic in answer.responses)
            client.ask(2, 11, list_offsets([("orders", 0, -1)]))
            client.ask(2, 11, list_offsets([("orders", 0, -2)]))
            samples = metric_samples(address)
            assert samples["connections",] == 1
        assert samples["fetched_bytes_total", "orders"] == records > 0
        assert samples["request_seconds_count", "Fetch"] == 1
        assert samples["request_seconds_count", "ListOffsets"] == 2
        assert samples["response_bytes_total", "Fetch"] > records
        assert samples["errors_total", "Fetch", "OFFSET_OUT_OF_RANGE"] == 1
        assert samples["errors_total", "Fetch", "UNKNOWN_TOPIC_OR_PARTITION"] == 1
        _wait_until_idle(address)
        assert samples["expired_total", "fetch"] == samples["expired_total", "lookup"] == 0
        assert samples["queue_size", "fetch"] == samples["queue_size", "lookup"] == 0
        assert samples["fetches_total", "orders"] == samples["read_seconds_count",] == 1
        assert not any(name[0] == "fetch_errors_total" for name in samples), "wrong questions are none of the archive"
        assert samples["groups", "Stable"] == 0


def test_it_is_ready_while_the_newest_tables_can_be_opened(
    golden_uri: str, golden_archive: Path, tmp_path: Path
) -> None:
    warehouse, away = tmp_path / "warehouse", tmp_path / "away"
    shutil.copytree(golden_uri, warehouse)
    settings = OBSERVED, "serve.refresh_seconds=0.1"
    with serving(tmp_path / "notes", str(warehouse), golden_archive, *settings) as endpoint:
        address = metrics_address(endpoint)
        assert _get(address, "/readyz") == _get(address, "/healthz") == (200, "ok\n")
        warehouse.rename(away)
        wait_for(address, "/readyz", 503)
        assert _get(address, "/healthz")[0] == 200
        away.rename(warehouse)
        wait_for(address, "/readyz", 200)


def test_bytes_of_a_stranger_get_nothing(golden_uri: str, golden_archive: Path, tmp_path: Path) -> None:
    strange = b"\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"\0" * 40_000, b"GET /../etc HTTP/1.1\r\n\r\n"
    with serving(tmp_path / "notes", golden_uri, golden_archive, OBSERVED) as endpoint:
        address = metrics_address(endpoint)
        for sent in strange:
            with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60) as connection:
                connection.sendall(sent)
                with suppress(ConnectionResetError):
                    assert b" 200 " not in connection.recv(1000)
        assert _get(address, "/healthz")[0] == 200
        assert "Traceback" not in endpoint.said()
