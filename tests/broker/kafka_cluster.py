"""Start a cluster of three Kafka brokers that share one remote tier.

Each is broker and controller in one JVM, so two of three must live for anything to be decided. The tier is one
directory (LocalTieredStorage). No leader moves by itself but when its broker goes. A broker may be stopped, killed, and
started again, also as another version.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError

from broker.tiered_broker import (
    broker_jars,
    format_storage,
    listens,
    new_cluster_id,
    start_process,
    stop_process,
    tiered_storage,
)
from coldlog.archive.metadata_log import METADATA_TOPIC

Place = tuple[str, int]
NODES = (1, 2, 3)
FOLLOWER_FETCH_BYTES = 16_384
"""The most that a follower fetches of a partition at once: several such sets fill a small segment."""
_PREFERRED, _UNCLEAN = 0, 1
_WAIT_S, _TICK_S, _QUIET_S = 180, 0.25, 6
_OPTIONS = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/data
num.network.threads=2
num.io.threads=2
auto.create.topics.enable=false
auto.leader.rebalance.enable=false
replica.fetch.max.bytes={fetch_bytes}
offsets.topic.replication.factor=3
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""


@dataclass(slots=True, kw_only=True)
class Node:
    """One of the brokers; its process is there while it runs."""

    number: int
    directory: Path
    jars: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """Its log directory."""
        return self.directory / "data"

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself."""
        return self.process is not None and self.process.poll() is not None

    def log_end(self) -> str:
        """The last lines that it wrote."""
        return "\n".join((self.directory / "broker.log").read_text(errors="replace").splitlines()[-25:])


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCluster:
    """Three brokers and their tier."""

    nodes: Mapping[int, Node]
    tier: Path

    @property
    def bootstrap_servers(self) -> list[str]:
        """All brokers, those that are down too."""
        return [f"127.0.0.1:{node.port}" for node in self.nodes.values()]

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """An admin client; only brokers that run are named to it."""
        running = [f"127.0.0.1:{node.port}" for node in self.nodes.values() if node.is_up]
        client = KafkaAdminClient(bootstrap_servers=running, request_timeout_ms=60_000)
        try:
            yield client
        finally:
            client.close()

    def start(self, *numbers: int, version: str | None = None) -> None:
        """Start brokers, as another version if one is named; return when they listen."""
        for number in numbers:
            node = self.nodes[number]
            node.jars = broker_jars(version) if version else node.jars
            node.process = start_process(node.jars, node.directory, *_OPTIONS)
        for number in numbers:
            self.wait_until(lambda number=number: listens(self.nodes[number].port), f"broker {number}")  # type: ignore[misc]

    def stop(self, number: int) -> None:
        """Stop a broker as an operator does: it hands its leaderships over."""
        stop_process(self._take_process(number))

    def kill(self, number: int) -> None:
        """End a broker as a power failure does."""
        process = self._take_process(number)
        process.kill()
        process.wait()

    def _take_process(self, number: int) -> subprocess.Popen[bytes]:
        process = self.nodes[number].process
        assert process is not None, f"broker {number} does not run"
        self.nodes[number].process = None
        return process

    def make_topic(self, topic: str, assignments: Sequence[Sequence[int]], configs: Mapping[str, str]) -> None:
        """A topic whose partitions lie on these brokers; the first of each is the preferred leader."""
        wanted = {"assignments": dict(enumerate(map(list, assignments))), "configs": dict(configs)}
        self._change(lambda client: client.create_topics({topic: wanted}), f"topic {topic}")
        self.wait_until(lambda: len(self.leaders(topic)) == len(assignments), f"leaders of {topic}")

    def configure(self, topic: str, **configs: str) -> None:
        """Change settings of a topic; `_` in a name stands for `.`."""
        changed = {name.replace("_", "."): value for name, value in configs.items()}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, changed)
        self._change(lambda client: client.alter_configs([resource], raise_on_unknown=False), f"settings of {topic}")

    def leaders(self, topic: str) -> dict[int, int]:
        """The leader of every partition that has one."""
        return {number: each["leader_id"] for number, each in self._partitions(topic).items() if each["leader_id"] > 0}

    def in_sync(self, place: Place) -> set[int]:
        """Brokers whose replica has everything that counts as written."""
        return set(self._partitions(place[0]).get(place[1], {}).get("isr_nodes", ()))

    def _replicas(self, place: Place) -> list[int]:
        return list(self._partitions(place[0]).get(place[1], {}).get("replica_nodes", ()))

    def _partitions(self, topic: str) -> dict[int, dict[str, Any]]:
        with suppress(KafkaError), self.admin() as client:
            found = client.describe_topics([topic])
            return {each["partition_index"]: each for each in found[0]["partitions"]}
        return {}

    def move_leader(self, place: Place, number: int) -> None:
        """Make a broker the preferred leader by a reassignment, then elect it."""
        self.wait_until(lambda: number in self.in_sync(place), f"broker {number} to be in sync for {place}")
        wanted = [number, *(each for each in self._replicas(place) if each != number)]
        moved = {TopicPartition(*place): wanted}
        self._change(lambda client: client.alter_partition_reassignments(moved), f"a reassignment of {place}")
        self.wait_until(lambda: self._replicas(place) == wanted, f"replicas of {place}")
        self._elect(_PREFERRED, place, number)

    def elect_unclean(self, place: Place, number: int) -> None:
        """Let a broker lead that is not in sync: what it does not have is lost."""
        self._elect(_UNCLEAN, place, number)

    def _elect(self, kind: int, place: Place, number: int) -> None:
        def leads() -> bool:
            with suppress(KafkaError), self.admin() as client:
                client.elect_leaders(kind, {place[0]: [place[1]]})
            return self.leaders(place[0]).get(place[1]) == number

        self.wait_until(leads, f"broker {number} to lead {place}")

    def _change(self, change: Callable[[KafkaAdminClient], object], what: str) -> None:
        """Try until the cluster accepts it: brokers that started just now may not know each other."""

        def is_accepted() -> bool:
            with suppress(KafkaError), self.admin() as client, suppress(TopicAlreadyExistsError):
                change(client)
                return True
            return False

        self.wait_until(is_accepted, what)

    def local_logs(self, number: int, place: Place) -> list[int]:
        """Base offsets of the logs that a broker keeps itself."""
        return sorted(int(each.stem) for each in (self.nodes[number].data / f"{place[0]}-{place[1]}").glob("*.log"))

    def tiered_logs(self, place: Place) -> list[int]:
        """Base offsets of the logs in the tier."""
        return sorted(int(each.name[:20]) for each in self.tier.glob(f"*/{place[0]}-{place[1]}-*/*.log"))

    def is_tiered(self, place: Place) -> bool:
        """Whether the leader's last closed segment is in the tier."""
        local = self.local_logs(self.leaders(place[0])[place[1]], place)
        return len(local) < 2 or local[-2] in self.tiered_logs(place)

    def wait_until_quiet(self) -> None:
        """Nothing has been announced or put into the tier for a while, and brokers have the same metadata topic."""
        known: list[object] = []
        ticks = int(_QUIET_S / _TICK_S)

        def is_quiet() -> bool:
            logs = {
                number: sorted((each.parent.name, each.stat().st_size) for each in _metadata_logs(node))
                for number, node in self.nodes.items()
            }
            known.append((logs[1], len(list(self.tier.glob("*/*/*")))))
            return logs[1] == logs[2] == logs[3] and len(known) > ticks and known[-ticks:] == known[-1:] * ticks

        self.wait_until(is_quiet, "silence of the metadata topic")

    def copy_metadata_logs(self, directory: Path) -> None:
        """The metadata topic's log segments as they are now, without their preallocated indexes."""
        for each in _metadata_logs(self.nodes[1]):
            (directory / each.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(each, directory / each.parent.name / each.name)

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait; fail when a broker that should run has ended, or `what` does not come."""
        until = time.monotonic() + _WAIT_S
        while not is_so():
            if any(node.has_ended for node in self.nodes.values()) or time.monotonic() > until:
                logs = "\n".join(f"-- broker {node.number}\n{node.log_end()}" for node in self.nodes.values())
                pytest.fail(f"waited in vain for {what}; the brokers' logs end with\n{logs}")
            time.sleep(_TICK_S)


def _lasting_ports(count: int) -> list[int]:
    """Free ports that no client is given while a broker is down: those lie higher."""
    candidates = random.sample(range(20_000, 32_000), 50 * count)
    return [port for port in candidates if not listens(port)][:count]


def _metadata_logs(node: Node) -> list[Path]:
    return sorted(node.data.glob(f"{METADATA_TOPIC}-*/*.log"))


@contextmanager
def running_cluster(directory: Path, version: str) -> Iterator[KafkaCluster]:
    """Three brokers of that version below `directory`, ended when the block is left."""
    jars, ports = broker_jars(version), _lasting_ports(2 * len(NODES))
    voters = ",".join(f"{number}@127.0.0.1:{ports[2 * at + 1]}" for at, number in enumerate(NODES))
    tier, cluster_id, nodes = directory / "tier", new_cluster_id(), {}
    for at, number in enumerate(NODES):
        home = directory / f"broker-{number}"
        home.mkdir(parents=True)
        own = _PROPERTIES.format(
            node=number,
            voters=voters,
            port=ports[2 * at],
            controller_port=ports[2 * at + 1],
            directory=home,
            fetch_bytes=FOLLOWER_FETCH_BYTES,
        )
        (home / "server.properties").write_text(own + tiered_storage(version, directory, replicas=len(NODES)))
        format_storage(jars, home / "server.properties", cluster_id)
        nodes[number] = Node(number=number, directory=home, jars=jars, port=ports[2 * at])
    cluster = KafkaCluster(nodes=nodes, tier=tier)
    try:
        cluster.start(*NODES)
        yield cluster
    finally:
        for node in nodes.values():
            if node.process is not None:
                stop_process(node.process)
