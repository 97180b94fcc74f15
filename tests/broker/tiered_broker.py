"""Start a real Kafka broker with tiered storage for tests.

One Kafka in KRaft mode, broker and controller in one JVM on the loopback, its remote tier a directory
(LocalTieredStorage; java/tier/DirectoryStorage for a version of which that one is not published). Its version is that
of the environment variable KAFKA, by default the newest with test jars. Retention, tiering and deletion look for work
every half second. A broker that does not come up, or ends, fails the test with the end of its log.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers.kafka_jars import find_tool, resolve_jars, run_tool

NEWEST = "4.3.1"
"""The newest version of Kafka whose test jars are published."""
KAFKA_VERSION = os.environ.get("KAFKA") or NEWEST
_START_S, _SETTLE_S, _STOP_S, _TICK_S = 120, 120, 30, 0.25


def is_since(version: str, since: tuple[int, ...]) -> bool:
    """Whether a version of Kafka is this one or a later one."""
    return tuple(map(int, version.split("."))) >= since


_FORMAT, _BROKER = "kafka.tools.StorageTool", "kafka.Kafka"
_OFFSETS = ("org.apache.kafka" if is_since(KAFKA_VERSION, (3, 7)) else "kafka") + ".tools.GetOffsetShell"
USER, PASSWORD = "reader", "tell-nobody"
_TIERED_STORAGE = """\
log.message.timestamp.after.max.ms=9223372036854775807
# Internal: by default the first retention run waits half a minute.
log.initial.task.delay.ms=500
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=100
log.retention.ms=-1
remote.log.storage.system.enable=true
{manager}
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.dir={tier}
rsm.config.delete.on.close=false
remote.log.metadata.manager.class.name=org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.listener.name=PLAINTEXT
remote.log.metadata.manager.impl.prefix=rlmm.config.
rlmm.config.remote.log.metadata.topic.replication.factor={replicas}
rlmm.config.remote.log.metadata.topic.num.partitions=3
rlmm.config.remote.log.metadata.initialization.retry.interval.ms=500
remote.log.manager.task.interval.ms=500
remote.log.manager.task.retry.backoff.ms=500
remote.log.manager.task.retry.backoff.max.ms=1000
"""
_MANAGER = "remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
_OWN_MANAGER = """\
remote.log.storage.manager.class.name=DirectoryStorage
remote.log.storage.manager.class.path={classes}/"""
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}{tls},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}{tls}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
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
"""


@dataclass(slots=True, kw_only=True)
class TieredBroker:
    """A broker that answers; its process changes when it is restarted, its ports do not."""

    process: subprocess.Popen[bytes]
    directory: Path
    jars: Path
    port: int
    sasl_port: int
    tls_port: int

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
        # The tool of 4.4 is not published; the one before will do.
        jars = self.jars if is_published(KAFKA_VERSION) else broker_jars(NEWEST)
        command = [find_tool("java"), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{jars}/*", _OFFSETS]
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
        stop_process(self.process)
        self.process = start_process(self.jars, self.directory, "-Xmx512m")
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
def running_broker(directory: Path, certificate: Path | None = None) -> Iterator[TieredBroker]:
    """A broker of its own below `directory`, ended when the block is left. With a certificate, and its key in the same
    file, it also listens with TLS."""
    jars = broker_jars(KAFKA_VERSION)
    port, sasl_port, controller_port, tls_port = free_ports(4)
    ports = {"port": port, "sasl_port": sasl_port, "controller_port": controller_port}
    directory.mkdir(parents=True, exist_ok=True)
    properties = directory / "server.properties"
    tls = "" if certificate is None else f",SSL://127.0.0.1:{tls_port}"
    own = _PROPERTIES.format(**ports, tls=tls, directory=directory, user=USER, password=PASSWORD)
    if certificate is not None:
        own += f"ssl.keystore.type=PEM\nssl.keystore.location={certificate}\n"
    properties.write_text(own + tiered_storage(KAFKA_VERSION, directory, replicas=1))
    format_storage(jars, properties, new_cluster_id())
    process = start_process(jars, directory, "-Xmx512m")
    broker = TieredBroker(
        process=process, directory=directory, jars=jars, port=port, sasl_port=sasl_port, tls_port=tls_port
    )
    try:
        _wait_for_answer(broker)
        yield broker
    finally:
        stop_process(broker.process)


def broker_jars(version: str) -> Path:
    """The jars of a broker of that version."""
    given = {"kafka_version": version} | ({"is_published": "true"} if is_published(version) else {})
    return resolve_jars(Path(__file__).with_name("pom.xml"), f"tiered-broker-{version}", **given)


def is_published(version: str) -> bool:
    """Whether Maven Central has Kafka's test jars and tools of that version; of 4.4.0 it has neither."""
    return not is_since(version, (4, 4))


def tiered_storage(version: str, directory: Path, replicas: int) -> str:
    """Settings of every broker here; the tier is `directory`/tier."""
    manager = _MANAGER
    if not is_published(version):
        classes, source = directory / "classes", Path(__file__).parent / "java" / "tier" / "DirectoryStorage.java"
        jars = broker_jars(version)
        run_tool([find_tool("javac"), "-Xlint:all", "-Werror", "-d", str(classes), "-cp", f"{jars}/*", str(source)])
        manager = _OWN_MANAGER.format(classes=classes)
    return _TIERED_STORAGE.format(manager=manager, tier=directory / "tier", replicas=replicas)


def small_segments(version: str, segment_bytes: int) -> dict[str, str]:
    """Topic settings for segments of that size; since Kafka 4.1 the public one has a floor of 1 MiB."""
    return {"internal.segment.bytes" if is_since(version, (4, 1)) else "segment.bytes": str(segment_bytes)}


def new_cluster_id() -> str:
    """A random Uuid in Kafka's text."""
    return "a" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def format_storage(jars: Path, properties: Path, cluster_id: str) -> None:
    """Prepare a broker's empty log directory."""
    run_tool([*_java(jars), _FORMAT, "format", "--cluster-id", cluster_id, "--config", str(properties)])


def _java(jars: Path) -> list[str]:
    return [find_tool("java"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]


def start_process(jars: Path, directory: Path, *options: str) -> subprocess.Popen[bytes]:
    """The broker of `directory`/server.properties; it may not listen yet."""
    program, *given = _java(jars)
    with (directory / "broker.log").open("ab") as log:
        command = [program, *options, *given, _BROKER, str(directory / "server.properties")]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens at now."""
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in servers]


def _wait_for_answer(broker: TieredBroker) -> None:
    until = time.monotonic() + _START_S
    while not listens(broker.port):
        if broker.process.poll() is not None or time.monotonic() > until:
            pytest.fail(f"the broker did not come up; its log ends with\n{broker.log_end()}")
        time.sleep(_TICK_S)


def listens(port: int) -> bool:
    """Whether a port of the loopback accepts connections."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stop it as an operator does; kill it if it takes too long."""
    process.terminate()
    try:
        process.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
