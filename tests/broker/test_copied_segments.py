"""A broker that does not tier a topic; coldlog copies its segments and announces them to it. Then the broker is told
to tier the topic: it takes the segments for its own, deletes what it has itself, and serves records from the copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from broker.scenario import SMALL_SEGMENTS, TIERED, admin, make_topic, producer
from broker.tiered_broker import KAFKA_VERSION, TieredBroker, is_since, running_broker
from coldlog.archive.layouts.log_directory import HIGH_WATERMARK_CHECKPOINT, read_checkpoint
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.open_archive import open_archive_for_writing
from coldlog.archive.stores.local_store import LocalStore
from coldlog.brokers.kafka_client import Cluster, open_cluster
from coldlog.formats.limits import DecodeLimits
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.copying.copy_segments import CopyOptions, CopySummary, copy_segments
from coldlog.tiering.event_logs import KnownEventLog, topic_event_log
from coldlog.tiering.expiry.expire_partition import ExpiryOutcome, ExpiryRules, PartitionExpiry
from coldlog.tiering.expiry.expire_segments import ExpireOptions, Tier, expire_segments
from coldlog.tiering.expiry.expiry_state import LogSources
from coldlog.tiering.rules.expiry import Retention
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.system_clock import SystemClock
from coldlog.tiering.tier_partitions import TierPartitions
from coldlog.tiering.tier_schedule import ScheduleOptions, TierSchedule, tier_schedule_table

TOPIC = "copied"
START_MS = 1_700_000_000_000
OPTIONS = CopyOptions(
    broker_id=101,
    quota=QuotaConfig(),
    limits=DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26),
    topics=(TOPIC,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What was sent, by offset and in transactions that were committed alone; what was copied; where the broker's own
    copies begin."""

    broker: TieredBroker
    sent: dict[int, bytes]
    committed: set[int]
    summary: CopySummary
    again: CopySummary
    copied: dict[int, str]
    tiered_later: dict[int, str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredBroker]:
    """One of its own: others count the topics of theirs."""
    with running_broker(tmp_path_factory.mktemp("broker-of-copies")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(broker: TieredBroker) -> Cluster:
    return open_cluster(broker.bootstrap_servers, 120_000, None)


@pytest.fixture(scope="module")
def handed(broker: TieredBroker, cluster: Cluster) -> Handed:
    untiered = SMALL_SEGMENTS | {"file.delete.delay.ms": "100"}
    make_topic(broker, TOPIC, partition_count=1, configs=untiered)
    sent, committed = send_transactions(broker)
    end = max(sent) + 2
    store = LocalStore(root=str(broker.data), uri=str(broker.data))
    broker.wait_until(
        lambda: read_checkpoint(store, HIGH_WATERMARK_CHECKPOINT).get((TOPIC, 0), 0) >= end, "the high watermark"
    )
    broker.wait_until(lambda: METADATA_TOPIC in broker.topics(), "the metadata topic")
    archive = open_archive_for_writing(str(broker.tier))
    with topic_event_log(cluster, METADATA_TOPIC) as events:
        summary = copy_segments([str(broker.data)], archive, events, OPTIONS, SystemClock())
        again = copy_segments([str(broker.data)], archive, events, OPTIONS, SystemClock())
    copied = dict(broker.tiered_logs(TOPIC, 0))
    tier_topic(broker)
    if not is_since(KAFKA_VERSION, (3, 7)):
        # Such a broker deletes nothing before it has copied a segment itself (KAFKA-15241).
        later_sent, later_committed = send_transactions(broker, count=8)
        sent, committed = sent | later_sent, committed | later_committed
    broker.wait_until(lambda: len(broker.local_logs(TOPIC, 0)) == 1, "the deletion of what is in the tier")
    return Handed(
        broker=broker,
        sent=sent,
        committed=committed,
        summary=summary,
        again=again,
        copied=copied,
        tiered_later=dict(broker.tiered_logs(TOPIC, 0)),
    )


def send_transactions(broker: TieredBroker, count: int = 20) -> tuple[dict[int, bytes], set[int]]:
    """Transactions of ten records; every third is aborted."""
    sent: dict[int, bytes] = {}
    committed: set[int] = set()
    with producer(broker, "copied-by-coldlog") as client:
        client.init_transactions()
        for number in range(count):
            client.begin_transaction()
            values = [b"%05d" % (number * 10 + index) * 100 for index in range(10)]
            futures = [
                client.send(TOPIC, value, partition=0, timestamp_ms=START_MS + number * 1_000) for value in values
            ]
            client.flush()
            offsets = [future.get(20).offset for future in futures]
            sent |= dict(zip(offsets, values, strict=True))
            if number % 3 == 2:
                client.abort_transaction()
            else:
                client.commit_transaction()
                committed |= set(offsets)
    return sent, committed


def tier_topic(broker: TieredBroker) -> None:
    """From now on the broker tiers it, and keeps the active segment alone."""
    configs = {name: TIERED[name] for name in ("remote.storage.enable", "local.retention.bytes")}
    with admin(broker) as client:
        client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, TOPIC, configs=configs)])


def consume(broker: TieredBroker, isolation_level: str, end: int) -> dict[int, bytes]:
    """What a consumer gets from the beginning on."""
    found: dict[int, bytes] = {}
    place = TopicPartition(TOPIC, 0)
    with KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, isolation_level=isolation_level, enable_auto_commit=False
    ) as consumer:
        consumer.assign([place])
        consumer.seek(place, 0)

        def is_read() -> bool:
            for record in consumer.poll(500).get(place, []):
                found[record.offset] = record.value
            return int(consumer.position(place)) >= end

        broker.wait_until(is_read, "the records")
    return found


