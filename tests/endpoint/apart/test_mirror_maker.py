"""Does MirrorMaker 2 copy of the archive what a broker gave?"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin as confluent
import pytest

from broker.tiered_broker import TieredBroker, running_broker
from contents.record_rows import Row
from endpoint.conftest import Endpoint
from endpoint.support.clients import read_with_librdkafka
from endpoint.support.truth import LEVELS, PLACES, Place, true_records
from servers.kafka_jars import find_tool

_PATIENCE_S = 240
_IS_BEING_MADE = (
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
    confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
)
_TOPICS = ("from-librdkafka", "headers_and_big", "mixed-codecs", "payments")
_PLACES = [place for place in PLACES if place[0] in _TOPICS]
_PROPERTIES = """\
clusters=read_uncommitted, read_committed, target
read_uncommitted.bootstrap.servers={archive}
read_committed.bootstrap.servers={archive}
read_committed.consumer.isolation.level=read_committed
target.bootstrap.servers={target}
read_uncommitted->target.enabled=true
read_committed->target.enabled=true
topics={topics}
# Nothing can be written to the archive.
offset-syncs.topic.location=target
emit.heartbeats.enabled=false
sync.topic.acls.enabled=false
replication.factor=1
offset-syncs.topic.replication.factor=1
checkpoints.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredBroker]:
    """The broker that the records go to."""
    with running_broker(tmp_path_factory.mktemp("target")) as running:
        yield running


@pytest.fixture(scope="module")
def mirrored(endpoint: Endpoint, target: TieredBroker, tmp_path_factory: pytest.TempPathFactory) -> TieredBroker:
    """The target, when it has as many records as the archive."""
    directory = tmp_path_factory.mktemp("mirror")
    properties, notes = directory / "mm2.properties", directory / "notes"
    servers = {"archive": endpoint.address, "target": target.bootstrap_servers}
    properties.write_text(_PROPERTIES.format(**servers, topics=",".join(_TOPICS)), encoding="utf-8")
    java = [find_tool("java"), "-Xmx768m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{target.jars}/*"]
    with (
        notes.open("wb") as file,
        subprocess.Popen(
            [*java, "org.apache.kafka.connect.mirror.MirrorMaker", str(properties)],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=directory,
        ) as mirror_maker,
    ):
        try:
            _wait_for_all(target, mirror_maker, notes)
        finally:
            mirror_maker.kill()
    return target


def _wait_for_all(target: TieredBroker, mirror_maker: subprocess.Popen[bytes], notes: Path) -> None:
    missing = {(level, place): len(true_records(place, level)) for level in LEVELS for place in _PLACES}
    until = time.monotonic() + _PATIENCE_S
    with closing(
        confluent_kafka.Consumer({"bootstrap.servers": target.bootstrap_servers, "group.id": "unused"})
    ) as consumer:
        while missing:
            assert mirror_maker.poll() is None, notes.read_text()[-5000:]
            assert time.monotonic() < until, f"{missing}\n{notes.read_text()[-5000:]}"
            time.sleep(1)
            there = consumer.list_topics(timeout=_PATIENCE_S).topics
            for (level, place), count in list(missing.items()):
                topic, number = _mirror(level, place)
                if topic in there and _end(consumer, topic, number) >= count:
                    del missing[level, place]


def _end(consumer: confluent_kafka.Consumer, topic: str, partition: int) -> int:
    """The end of a partition; 0 while its topic is being made."""
    asked = confluent_kafka.TopicPartition(topic, partition)
    try:
        return consumer.get_watermark_offsets(asked, timeout=_PATIENCE_S)[1]
    except confluent_kafka.KafkaException as early:
        if early.args[0].code() not in _IS_BEING_MADE:
            raise
        return 0


def _mirror(level: str, place: Place) -> Place:
    """Where MirrorMaker puts a partition's records: it names the cluster that they come from."""
    return f"{level}.{place[0]}", place[1]


def _without_offset(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "o"}


@pytest.mark.shows("mirror-maker", "{level}")
@pytest.mark.parametrize("level", LEVELS)
def test_every_archived_record_is_copied_once(mirrored: TieredBroker, level: str) -> None:
    mirrors = [_mirror(level, place) for place in _PLACES]
    found = read_with_librdkafka(mirrored.bootstrap_servers, mirrors, "read_uncommitted")
    for place, mirror in zip(_PLACES, mirrors, strict=True):
        true = list(map(_without_offset, true_records(place, level)))
        assert list(map(_without_offset, found[mirror])) == true, mirror


@pytest.mark.shows("mirror-maker", "read_uncommitted")
def test_copied_topics_keep_old_records(mirrored: TieredBroker) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": mirrored.bootstrap_servers})
    topic = confluent.ConfigResource(confluent.ResourceType.TOPIC, f"{LEVELS[0]}.payments")  # type: ignore[attr-defined]
    assert admin.describe_configs([topic])[topic].result(60)["retention.ms"].value == "-1"
