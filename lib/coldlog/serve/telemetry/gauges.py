"""Measure an endpoint's threads, groups and connections when Prometheus asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from coldlog.serve.context import Context
from coldlog.serve.groups.group import GroupState
from coldlog.serve.threads import Threads

_PREFIX = "coldlog_serve_"
_POOLS: tuple[tuple[str, str, Callable[[Threads], float]], ...] = (
    (
        "queue_size",
        "calls that wait for a thread; RemoteLogReaderTaskQueueSize of KIP-405 (fetch), "
        "RemoteLogOffsetReaderTaskQueueSize of KIP-1075 (lookup)",
        lambda threads: threads.waiting,
    ),
    (
        "idle_ratio",
        "share of idle threads, now; RemoteLogReaderAvgIdlePercent of KIP-405 (fetch), "
        "RemoteLogOffsetReaderAvgIdlePercent of KIP-1075 (lookup)",
        lambda threads: threads.idle_share,
    ),
    ("threads", "threads that there may be", lambda threads: threads.count),
    ("hanging_threads", "threads whose call has not returned by its deadline", lambda threads: threads.given_up),
)
_COUNTS: tuple[tuple[str, str, Callable[[Threads], float]], ...] = (
    ("expired", "calls that did not return by their deadline", lambda threads: threads.expired),
    (
        "busy_seconds",
        "how long threads have worked on calls that have returned; 1 - rate(...) / threads is the average of "
        "idle_ratio",
        lambda threads: threads.busy_seconds,
    ),
    (
        "queue_full",
        "calls refused because too many wait: remote.log.reader.max.pending.tasks of KIP-405 (fetch), "
        "remote.log.offset.read.max.pending.tasks of KIP-1075 (lookup)",
        lambda threads: threads.refused,
    ),
)


def observe(context: Context, connections: Callable[[], int]) -> None:
    """Add what is measured to the metrics."""
    context.metrics.registry.register(_Gauges(context, connections))


class _Gauges(Collector):
    def __init__(self, context: Context, connections: Callable[[], int]) -> None:
        self._context = context
        self._connections = connections

    def collect(self) -> Iterator[Metric]:
        context = self._context
        pools = {
            "fetch": context.fetch_threads,
            "lookup": context.lookup_threads,
            "tables": context.table_threads,
            "send": context.send_threads,
        }
        for name, text, measure in _POOLS:
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["pool"])
            for pool, threads in pools.items():
                gauge.add_metric([pool], measure(threads))
            yield gauge
        for name, text, count in _COUNTS:
            counter = CounterMetricFamily(_PREFIX + name, text, labels=["pool"])
            for pool, threads in pools.items():
                counter.add_metric([pool], count(threads))
            yield counter
        yield GaugeMetricFamily(_PREFIX + "connections", "open connections", value=self._connections())
        yield GaugeMetricFamily(
            _PREFIX + "read_ahead_bytes",
            "memory of slices that are read ahead, bounded by serve.read_ahead_bytes",
            value=context.read_ahead.held_bytes,
        )
        groups = GaugeMetricFamily(
            _PREFIX + "groups",
            "consumer groups; NumGroups of kafka.coordinator.group:type=GroupMetadataManager",
            labels=["state"],
        )
        counts = Counter(group.state for group in self._context.groups.groups.values())
        for state in GroupState:
            groups.add_metric([state.value], counts[state])
        yield groups
        if context.shared is not None:
            text = "slots of consumer groups, of 50, that this node coordinates"
            yield GaugeMetricFamily(_PREFIX + "held_slots", text, value=context.shared.held_count)
