"""tiered_broker: how does a test get a real broker with tiered storage?

One Kafka 4.2.1 in KRaft mode, broker and controller in one JVM on the loopback, its remote tier a directory
(LocalTieredStorage). Retention, tiering and deletion look for work every half second. A broker that does not come up,
or ends, fails the test with the end of its log.
"""

from __future__ import annotations

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_jars import find_tool, resolve_jars, run_tool

_START_S, _SETTLE_S, _STOP_S, _TICK_S = 120, 120, 30, 0.25
_FORMAT, _BROKER, _OFFSETS = "kafka.tools.StorageTool", "kafka.Kafka", "org.apache.kafka.tools.GetOffsetShell"
USER, PASSWORD = "reader", "tell-nobody"
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\\
  org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
# Whoever comes without a password may do all, the user what nobody has denied.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
log.dirs={directory}/data
num.network.threads=2
num.io.threads=2
# The default, and how a reader that asks for a topic could make it.
auto.create.topics.enable=true
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
log.message.timestamp.after.max.ms=9223372036854775807
# Internal: by default the first retention run waits half a minute.
log.initial.task.delay.ms=500
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=100
log.retention.ms=-1
remote.log.storage.system.enable=true
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.dir={directory}/tier
rsm.config.delete.on.close=false
remote.log.metadata.manager.class.name=org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.listener.name=PLAINTEXT
remote.log.metadata.manager.impl.prefix=rlmm.config.
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=3
rlmm.config.remote.log.metadata.initialization.retry.interval.ms=500
remote.log.manager.task.interval.ms=500
remote.log.manager.task.retry.backoff.ms=500
remote.log.manager.task.retry.backoff.max.ms=1000
"""


@dataclass(slots=True, kw_only=True)
class TieredBroker:
    """A broker that answers; its process changes when it is restarted, its ports do not."""

    process: subprocess.Popen[bytes]
    directory: Path
    jars: Path
    port: int
    sasl_port: int

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_bootstrap_servers(self) -> str:
        """Here only `USER` with `PASSWORD` is let in."""
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def data(self) -> Path:
        """The broker's log directory."""
        return self.directory / "data"

    @property
    def tier(self) -> Path:
        """The bucket."""
        return self.directory / "tier"

    def tiered_logs(self, topic: str, partition: int) -> Mapping[int, str]:
        """Segment ids of the logs in the bucket, by base offset."""
        names = [each.name for each in self.tier.glob(f"*/{topic}-{partition}-*/*.log")]
        return {int(name[:20]): name[21:].removesuffix(".log") for name in sorted(names)}

    def local_logs(self, topic: str, partition: int) -> list[int]:
        """Base offsets of the logs that the broker keeps itself; the last is the active one's."""
        return sorted(int(each.stem) for each in (self.data / f"{topic}-{partition}").glob("*.log"))

    def topics(self) -> frozenset[str]:
        """The topics that have a directory at the broker."""
        return frozenset(each.parent.name.rpartition("-")[0] for each in self.data.glob("*/partition.metadata"))

    def log_starts_as_kafka_tells(self) -> dict[tuple[str, int], int]:
        """The earliest offset of every partition, asked by Kafka's own admin client."""
        return self.offsets_as_kafka_tells("earliest")

    def offsets_as_kafka_tells(self, time: str) -> dict[tuple[str, int], int]:
        """What Kafka's own admin client is told for every partition; those are left out that have no such offset."""
        command = [find_tool("java"), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{self.jars}/*", _OFFSETS]
        lines = run_tool([*command, "--bootstrap-server", self.bootstrap_servers, "--time", time]).splitlines()
        found = [line.split(":") for line in lines]
        return {(topic, int(partition)): int(offset) for topic, partition, offset in found}

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits; fails when the broker ends or `what` does not come."""
        until = time.monotonic() + _SETTLE_S
        while not is_so():
            if self.process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"waited in vain for {what}; the broker's log ends with\n{self.log_end()}")
            time.sleep(_TICK_S)

    def restart(self) -> None:
        """Stops it as an operator does, and starts it on the same directories; returns when it listens."""
        _stop(self.process)
        self.process = _start(self.jars, self.directory)
        _wait_for_answer(self)

    def client_config(self, password: str = PASSWORD) -> str:
        """A file with what `USER` needs to be let in; metadata.client_config names such a file."""
        path = self.directory / f"client-{uuid.uuid4().hex}.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f"sasl.plain.username={USER}\nsasl.plain.password={password}\n"
        )
        return str(path)

    def log_end(self) -> str:
        """The last lines that the broker wrote."""
        return "\n".join((self.directory / "broker.log").read_text(errors="replace").splitlines()[-30:])


@contextmanager
def running_broker(directory: Path) -> Iterator[TieredBroker]:
    """A broker of its own below `directory`, ended when the block is left."""
    jars = resolve_jars(Path(__file__).with_name("pom.xml"), "tiered-broker")
    port, sasl_port, controller_port = _free_ports(3)
    ports = {"port": port, "sasl_port": sasl_port, "controller_port": controller_port}
    directory.mkdir(parents=True, exist_ok=True)
    properties = directory / "server.properties"
    properties.write_text(_PROPERTIES.format(**ports, directory=directory, user=USER, password=PASSWORD))
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    run_tool([*_java(jars), _FORMAT, "format", "--cluster-id", f"a{cluster_id[1:]}", "--config", str(properties)])
    process = _start(jars, directory)
    broker = TieredBroker(process=process, directory=directory, jars=jars, port=port, sasl_port=sasl_port)
    try:
        _wait_for_answer(broker)
        yield broker
    finally:
        _stop(broker.process)


def _java(jars: Path) -> list[str]:
    return [find_tool("java"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]


def _start(jars: Path, directory: Path) -> subprocess.Popen[bytes]:
    program, *options = _java(jars)
    with (directory / "broker.log").open("ab") as log:
        command = [program, "-Xmx512m", *options, _BROKER, str(directory / "server.properties")]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in servers]


def _wait_for_answer(broker: TieredBroker) -> None:
    until = time.monotonic() + _START_S
    while not _listens(broker.port):
        if broker.process.poll() is not None or time.monotonic() > until:
            pytest.fail(f"the broker did not come up; its log ends with\n{broker.log_end()}")
        time.sleep(_TICK_S)


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