def test_all_closed_segments_are_copied_once(handed: Handed) -> None:
    assert handed.summary.copied_count == len(handed.copied) >= 4
    assert [(each.outcome.is_failure, each.why) for each in handed.summary.partitions] == [(False, "")]
    assert handed.again.copied_count == 0


def test_broker_takes_the_segments_for_its_own_and_copies_none_again(handed: Handed) -> None:
    assert {base: handed.tiered_later[base] for base in handed.copied} == handed.copied
    later = handed.tiered_later.keys() - handed.copied.keys()
    assert all(base > max(handed.copied) for base in later)
    local = handed.broker.local_logs(TOPIC, 0)
    assert min(local) > max(handed.copied)


def test_every_record_is_served_from_the_copies(handed: Handed) -> None:
    assert consume(handed.broker, "read_uncommitted", max(handed.sent) + 1) == handed.sent


def test_aborted_records_are_filtered_by_the_copied_indexes(handed: Handed) -> None:
    expected = {offset: handed.sent[offset] for offset in handed.committed}
    assert 0 < len(expected) < len(handed.sent)
    assert consume(handed.broker, "read_committed", max(handed.sent) + 1) == expected


def test_offsets_for_times_are_answered_from_the_copies(handed: Handed) -> None:
    place = TopicPartition(TOPIC, 0)
    with KafkaConsumer(bootstrap_servers=handed.broker.bootstrap_servers) as consumer:
        for number in (0, 7, 12):
            first = consumer.offsets_for_times({place: START_MS + number * 1_000})[place]
            # Ten records and a marker a transaction; the marker before has the broker's clock.
            assert first.offset <= number * 11
            assert first.timestamp >= START_MS + number * 1_000


def test_log_start_is_still_the_first_offset(handed: Handed) -> None:
    assert handed.broker.log_starts_as_kafka_tells()[TOPIC, 0] == 0
    assert (Path(handed.broker.tier) / "kafka-tiered-storage").is_dir()


def expire(handed: Handed, cluster: Cluster, folder: Path, broker_id: int) -> dict[str, PartitionExpiry]:
    """What expire_segments makes of the partitions of the live topic, whose records are of 2023."""
    clock, archive = SystemClock(), open_archive_for_writing(str(handed.broker.tier))
    options = ScheduleOptions(holder="test", broker_id=broker_id, ignores_times=True)
    with topic_event_log(cluster, METADATA_TOPIC) as events:
        tier = Tier(
            archive=archive,
            events=events,
            sources=LogSources(archive=archive, limits=OPTIONS.limits, supplied_log_starts={}),
            schedule=TierSchedule(tier_schedule_table(str(folder)), clock, options),
            partitions=TierPartitions.below(str(folder), clock),
            clock=clock,
        )
        rules = ExpiryRules(retention=Retention(retention_ms=86_400_000), deletes_of_others=False)
        summary = expire_segments(tier, ExpireOptions(broker_id=broker_id, rules=rules))
    return {each.partition.topic: each for each in summary.partitions}


def test_what_another_one_has_announced_is_left_to_it(handed: Handed, cluster: Cluster, tmp_path: Path) -> None:
    found = expire(handed, cluster, tmp_path, broker_id=102)[TOPIC]
    assert (found.outcome, found.deleted_count) == (ExpiryOutcome.NOT_OURS, 0)
    assert "tiers this partition and expires it" in found.why


def test_what_was_copied_of_a_topic_that_no_broker_tiers_expires_by_events_in_the_live_topic(
    handed: Handed, cluster: Cluster, tmp_path: Path
) -> None:
    broker, topic = handed.broker, "expired"
    make_topic(broker, topic, partition_count=1, configs=SMALL_SEGMENTS)
    with producer(broker) as client:
        for number in range(200):
            client.send(topic, b"%05d" % number * 100, partition=0, timestamp_ms=START_MS + number)
            client.flush()
    store = LocalStore(root=str(broker.data), uri=str(broker.data))
    broker.wait_until(
        lambda: read_checkpoint(store, HIGH_WATERMARK_CHECKPOINT).get((topic, 0), 0) >= 200, "the high watermark"
    )
    options, archive = replace(OPTIONS, topics=(topic,)), open_archive_for_writing(str(broker.tier))
    with topic_event_log(cluster, METADATA_TOPIC) as events:
        copied = copy_segments([str(broker.data)], archive, events, options, SystemClock())
    logs = broker.tiered_logs(topic, 0)
    assert copied.copied_count == len(logs) >= 4
    found = expire(handed, cluster, tmp_path, OPTIONS.broker_id)[topic]
    assert (found.outcome, found.deleted_count) == (ExpiryOutcome.DONE, len(logs))
    assert not broker.tiered_logs(topic, 0)
    with topic_event_log(cluster, METADATA_TOPIC) as events:
        known = KnownEventLog(events)
    states = {each.state for each in known.segments_of(found.partition)}
    assert states == {RemoteLogSegmentState.DELETE_SEGMENT_FINISHED}
    assert known.is_complete
    assert expire(handed, cluster, tmp_path, OPTIONS.broker_id)[topic].deleted_count == 0
