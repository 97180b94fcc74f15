"""Are sequential fetches from a bucket read ahead, once each, and are the answers those without it?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coldlog.serve.read_ahead import KEPT_S
from endpoint.conftest import Endpoint, serving
from endpoint.support.follow import follow
from endpoint.support.raw_client import RawClient, connected, fetch
from endpoint.test_metrics import metric_samples, metrics_address
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import Bucket

_PLACE, _END = ("orders", 0), 3953
_SLICE_BYTES = 20_000
_OBSERVED = "serve.metrics=127.0.0.1:0"
_OFF = "serve.read_ahead_bytes=0"
_LONG_S = 30
_QUOTA = "remote.log.manager.fetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class _InBucket:
    """The sample's archive in a bucket; the tables are in a folder, so that every GET of a log is a read of records."""

    uri: str
    warehouse: str
    store: S3Proxy
    notes: Path

    @contextmanager
    def serving(self, *settings: str, config: Path | None = None) -> Iterator[Endpoint]:
        self.store.begin()
        with serving(self.notes, self.warehouse, self.uri, _OBSERVED, *settings, config=config) as endpoint:
            yield endpoint

    @property
    def reads(self) -> list[tuple[str, str]]:
        """Object and range of each read of a log."""
        return [(each.path, each.range) for each in self.store.gets if each.path.endswith(".log")]


@pytest.fixture(scope="module")
def archive_bucket(s3_server: Any, golden_archive: Path) -> Bucket:
    bucket: Bucket = s3_server.make_bucket()
    bucket.put_directory(golden_archive, "archive")
    return bucket


@pytest.fixture
def in_bucket(archive_bucket: Bucket, golden_uri: str, s3_access: S3Proxy, tmp_path: Path) -> _InBucket:
    return _InBucket(uri=archive_bucket.uri("archive"), warehouse=golden_uri, store=s3_access, notes=tmp_path / "notes")


def _fetch(client: RawClient, offset: int) -> Any:
    """Fetch, and return the answer for the partition."""
    answer = client.ask(1, 12, fetch(12, [(*_PLACE, offset)], partition_max_bytes=_SLICE_BYTES))
    return answer.responses[0].partitions[0]


def _end_of(records: bytes) -> int:
    """The offset after the last batch."""
    position, end = 0, -1
    while position < len(records):
        base = int.from_bytes(records[position : position + 8], "big")
        end = base + int.from_bytes(records[position + 23 : position + 27], "big") + 1
        position += 12 + int.from_bytes(records[position + 8 : position + 12], "big")
    return end


def _read_all(client: RawClient, before_each: Callable[[int], None] = lambda _: None) -> list[Any]:
    """All answers, from the first offset to the end. `before_each` is called with the number of each request."""
    answers, offset = list[Any](), 0
    while offset < _END:
        before_each(len(answers))
        answers.append(_fetch(client, offset))
        offset = _end_of(answers[-1].records)
    return answers


def _samples(endpoint: Endpoint) -> tuple[float, float, float]:
    """Hits, unused bytes and memory, when no thread reads."""
    deadline = time.monotonic() + _LONG_S
    while True:
        samples = metric_samples(metrics_address(endpoint))
        if samples["queue_size", "fetch"] == 0 and samples["idle_ratio", "fetch"] == 1:
            names = "read_ahead_hits_total", "read_ahead_unused_bytes_total", "read_ahead_bytes"
            hits, unused, held = (samples[name,] for name in names)
            return hits, unused, held
        assert time.monotonic() < deadline, "a thread is never idle"
        time.sleep(0.02)


def _wait_for_memory(endpoint: Endpoint, *, is_held: bool) -> tuple[float, float]:
    """Wait until a slice is held, or none, but not until it is too old; return hits and unused bytes."""
    deadline = time.monotonic() + KEPT_S / 2
    while True:
        hits, unused, held = _samples(endpoint)
        if (held > 0) is is_held:
            return hits, unused
        assert time.monotonic() < deadline, f"{held} bytes are held"
        time.sleep(0.02)


def test_answers_and_reads_are_those_without_reading_ahead(in_bucket: _InBucket) -> None:
    with in_bucket.serving(_OFF) as endpoint, connected(endpoint.port) as client:
        expected, once = _read_all(client), in_bucket.reads
        assert _samples(endpoint) == (0, 0, 0)
    assert len(once) == len(expected) > 8
    with in_bucket.serving() as endpoint, connected(endpoint.port) as client:
        assert _read_all(client) == expected
        assert sorted(in_bucket.reads) == sorted(once)
        assert _samples(endpoint) == (len(once) - 2, 0, 0)


