"""Count what Prometheus asks for. Where Kafka or one of its KIPs has a metric for the same, the help text names it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PREFIX = "coldlog_serve_"
_SAMPLE_S = 30
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Of one endpoint. `registry` has them all."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            _PREFIX + "request_seconds",
            "time to answer a request, waits included; TotalTimeMs of kafka.network:type=RequestMetrics",
            ["api"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._by_api: dict[str, tuple[Histogram, Counter]] = {}
        self._errors = self._counter(
            "errors", "error codes in answers; ErrorsPerSec of kafka.network:type=RequestMetrics", "api", "error"
        )
        self._bytes = self._counter("response_bytes", "bytes of answers", "api")
        self._fetched = self._counter("fetched_bytes", "bytes of records; RemoteFetchBytesPerSec of KIP-405", "topic")
        self._fetches = self._counter(
            "fetches", "partitions of fetches that records were read for; RemoteFetchRequestsPerSec of KIP-405", "topic"
        )
        self._failed_fetches = self._counter(
            "fetch_errors",
            "partitions of fetches that the archive did not answer; RemoteFetchErrorsPerSec of KIP-405",
            "topic",
        )
        self.read_seconds = Histogram(
            _PREFIX + "read_seconds",
            "time to read a partition of a fetch; RemoteLogReaderFetchRateAndTimeMs of KIP-405",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._throttled = Histogram(
            _PREFIX + "fetch_throttle_seconds",
            "time that a throttled fetch should wait; remote-fetch-throttle-time-avg and -max of KIP-956",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._throttled_partitions = self._counter(
            "throttled_partitions", "partitions of fetches that got no records because of the read quota", "topic"
        )
        self._throttled_bytes = self._counter("throttled_bytes", "bytes that these would have been", "topic")
        self._longest_throttle = RecentMaximum()
        Gauge(
            _PREFIX + "fetch_throttle_longest_seconds",
            "longest throttle time of the last minute; remote-fetch-throttle-time-max of KIP-956",
            registry=self.registry,
        ).set_function(self._longest_throttle.read)
        self._expired = self._counter(
            "list_offsets_expired",
            "partitions of ListOffsets that were not answered in time, those that are not known without labels; "
            "ExpiresPerSec of DelayedRemoteListOffsetsMetrics, KIP-1075",
            "topic",
            "partition",
        )
        self.fetches_waiting = Gauge(
            _PREFIX + "fetches_waiting",
            "fetches that wait for their records; PurgatorySize of RemoteFetch of KIP-405",
            registry=self.registry,
        )
        self.list_offsets_waiting = Gauge(
            _PREFIX + "list_offsets_waiting",
            "requests for ListOffsets that wait for their answer; PurgatorySize of RemoteListOffsets, KIP-1075",
            registry=self.registry,
        )
        self.read_ahead_hits = self._counter("read_ahead_hits", "partitions of fetches whose records were read ahead")
        self.read_ahead_unused_bytes = self._counter(
            "read_ahead_unused_bytes", "bytes that were read ahead and that nobody asked for in time"
        )
        self.refused = self._counter("refused_connections", "connections above serve.max_connections")
        self.unauthenticated = self._counter("failed_authentications", "connections ended by a failed authentication")
        self.malformed = self._counter("malformed_requests", "connections ended because of bytes that are no request")

    def count(self, api: str, seconds: float, answer: Mapping[str, object], size_bytes: int) -> None:
        """Count one request and its answer."""
        seconds_of, bytes_of = self._of(api)
        seconds_of.observe(seconds)
        bytes_of.inc(size_bytes)
        for error in _errors(answer):
            self._errors.labels(api, error.name.upper()).inc()

    def _of(self, api: str) -> tuple[Histogram, Counter]:
        found = self._by_api.get(api)
        if found is None:
            found = self._by_api[api] = self._seconds.labels(api), self._bytes.labels(api)
        return found

    def fetched(self, topic: str, size_bytes: int) -> None:
        """Count the records of one partition of a fetch."""
        self._fetches.labels(topic).inc()
        self._fetched.labels(topic).inc(size_bytes)

    def failed_fetch(self, topic: str) -> None:
        """Count one partition of a fetch that could not be read, or is damaged."""
        self._failed_fetches.labels(topic).inc()

    def throttled(self, throttle_ms: int) -> None:
        """Count one fetch of which partitions were throttled."""
        self._throttled.observe(throttle_ms / 1000)
        self._longest_throttle.add(throttle_ms / 1000)

    def throttled_partition(self, topic: str, size_bytes: int) -> None:
        """Count one partition of a fetch that was throttled."""
        self._throttled_partitions.labels(topic).inc()
        self._throttled_bytes.labels(topic).inc(size_bytes)

    def expired(self, topic: str, partition: str) -> None:
        """Count one partition of a ListOffsets that was not answered in time."""
        self._expired.labels(topic, partition).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self.registry)


class RecentMaximum:
    """The largest value of the last 30 to 60 seconds, 0 if there is none. Kafka's Max has two samples of 30 s too."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._sample, self._value, self._value_before = -2, 0.0, 0.0

    def add(self, value: float) -> None:
        """Add a value of now."""
        self._begin_sample()
        self._value = max(self._value, value)

    def read(self) -> float:
        """Return the largest value."""
        self._begin_sample()
        return max(self._value, self._value_before)

    def _begin_sample(self) -> None:
        sample = int(self._seconds() // _SAMPLE_S)
        if sample != self._sample:
            self._value_before = self._value if sample == self._sample + 1 else 0.0
            self._sample, self._value = sample, 0.0


def _errors(values: Mapping[str, Any]) -> Iterator[ErrorCode]:
    """Return the error codes in an answer, or a part of it."""
    for name, value in values.items():
        if name == "error_code":
            if value is not ErrorCode.none:
                yield value
        elif type(value) is list and value and type(value[0]) is dict:
            for each in value:
                yield from _errors(each)
