"""The metadata topic of a living broker, against the same topic's log segments, and topics made to be awkward."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka import TopicPartition
from pyspark.sql import SparkSession

from broker.conftest import Played, events_only
from broker.late_answers import late_answers
from broker.scenario import admin, make_topic, producer
from broker.tiered_broker import TieredBroker
from builders.metadata_events import DELETE, SEGMENT, UPDATE
from coldlog.brokers.kafka_client import Cluster, describe_topics, iter_records, open_cluster
from coldlog.errors import RetriableError, UsageError
from coldlog.formats.kafka.remote_log.remote_log_metadata import encode_event
from coldlog.indexing.events.live_topic import TopicSource
from coldlog.indexing.events.read_events import read_events
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import table_rows
from worlds.golden_warehouse import log_segments_source

pytestmark = pytest.mark.usefixtures("kafka_leftovers")

VALUES = [encode_event(event) for event in (SEGMENT, UPDATE, DELETE)]


def _send(broker: TieredBroker, topic: str, partition: int, values: Sequence[bytes | None]) -> None:
    with producer(broker) as client:
        for value in values:
            client.send(topic, value, key=b"key", partition=partition)


def _rows(warehouse: Warehouse, partition: int) -> list[tuple[int, bytes | None]]:
    rows = warehouse.read(SEGMENT_EVENTS).where(f"metadata_partition = {partition}").orderBy("metadata_offset")
    return [(row["metadata_offset"], None if row["value"] is None else bytes(row["value"])) for row in rows.collect()]


def test_live_topic_holds_the_events_of_its_own_log_segments(
    played: Played, spark: SparkSession, tmp_path: Path
) -> None:
    from_logs = events_only(spark, tmp_path / "warehouse")
    first = read_events(from_logs, log_segments_source(played.first_copy))
    assert first == played.first
    assert first.new_event_count >= 2 * 20
    second = read_events(from_logs, log_segments_source(played.second_copy))
    assert second == played.second
    assert table_rows(from_logs, SEGMENT_EVENTS) == table_rows(played.events, SEGMENT_EVENTS)


def test_second_reading_gives_only_what_is_new_and_a_third_writes_nothing(played: Played, cluster: Cluster) -> None:
    events = played.events
    assert played.second.new_event_count > 0
    assert played.first.new_event_count + played.second.new_event_count == events.read(SEGMENT_EVENTS).count()
    for summary in (played.first, played.second):
        assert (summary.unreadable_count, summary.damaged_partition_count, summary.missing_offset_count) == (0, 0, 0)
    history = f"DESCRIBE HISTORY {events.identifier(SEGMENT_EVENTS)}"
    commit_count = events.spark.sql(history).count()
    assert read_events(events, TopicSource(cluster=cluster, topic="__remote_log_metadata")).new_event_count == 0
    assert events.spark.sql(history).count() == commit_count


def test_reading_makes_no_topic_and_joins_no_group(played: Played) -> None:
    assert played.topics_after == played.topics_before
    assert "__consumer_offsets" not in played.topics_after


def test_topic_that_the_broker_lacks_is_refused_and_not_made(
    broker: TieredBroker, cluster: Cluster, spark: SparkSession
) -> None:
    with pytest.raises(UsageError, match=f"the brokers {broker.bootstrap_servers} have no topic nowhere"):
        TopicSource(cluster=cluster, topic="nowhere").read(spark, {})
    assert "nowhere" not in broker.topics()


def test_records_that_retention_removed_are_counted_as_missing_and_a_row_says_up_to_where(
    broker: TieredBroker, cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    make_topic(broker, "retained", partition_count=2)
    warehouse, source = events_only(spark, tmp_path / "warehouse"), TopicSource(cluster=cluster, topic="retained")
    _send(broker, "retained", 0, VALUES * 2)
    _send(broker, "retained", 1, [*VALUES[:1], None, b""])
    with admin(broker) as client:
        client.delete_records({TopicPartition("retained", 0): 4})
    first = read_events(warehouse, source)
    assert (first.new_event_count, first.missing_offset_count, first.unreadable_count) == (2 + 3, 4, 2)
    assert _rows(warehouse, 0) == [(3, None), (4, VALUES[1]), (5, VALUES[2])]
    assert _rows(warehouse, 1) == [(0, VALUES[0]), (1, None), (2, b"")]

    _send(broker, "retained", 0, VALUES * 2)
    with admin(broker) as client:
        client.delete_records({TopicPartition("retained", 0): 9})
    second = read_events(warehouse, source)
    assert (second.new_event_count, second.missing_offset_count) == (3, 3), "the last one read is gone too"
    assert [offset for offset, _ in _rows(warehouse, 0)] == [3, 4, 5, 8, 9, 10, 11]
    lost = warehouse.read(SEGMENT_EVENTS).where("event_kind = 'lost'").orderBy("metadata_offset").collect()
    assert [row["metadata_offset"] for row in lost] == [3, 8]

    with admin(broker) as client:
        client.delete_records({TopicPartition("retained", 0): 12})
    third = read_events(warehouse, source)
    assert (third.new_event_count, third.missing_offset_count, third.lost_partitions) == (0, 0, ())


def test_topic_that_was_made_anew_is_refused(
    broker: TieredBroker, cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    source = TopicSource(cluster=cluster, topic="remade")
    warehouse = events_only(spark, tmp_path / "warehouse")
    make_topic(broker, "remade", partition_count=1)
    _send(broker, "remade", 0, VALUES)
    read_events(warehouse, source)
    with admin(broker) as client:
        client.delete_topics(["remade"])
    make_topic(broker, "remade", partition_count=1)
    with pytest.raises(UsageError, match="partition 0 of topic remade at .* ends before offset 2"):
        read_events(warehouse, source)
    _send(broker, "remade", 0, VALUES[:1] * 5)
    with pytest.raises(UsageError, match="holds another event at offset 2"):
        read_events(warehouse, source)
    assert len(_rows(warehouse, 0)) == 3


def test_reading_ends_behind_the_marker_of_a_transaction_and_counts_aborted_records_too(
    broker: TieredBroker, cluster: Cluster
) -> None:
    make_topic(broker, "transacted", partition_count=1)
    with producer(broker, transactional_id="coldlog") as client:
        client.init_transactions()
        for is_committed in (True, False):
            client.begin_transaction()
            client.send("transacted", VALUES[0], partition=0)
            client.send("transacted", VALUES[1], partition=0)
            client.flush()
            client.commit_transaction() if is_committed else client.abort_transaction()
    source = TopicSource(cluster=cluster, topic="transacted")
    broker.wait_until(lambda: source.plan_ranges({})[0].end_offset == 6, "the markers of two transactions")
    pieces = list(iter_records(cluster, "transacted", 0, 0, 6))
    assert [record.offset for piece in pieces for record in piece] == [0, 1, 3, 4]


def test_reading_stops_at_the_end_that_was_planned(broker: TieredBroker, cluster: Cluster) -> None:
    make_topic(broker, "growing", partition_count=1)
    _send(broker, "growing", 0, VALUES)
    (wanted,) = TopicSource(cluster=cluster, topic="growing").plan_ranges({0: 1})
    _send(broker, "growing", 0, VALUES)
    pieces = list(iter_records(cluster, "growing", 0, wanted.from_offset, wanted.end_offset))
    records = [record for piece in pieces for record in piece]
    assert [(record.offset, record.value) for record in records] == [(1, VALUES[1]), (2, VALUES[2])]
    now_ms = time.time_ns() // 1_000_000
    assert all(record.timestamp_ms is not None and 0 <= now_ms - record.timestamp_ms < 600_000 for record in records)


def test_digest_is_the_same_until_the_topic_gets_records_loses_some_or_is_made_anew(
    broker: TieredBroker, cluster: Cluster, spark: SparkSession
) -> None:
    def digest() -> str:
        return TopicSource(cluster=cluster, topic="counted").digest()

    make_topic(broker, "counted", partition_count=2)
    digests = [digest()]
    assert digest() == digests[0]
    read = TopicSource(cluster=cluster, topic="counted")
    read.read(spark, {})
    _send(broker, "counted", 1, VALUES)
    assert read.digest() == digests[0], "the state that was read"
    digests.append(digest())
    with admin(broker) as client:
        client.delete_records({TopicPartition("counted", 1): 2})
    digests.append(digest())
    with admin(broker) as client:
        client.delete_topics(["counted"])
    make_topic(broker, "counted", partition_count=2)
    digests.append(digest())
    assert len(set(digests)) == 4


def test_many_records_come_in_bounded_pieces(broker: TieredBroker, cluster: Cluster) -> None:
    make_topic(broker, "many", partition_count=1)
    count = 12_000
    _send(broker, "many", 0, [VALUES[0] * 8] * count)
    pieces = list(iter_records(cluster, "many", 0, 0, count))
    assert [record.offset for piece in pieces for record in piece] == list(range(count))
    assert max(map(len, pieces)) <= 5_000


def test_client_config_opens_a_listener_that_asks_for_a_password(
    broker: TieredBroker, played: Played, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = open_cluster(broker.sasl_bootstrap_servers, 120_000, broker.client_config())
    warehouse = events_only(spark, tmp_path / "warehouse")
    read_events(warehouse, TopicSource(cluster=cluster, topic="__remote_log_metadata"))
    assert table_rows(warehouse, SEGMENT_EVENTS) == table_rows(played.events, SEGMENT_EVENTS)


def test_wrong_password_is_refused_before_its_time_is_up_and_not_told(broker: TieredBroker) -> None:
    wrong = "told-nobody"
    cluster = open_cluster(broker.sasl_bootstrap_servers, 120_000, broker.client_config(wrong))
    start = time.monotonic()
    with pytest.raises(UsageError, match=r"does not authorize coldlog for topic events \(SaslAuth") as refused:
        describe_topics(cluster, ["events"])
    assert time.monotonic() - start < 60
    assert wrong not in repr((refused.value, refused.value.__cause__))


def test_refusal_that_arrives_together_with_the_end_of_the_connection_is_told(broker: TieredBroker) -> None:
    with late_answers(broker.sasl_port) as port:
        right = open_cluster(f"127.0.0.1:{port}", 60_000, broker.client_config())
        assert describe_topics(right, ["__remote_log_metadata"])
        wrong = open_cluster(f"127.0.0.1:{port}", 20_000, broker.client_config("told-nobody"))
        with pytest.raises(UsageError, match=r"does not authorize coldlog for topic events \(SaslAuth"):
            describe_topics(wrong, ["events"])


def test_broker_that_stands_still_is_given_up_in_time(broker: TieredBroker, spark: SparkSession) -> None:
    cluster = open_cluster(broker.bootstrap_servers, 2_000, None)
    source = TopicSource(cluster=cluster, topic="__remote_log_metadata")
    assert source.plan_ranges({})
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(RetriableError, match=r"did not answer for .* within 2,000 ms"):
            source.read(spark, {})
        assert time.monotonic() - start < 30
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
    broker.wait_until(lambda: bool(source.plan_ranges({})), "the broker's answer after its rest")


def test_broker_that_stands_still_in_the_middle_of_a_partition_is_given_up_in_time(broker: TieredBroker) -> None:
    cluster = open_cluster(broker.bootstrap_servers, 2_000, None)
    make_topic(broker, "halved", partition_count=1)
    _send(broker, "halved", 0, VALUES)
    # One record more than there is: the reader has to wait for it.
    pieces = iter_records(cluster, "halved", 0, 0, 4)
    assert [record.offset for record in next(pieces)] == [0, 1, 2]
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(RetriableError, match="did not answer for partition 0 of topic halved"):
            next(pieces)
        assert time.monotonic() - start < 30
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
