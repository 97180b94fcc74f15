"""serve: how fast does `coldlog serve` answer, beside a real broker with the same records?

A broker gets records in two topics of four partitions: one goes to a remote tier (LocalTieredStorage, a folder), the
other stays in its log directory. coldlog indexes the tier and serves it. Then the same clients read the same offsets
from the endpoint, from the broker's tier and from the broker's log, in turns. All of it runs on this machine, so the
clients share the processors with the server: beside the MB/s stand the processor seconds of the server alone.

A client that decodes records costs several times what a server costs, and hides how fast that is. So records are read
by librdkafka, and batches by a client that looks at their headers only; that one also reads through TLS.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from benchmarks.shared.measuring import MEGABYTE, Figure
from benchmarks.shared.sizes import Sizes
from confluent_kafka import Producer

from broker.scenario import make_topic
from broker.tiered_broker import TieredBroker, running_broker
from endpoint.conftest import Endpoint, serving
from endpoint.support.raw_client import RawClient, connected, framed, list_offsets
from servers.certificates import write_certificate

_ROOT = Path(__file__).resolve().parent.parent
_TIERED, _LOCAL = "tiered", "local"
_PARTITIONS, _RECORD_BYTES, _SEGMENT_BYTES = 4, 1_000, 16 << 20
_FIRST_MS, _STEP_MS = 1_700_000_000_000, 10
_QUESTIONS, _IN_FLIGHT, _CONNECTIONS = 1_000, 16, 1_000
_TOPIC = {"segment.bytes": str(_SEGMENT_BYTES), "file.delete.delay.ms": "100"}
_TIERING = {"remote.storage.enable": "true", "local.retention.bytes": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A server with the records of a topic. At `port` it expects TLS if there is a certificate."""

    name: str
    port: int
    topic: str
    process: psutil.Process
    certificate: Path | None = None

    def processor_seconds(self) -> float:
        used = self.process.cpu_times()
        return float(used.user + used.system)