def test_settings_that_change_while_slices_are_read_ahead_change_no_answer(
    in_bucket: _InBucket, tmp_path: Path
) -> None:
    with in_bucket.serving(_OFF) as endpoint, connected(endpoint.port) as client:
        expected, once = _read_all(client), in_bucket.reads
    config, changes = (
        tmp_path / "coldlog.toml",
        {3: '"serve.read_ahead_bytes" = 0', 5: f'"{_QUOTA}.max.bytes.per.second" = 1000000000'},
    )
    config.write_text("")
    with in_bucket.serving(config=config) as endpoint, connected(endpoint.port) as client:

        def change(number: int) -> None:
            if number in changes:
                _wait_for_memory(endpoint, is_held=number == 3)
                config.write_text(changes[number])
                assert "as they are now" in follow(endpoint)

        assert _read_all(client, change) == expected
        assert sorted(in_bucket.reads) == sorted(once)
        hits, unused, held = _samples(endpoint)
        assert (unused, held) == (0, 0)
        assert 2 <= hits < len(once) - 2, "some were read ahead, before and after"


def test_the_next_slice_is_read_before_it_is_asked_for(in_bucket: _InBucket) -> None:
    with in_bucket.serving() as endpoint, connected(endpoint.port) as client:
        second = _end_of(_fetch(client, 0).records)
        third = _end_of(_fetch(client, second).records)
        _wait_for_memory(endpoint, is_held=True)
        assert len(in_bucket.reads) == 3
        in_bucket.store.faults = [Fault(hangs=True)]
        assert _fetch(client, third).records, "the store is not asked"
        in_bucket.store.begin()


def test_what_a_seek_or_the_end_of_a_connection_leaves_behind_is_dropped(in_bucket: _InBucket) -> None:
    with in_bucket.serving() as endpoint:
        with connected(endpoint.port) as client:
            _fetch(client, _end_of(_fetch(client, 0).records))
            _wait_for_memory(endpoint, is_held=True)
            assert _end_of(_fetch(client, 3000).records) > 3000
            hits, unused = _wait_for_memory(endpoint, is_held=False)
            assert hits == 0
            assert 0 < unused <= _SLICE_BYTES
            assert len(in_bucket.reads) == 4
            _fetch(client, _end_of(_fetch(client, 0).records))
            _wait_for_memory(endpoint, is_held=True)
        assert _wait_for_memory(endpoint, is_held=False)[1] == 2 * unused


def test_a_failed_read_ahead_is_not_reported_and_the_request_reads_again(in_bucket: _InBucket) -> None:
    with in_bucket.serving() as endpoint, connected(endpoint.port) as client:
        second = _end_of(_fetch(client, 0).records)
        in_bucket.store.strikes = lambda request: len(in_bucket.reads) == 3
        in_bucket.store.faults = [Fault(status=503, code="SlowDown")]
        third = _end_of(_fetch(client, second).records)
        found = _fetch(client, third)
        assert (found.error_code, bool(found.records)) == (0, True)
        assert (in_bucket.store.faults, len(in_bucket.reads) > 3) == ([], True)
        assert "SlowDown" not in endpoint.said()


def test_what_is_read_ahead_is_charged_once(in_bucket: _InBucket) -> None:
    with in_bucket.serving(_OFF) as endpoint, connected(endpoint.port) as client:
        second = _fetch(client, _end_of(_fetch(client, 0).records))
    two_bytes = 2 * len(second.records)
    # Over an hour two slices are within the quota, and three are not.
    quota = f"{_QUOTA}.max.bytes.per.second={two_bytes // 3600 + 1}", f"{_QUOTA}.quota.window.size.seconds=3600"
    with in_bucket.serving(*quota) as endpoint, connected(endpoint.port) as client:
        third = _end_of(_fetch(client, _end_of(_fetch(client, 0).records)).records)
        _wait_for_memory(endpoint, is_held=True)
        found = _fetch(client, third)
        assert found.records, "a second charge would be over the quota"
        assert not _fetch(client, _end_of(found.records)).records
        assert len(in_bucket.reads) == 3


def test_a_folder_is_not_read_ahead(golden_uri: str, golden_archive: Path, tmp_path: Path) -> None:
    with (
        serving(tmp_path / "notes", golden_uri, golden_archive, _OBSERVED) as endpoint,
        connected(endpoint.port) as client,
    ):
        _read_all(client)
        assert _samples(endpoint) == (0, 0, 0)
