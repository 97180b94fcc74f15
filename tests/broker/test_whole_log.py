"""Test that fetches go on in a living broker, or its log directory, where an archive ends, as its consumers read on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from kafka import KafkaConsumer, TopicPartition

from broker.scenario import make_topic, producer
from broker.tiered_broker import KAFKA_VERSION, TieredBroker, small_segments
from coldlog.archive.layouts.log_directory import HIGH_WATERMARK_CHECKPOINT, read_checkpoint
from coldlog.archive.stores.local_store import LocalStore
from coldlog.brokers.kafka_client import Cluster
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.local.live_broker_tier import LiveBrokerTier
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.model.fetch import FetchedRecords, FetchRequest, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.archive_tables import ArchivedPartition
from coldlog.records.fetch.local_tail import LocalTail

pytestmark = pytest.mark.usefixtures("kafka_leftovers")

LIMITS = DecodeLimits(max_batch_bytes=128 << 20, max_decompressed_bytes=128 << 20)
PLACE = ("whole.log", 0)
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def filled(broker: TieredBroker) -> Iterator[TieredBroker]:
    """A broker with aborted and committed transactions, interleaved over several segments, and an open one."""
    make_topic(broker, PLACE[0], partition_count=1, configs=small_segments(KAFKA_VERSION, 5_000))
    with (
        producer(broker, transactional_id="whole-a") as aborting,
        producer(broker, transactional_id="whole-c") as committing,
        producer(broker) as plain,
    ):
        for client in (aborting, committing):
            client.init_transactions()
        for number in range(6):
            aborting.begin_transaction()
            committing.begin_transaction()
            for client in (aborting, committing, plain) * 4:
                client.send(PLACE[0], b"v" * 200, partition=0, timestamp_ms=START_MS + number)
                client.flush()
            if number < 5:
                aborting.abort_transaction()
            committing.commit_transaction()
        with KafkaConsumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
            end = consumer.end_offsets([TopicPartition(*PLACE)])[TopicPartition(*PLACE)]
        store = LocalStore(root=str(broker.data), uri=str(broker.data))
        broker.wait_until(
            lambda: read_checkpoint(store, HIGH_WATERMARK_CHECKPOINT).get(PLACE) == end,
            "the high watermark's checkpoint",
        )
        yield broker
        aborting.abort_transaction()


def _consumed(broker: TieredBroker, level: IsolationLevel) -> list[int]:
    partition, found = TopicPartition(*PLACE), list[int]()
    with KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, isolation_level=level.value) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        while polled := consumer.poll(timeout_ms=3_000):
            found += [record.offset for record in polled[partition]]
    return found


def _fetched(tail: LocalTail, offset: int, level: IsolationLevel, topic_id: str) -> list[int]:
    ends, found = PartitionEnds(log_start_offset=0, end_offset=offset, last_stable_offset=offset), list[int]()
    archived = ArchivedPartition(
        topic=PLACE[0],
        partition=PLACE[1],
        topic_id=topic_id,
        ends=ends,
        segments=(),
        from_offsets=np.empty(0, dtype=np.int64),
        undecided=(),
        lineage=(),
    )
    while True:
        request = FetchRequest(
            topic=PLACE[0], partition=PLACE[1], offset=offset, max_bytes=2_000, isolation_level=level
        )
        answer = tail.go_on(request, archived, FetchedRecords(records=(), next_offset=-1, ends=ends, read_bytes=0))
        assert isinstance(answer, FetchedRecords), answer
        found += [record.offset for record in answer.records]
        if answer.next_offset == offset:
            return found
        offset = answer.next_offset


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_broker_and_its_log_directory_go_on_with_the_records_of_its_consumers(
    filled: TieredBroker, cluster: Cluster, level: IsolationLevel
) -> None:
    expected = _consumed(filled, level)
    live = LiveBrokerTier(cluster)
    state = live.read_state(*PLACE)
    assert state is not None
    assert len(expected) >= 40
    for tier in (live, LogDirectoryTier(str(filled.data), LIMITS)):
        tail = LocalTail(tier, LIMITS)
        for begin in (0, expected[7], expected[7] + 1, expected[-20]):
            found = _fetched(tail, begin, level, str(state.topic_id))
            assert found == [offset for offset in expected if offset >= begin], (tier, begin)
        tail.close()
