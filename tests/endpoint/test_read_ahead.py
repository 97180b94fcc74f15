"""Test that records of a bucket are read before a consumer asks for them, and that its answers are the same."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coldlog.model.fetch import FetchRequest
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.opened_source import pool_options
from coldlog.records.fetch.slices import LogSlice
from coldlog.runtime.settings_sources import load_settings
from coldlog.serve.program import open_view
from coldlog.serve.read_ahead import AheadSlice, ReadAheadBytes
from coldlog.serve.read_quota import ReadQuota
from coldlog.tiering.system_clock import SystemClock
from endpoint.conftest import Endpoint, serving
from endpoint.raw_client import RawClient, connected, fetch
from endpoint.test_metrics import metric_samples, metrics_address
from s3_proxy import S3Proxy
from s3_server import Bucket

_MOST_BYTES = 20_000
_BATCH = struct.Struct(">qi11xi")
"""Base offset, length, and last offset delta of a batch."""
_QUOTA = "remote.log.manager.fetch.max.bytes.per.second"
_WINDOW_S = 60


@pytest.fixture
def archive(bucket: Bucket, golden_archive: Path, s3_access: S3Proxy) -> str:
    """One partition of the sample in a bucket."""
    (directory,) = golden_archive.glob("*/orders-0-*")
    bucket.put_directory(directory, f"archive/{directory.relative_to(golden_archive)}")
    return bucket.uri("archive")


@contextmanager
def _reading(warehouse: str, archive: str, tmp_path: Path, *settings: str) -> Iterator[Endpoint]:
    with serving(tmp_path / "notes", warehouse, archive, "serve.metrics=127.0.0.1:0", *settings) as endpoint:
        yield endpoint


def _next_offset(records: bytes) -> int:
    at = following = 0
    while at + 61 <= len(records):
        base, length, delta = _BATCH.unpack_from(records, at)
        following, at = base + delta + 1, at + 12 + length
    return following


def _ask(client: RawClient, offset: int, max_bytes: int = _MOST_BYTES) -> tuple[bytes, float]:
    """Return the records from an offset on, and the seconds to wait."""
    answer: Any = client.ask(1, 12, fetch(12, [("orders", 0, offset)], partition_max_bytes=max_bytes))
    (partition,) = answer.responses[0].partitions
    assert partition.error_code == 0
    return bytes(partition.records or b""), answer.throttle_time.total_seconds()


def _read_all(client: RawClient) -> list[bytes]:
    found, offset = list[bytes](), 0
    while answer := _ask(client, offset)[0]:
        found.append(answer)
        offset = _next_offset(answer)
    return found


def _gets(s3_access: S3Proxy) -> int:
    return sum(".log" in request.path for request in s3_access.gets)


def _forgotten(endpoint: Endpoint) -> dict[tuple[str, ...], float]:
    """Return the samples when nothing is kept of what was read ahead."""
    deadline = time.monotonic() + 30
    while (samples := metric_samples(metrics_address(endpoint)))["read_ahead_bytes",]:
        assert time.monotonic() < deadline, "memory is kept"
        time.sleep(0.02)
    return samples


def test_a_sequential_reader_gets_the_same_answers_from_as_many_reads(
    golden_uri: str, archive: str, s3_access: S3Proxy, tmp_path: Path
) -> None:
    answers, gets = {}, {}
    for limit in ("0", "64MiB"):
        with _reading(golden_uri, archive, tmp_path, f"serve.read_ahead_bytes={limit}") as endpoint:
            s3_access.forget()
            with connected(endpoint.port) as client:
                answers[limit] = _read_all(client)
            samples = _forgotten(endpoint)
            gets[limit] = _gets(s3_access)
        # The first answer begins a sequence, the second one goes on with it.
        expected = 0 if limit == "0" else len(answers[limit]) - 2
        assert samples["read_ahead_hits_total",] == expected
        assert samples["read_ahead_unused_bytes_total",] == 0
    assert len(answers["0"]) > 10
    assert answers["0"] == answers["64MiB"]
    assert gets["0"] == gets["64MiB"]


def test_a_reader_that_jumps_costs_no_read_more(
    golden_uri: str, archive: str, s3_access: S3Proxy, tmp_path: Path
) -> None:
    with _reading(golden_uri, archive, tmp_path) as endpoint, connected(endpoint.port) as client:
        s3_access.forget()
        for offset in (3000, 2000, 1000, 0):
            assert _ask(client, offset)[0]
        assert _gets(s3_access) == 4
        assert metric_samples(metrics_address(endpoint))["read_ahead_bytes",] == 0


def test_what_is_not_asked_for_is_dropped(golden_uri: str, archive: str, s3_access: S3Proxy, tmp_path: Path) -> None:
    """By a jump, and with the connection."""
    with _reading(golden_uri, archive, tmp_path) as endpoint, connected(endpoint.port) as client:
        first = _ask(client, 0)[0]
        second = _ask(client, _next_offset(first))[0]
        third = _next_offset(second)
        address, deadline = metrics_address(endpoint), time.monotonic() + 30
        while not (held := metric_samples(address)["read_ahead_bytes",]):
            assert time.monotonic() < deadline, "nothing is read ahead"
        assert held <= _MOST_BYTES
        # A smaller limit gets the first batches of what was read.
        part = _ask(client, third, 4_000)[0]
        assert 0 < len(part) <= 4_000
        assert metric_samples(address)["read_ahead_hits_total",] == 1
        _ask(client, _next_offset(part))
        _ask(client, 0)
        samples = _forgotten(endpoint)
        assert samples["read_ahead_unused_bytes_total",] >= held - len(part)


def test_no_more_memory_is_used_than_allowed(golden_uri: str, archive: str, s3_access: S3Proxy, tmp_path: Path) -> None:
    with _reading(golden_uri, archive, tmp_path, "serve.read_ahead_bytes=1000") as endpoint:
        s3_access.forget()
        with connected(endpoint.port) as client:
            answers = _read_all(client)
        assert _gets(s3_access) == len(answers)
        assert _forgotten(endpoint)["read_ahead_hits_total",] == 0


def test_the_quota_is_charged_once(golden_uri: str, archive: str, s3_access: S3Proxy, tmp_path: Path) -> None:
    """The quota is a mean over the last window, a minute here: it allows all of the partition once and a half."""
    size = len(b"".join(_read_under_quota(golden_uri, archive, tmp_path, 1 << 30)[0]))
    answers, throttled_s = _read_under_quota(golden_uri, archive, tmp_path, size * 3 // 2 // _WINDOW_S)
    assert throttled_s == 0
    assert len(b"".join(answers)) == size


def _read_under_quota(golden_uri: str, archive: str, tmp_path: Path, quota: int) -> tuple[list[bytes], float]:
    window = f"remote.log.manager.fetch.quota.window.size.seconds={_WINDOW_S}"
    with _reading(golden_uri, archive, tmp_path, f"{_QUOTA}={quota}", window) as endpoint:
        with connected(endpoint.port) as client:
            found, offset, throttled_s = list[bytes](), 0, 0.0
            while True:
                answer, waits_s = _ask(client, offset)
                throttled_s += waits_s
                if not answer:
                    break
                found.append(answer)
                offset = _next_offset(answer)
        assert metric_samples(metrics_address(endpoint))["read_ahead_hits_total",] > 0
        return found, throttled_s


def test_bytes_of_other_tables_are_not_used(golden_uri: str, golden_archive: Path) -> None:
    """What was read ahead answers only the same batches of the same segment, or the first of them."""
    settings = load_settings("local", [f"warehouse.uri={golden_uri}", f"archive.uri={golden_archive}"])
    view = open_view(settings, ReadQuota(pool_options(settings).quota, SystemClock()))
    request = FetchRequest(
        topic="orders", partition=0, offset=0, max_bytes=_MOST_BYTES, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )
    planned, less, later = (
        view.plan(replace(request, **changed)) for changed in ({}, {"max_bytes": 4_000}, {"offset": 1})
    )
    assert isinstance(planned, LogSlice)
    assert isinstance(less, LogSlice)
    assert isinstance(later, LogSlice)
    ahead = AheadSlice(request=request, planned=planned)
    assert ahead.covers(planned)
    assert ahead.covers(less)
    assert not AheadSlice(request=less.request, planned=less).covers(planned)
    assert not ahead.covers(later)
    assert not ahead.covers(replace(planned, bounds=replace(planned.bounds, to_offset=planned.bounds.to_offset - 1)))
    moved = replace(planned.batches, position=planned.batches.position + 1)
    assert not ahead.covers(replace(planned, batches=moved))


def test_memory_is_returned_once_and_not_given_to_a_slice_that_nobody_wants() -> None:
    memory = ReadAheadBytes(100)
    one, other = (AheadSlice(request=None) for _ in range(2))  # type: ignore[arg-type]
    assert memory.reserve(one, 60)
    assert not memory.reserve(other, 60)
    memory.release(one)
    memory.release(one)
    assert memory.held_bytes == 0
    assert not memory.reserve(one, 10)
    assert memory.reserve(other, 60)