def measure_serve(sizes: Sizes) -> Iterator[Figure]:
    """MB/s with some clients, and questions a second, beside those of a broker."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        certificate = write_certificate(folder)
        with running_broker(folder / "broker", certificate) as broker:
            _produce(broker, sizes.served_bytes)
            ends = _wait_for_tier(broker)
            warehouse = str(_index(broker, folder))
            with serving(folder / "notes", warehouse, broker.tier) as endpoint:
                ways = _ways(endpoint, broker, endpoint.port, broker.port)
                for client_count in (1, _PARTITIONS):
                    yield from _reading("records", ways, ends, client_count, sizes.turns)
                for client_count in (1, _PARTITIONS, 4 * _PARTITIONS):
                    yield from _reading("batches", ways, ends, client_count, sizes.turns)
                yield from _asking(ways[:2], ends, sizes.turns)
                yield _memory(ways[0].process, "")
                yield from _waiting(endpoint.port, ways[0].process)
            tls = f"serve.tls_certificate={certificate}"
            with serving(folder / "notes-of-tls", warehouse, broker.tier, tls) as endpoint:
                ways = _ways(endpoint, broker, endpoint.port, broker.tls_port, certificate)
                for client_count in (1, _PARTITIONS):
                    yield from _reading("batches, TLS", ways, ends, client_count, sizes.turns)


def _ways(
    endpoint: Endpoint, broker: TieredBroker, our_port: int, their_port: int, certificate: Path | None = None
) -> tuple[_Way, _Way, _Way]:
    ours, theirs = psutil.Process(endpoint.process.pid), psutil.Process(broker.process.pid)
    return (
        _Way(name="coldlog", port=our_port, topic=_TIERED, process=ours, certificate=certificate),
        _Way(name="broker's tier", port=their_port, topic=_TIERED, process=theirs, certificate=certificate),
        _Way(name="broker's log", port=their_port, topic=_LOCAL, process=theirs, certificate=certificate),
    )


def _produce(broker: TieredBroker, wanted_bytes: int) -> None:
    """Send the same records to both topics."""
    make_topic(broker, _TIERED, partition_count=_PARTITIONS, configs=_TOPIC | _TIERING)
    make_topic(broker, _LOCAL, partition_count=_PARTITIONS, configs=_TOPIC)
    # More, because the last segment of each partition is not tiered.
    count = wanted_bytes // _PARTITIONS // _RECORD_BYTES + 2 * _SEGMENT_BYTES // _RECORD_BYTES
    chance = random.Random(1)
    values = [chance.randbytes(_RECORD_BYTES) for _ in range(1_000)]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50, "batch.size": 128 << 10})
    for number in range(count):
        for topic in (_TIERED, _LOCAL):
            for partition in range(_PARTITIONS):
                at_ms = _FIRST_MS + number * _STEP_MS
                producer.produce(topic, values[number % len(values)], partition=partition, timestamp=at_ms)
        producer.poll(0)
        if number % 1_000 == 999:
            producer.flush()
    producer.flush()


def _wait_for_tier(broker: TieredBroker) -> Mapping[int, int]:
    """Wait until the broker keeps only active segments itself; return where the tier ends, by partition."""
    for partition in range(_PARTITIONS):
        broker.wait_until(lambda at=partition: len(broker.local_logs(_TIERED, at)) == 1, f"the tier of {partition}")  # type: ignore[misc]
    return {partition: broker.local_logs(_TIERED, partition)[0] for partition in range(_PARTITIONS)}


def _index(broker: TieredBroker, folder: Path) -> Path:
    warehouse = folder / "warehouse"
    settings = (
        f"archive.uri={broker.tier}",
        f"warehouse.uri={warehouse}",
        "metadata.source=topic",
        f"metadata.bootstrap_servers={broker.bootstrap_servers}",
    )
    command = [str(_ROOT / "spark-submit.sh"), "run_pipeline", *(part for each in settings for part in ("--set", each))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return warehouse


def _reading(
    what: str, ways: Sequence[_Way], ends: Mapping[int, int], client_count: int, turns: int
) -> Iterator[Figure]:
    """Read everything; each client has its share of the partitions. More clients read the first part of one each."""
    ends = {at: end * _PARTITIONS // max(client_count, _PARTITIONS) for at, end in ends.items()}
    rates: dict[str, list[float]] = {way.name: [] for way in ways}
    costs: dict[str, list[float]] = {way.name: [] for way in ways}
    for turn in range(turns + 1):
        for way in ways:
            before = way.processor_seconds()
            megabytes, seconds = _read(what, way, ends, client_count)
            if turn > 0:
                rates[way.name].append(megabytes / seconds)
                costs[way.name].append(1000 * (way.processor_seconds() - before) / megabytes)
    clients = "1 client" if client_count == 1 else f"{client_count} clients"
    yield from _figures(what, clients, ways, ((rates, "MB/s"), (costs, "cpu s/GB")))


def _figures(
    what: str, on: str, ways: Sequence[_Way], units: Sequence[tuple[Mapping[str, list[float]], str]]
) -> Iterator[Figure]:
    """Medians of the first way, beside those of the others."""
    for found, unit in units:
        ours, *others = (statistics.median(found[way.name]) for way in ways)
        yield Figure(
            benchmark="serve",
            what=what,
            on=on,
            value=ours,
            unit=unit,
            against=", ".join(f"{way.name} {other:,.1f}" for way, other in zip(ways[1:], others, strict=True)),
            ratio=ours / others[0],
        )


def _read(what: str, way: _Way, ends: Mapping[int, int], client_count: int) -> tuple[float, float]:
    """Return megabytes, and the seconds of the slowest client."""
    program = Path(__file__).parent / "shared" / ("consume.py" if what == "records" else "fetch_batches.py")
    given = [f"127.0.0.1:{way.port}", way.topic, *([] if way.certificate is None else ["--tls", str(way.certificate)])]
    clients, environment = [], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for number in range(client_count):
        partitions = range(number % _PARTITIONS, _PARTITIONS, min(client_count, _PARTITIONS))
        command = [sys.executable, str(program), *given, *(f"{each}:{ends[each]}" for each in partitions)]
        clients.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
    for client in clients:
        assert client.stdout is not None
        if client.stdout.readline() != "ready\n":
            raise ChildProcessError(f"no client for {way.name}")
    outputs = _release(clients)
    found = [json.loads(output) for output in outputs]
    return sum(each["bytes"] for each in found) / MEGABYTE, max(each["seconds"] for each in found)


def _release(clients: Sequence[subprocess.Popen[str]]) -> list[str]:
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
    return [client.communicate()[0] for client in clients]


def _asking(ways: Sequence[_Way], ends: Mapping[int, int], turns: int) -> Iterator[Figure]:
    """Ask for offsets by time: one after another, several at a time, and of all partitions at once. The requests are
    made before, and the answers are not decoded, so that the client costs little."""
    chance = random.Random(2)

    def frame(places: Sequence[int]) -> bytes:
        asked = [(_TIERED, place, _FIRST_MS + chance.randrange(ends[place]) * _STEP_MS) for place in places]
        return framed(2, 11, list_offsets(asked))

    single = [frame([chance.randrange(_PARTITIONS)]) for _ in range(_QUESTIONS)]
    for on, frames, in_flight in (
        ("one after another", single, 1),
        (f"{_IN_FLIGHT} in flight", single, _IN_FLIGHT),
        (f"{_PARTITIONS} partitions a request", [frame(range(_PARTITIONS)) for _ in range(_QUESTIONS)], 1),
    ):
        rates: dict[str, list[float]] = {way.name: [] for way in ways}
        costs: dict[str, list[float]] = {way.name: [] for way in ways}
        with _connections(ways) as clients:
            for turn in range(turns + 1):
                for way in ways:
                    before = way.processor_seconds()
                    seconds = _timed(lambda client=clients[way.name]: _ask(client, frames, in_flight))  # type: ignore[misc]  # noqa: B023 - called at once
                    if turn > 0:
                        rates[way.name].append(_QUESTIONS / seconds)
                        costs[way.name].append(1_000_000 * (way.processor_seconds() - before) / _QUESTIONS)
        yield from _figures("ListOffsets", on, ways, ((rates, "/s"), (costs, "cpu us")))


def _ask(client: RawClient, frames: Sequence[bytes], in_flight: int) -> None:
    for first in range(0, len(frames), in_flight):
        sent = frames[first : first + in_flight]
        client.connection.sendall(b"".join(sent))
        for _ in sent:
            client.receive()


@contextmanager
def _connections(ways: Sequence[_Way]) -> Iterator[dict[str, RawClient]]:
    with connected(ways[0].port) as ours, connected(ways[1].port) as theirs:
        yield {ways[0].name: ours, ways[1].name: theirs}


def _memory(server: psutil.Process, on: str) -> Figure:
    used = server.memory_info().rss / MEGABYTE
    return Figure(benchmark="serve", what="memory of the server", on=on, value=used, unit="MB")


def _waiting(port: int, server: psutil.Process) -> Iterator[Figure]:
    """Memory with many connections, and the time of the slowest of a hundred questions on one of them."""
    with ExitStack() as opened:
        clients = [opened.enter_context(connected(port)) for _ in range(_CONNECTIONS)]
        frame = framed(2, 11, list_offsets([(_TIERED, 0, _FIRST_MS)]))
        seconds = sorted(_timed(lambda client=client: _ask(client, [frame], 1)) for client in clients * 3)  # type: ignore[misc]
        on = f"{_CONNECTIONS} connections"
        slow_ms = 1000 * seconds[len(seconds) * 99 // 100]
        yield Figure(benchmark="serve", what="ListOffsets, 99th percentile", on=on, value=slow_ms, unit="ms")
        yield _memory(server, on)


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
