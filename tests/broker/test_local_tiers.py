"""Both local tiers of a living broker, against each other and against what kafka-python's own clients are told."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.errors import RequestTimedOutError
from pyspark.sql import SparkSession

from broker.conftest import Played
from broker.offset_questions import NAMES_THE_LATEST, SPECIALS, Question, ask_broker
from broker.scenario import BRIEF, CUT_OFFSET, ORDERS, admin, make_topic, producer
from broker.tiered_broker import KAFKA_VERSION, USER, TieredBroker, small_segments
from coldlog.archive.layouts.log_directory import (
    HIGH_WATERMARK_CHECKPOINT,
    find_partition,
    list_partitions,
    read_checkpoint,
)
from coldlog.archive.stores.local_store import LocalStore
from coldlog.brokers.kafka_client import Cluster, open_cluster, written_topic_id
from coldlog.errors import NotAuthorizedError, RetriableError
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.local.live_broker_tier import LiveBrokerTier
from coldlog.lookups.local.local_tier import FoundOffset, LocalLogState, LocalTier
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.model.list_offsets import SpecialTimestamp
from coldlog.runtime.installation import ROOT
from coldlog.tables.delta.warehouse import Warehouse
from servers.kafka_jars import run_tool

pytestmark = pytest.mark.usefixtures("kafka_leftovers")

LIMITS = DecodeLimits(max_batch_bytes=128 << 20, max_decompressed_bytes=128 << 20)
PLAIN, OPEN, SECRET, AGAIN = "plain.log-1", "open", "secret", "again"
PLACES = ((ORDERS, 0), (ORDERS, 1), (BRIEF, 0), (PLAIN, 0), (PLAIN, 1), (OPEN, 0))
TIERED = frozenset({ORDERS, BRIEF})
START_MS = 1_700_000_000_000
ASKED = tuple(each for each in (-1, -2, -4, -5) if each in SPECIALS)
"""What the broker can be asked by kafka-python's public calls."""


@pytest.fixture(scope="module")
def filled(played: Played) -> Iterator[TieredBroker]:
    """The play's broker, with topics that are not tiered beside it: several segments, one cut inside a segment, and
    transactions of which one is never ended."""
    broker, chance = played.scenario.broker, played.scenario.chance
    make_topic(
        broker, PLAIN, partition_count=2, configs=small_segments(KAFKA_VERSION, 20_000) | {"file.delete.delay.ms": "1"}
    )
    make_topic(broker, OPEN, partition_count=1, configs=small_segments(KAFKA_VERSION, 5_000))
    with producer(broker) as client:
        for partition in (0, 1):
            for index in range(300):
                timestamp_ms = START_MS + index * 1_000 + chance.randrange(60_000)
                client.send(PLAIN, chance.randbytes(500), partition=partition, timestamp_ms=timestamp_ms)
                if index % 10 == 9:
                    client.flush()
    with admin(broker) as client:
        client.delete_records({TopicPartition(PLAIN, 1): 100})
    for is_committed in (True, False):
        with producer(broker, transactional_id=f"ended-{is_committed}") as client:
            client.init_transactions()
            client.begin_transaction()
            for index in range(20):
                client.send(OPEN, b"v" * 500, partition=0, timestamp_ms=START_MS + index)
                client.flush()
            client.commit_transaction() if is_committed else client.abort_transaction()
    with producer(broker, transactional_id="never-ended") as never:
        never.init_transactions()
        never.begin_transaction()
        for index in range(20):
            never.send(OPEN, b"v" * 500, partition=0, timestamp_ms=START_MS + 100 + index)
            never.flush()
        with producer(broker) as client:
            client.send(OPEN, b"v", partition=0, timestamp_ms=START_MS + 1_000)
        with KafkaConsumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
            ends = consumer.end_offsets([TopicPartition(*place) for place in PLACES])
        told = {(each.topic, each.partition): offset for each, offset in ends.items()}
        broker.wait_until(lambda: _checkpointed(broker, told), "the checkpoint of high watermarks")
        yield broker
        never.abort_transaction()


def _checkpointed(broker: TieredBroker, told: dict[tuple[str, int], int]) -> bool:
    checkpoint = read_checkpoint(_store(broker), HIGH_WATERMARK_CHECKPOINT)
    return all(checkpoint.get(place) == offset for place, offset in told.items())


def _store(broker: TieredBroker) -> LocalStore:
    return LocalStore(root=str(broker.data), uri=str(broker.data))


@pytest.fixture(scope="module")
def live(cluster: Cluster) -> Iterator[LiveBrokerTier]:
    """The tier that asks."""
    tier = LiveBrokerTier(cluster)
    yield tier
    tier.close()


@pytest.fixture(scope="module")
def files(filled: TieredBroker) -> LogDirectoryTier:
    """The tier that reads."""
    return LogDirectoryTier(str(filled.data), LIMITS)


def _told(
    client: KafkaAdminClient, place: tuple[str, int], timestamp_ms: int, level: str = "read_uncommitted"
) -> object:
    partition = TopicPartition(*place)
    for _ in range(5):
        # A broker may say so long before its time is over: see offsets_client.
        with suppress(RequestTimedOutError):
            return client.list_partition_offsets({partition: timestamp_ms}, isolation_level=level)[partition]
    raise pytest.fail.Exception(f"the broker does not answer for {place}")


def _asked_ms(played: Played, place: tuple[str, int]) -> list[int]:
    if place in played.scenario.sent_ms:
        return played.scenario.asked_ms(place, 98)
    # Markers bear the time at which they were written.
    return [
        START_MS - 1,
        1 << 62,
        *(START_MS + index * 3_700 for index in range(98)),
        *(START_MS + each for each in range(130)),
    ]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_states_are_those_that_kafkas_clients_are_told(
    filled: TieredBroker, files: LogDirectoryTier, live: LiveBrokerTier, place: tuple[str, int]
) -> None:
    with admin(filled) as client:
        told = {each: _told(client, place, each).offset for each in ASKED}  # type: ignore[attr-defined]
        stable = _told(client, place, SpecialTimestamp.LATEST, "read_committed").offset  # type: ignore[attr-defined]
        (topic,) = client.describe_topics([place[0]])
    (epoch,) = [each["leader_epoch"] for each in topic["partitions"] if each["partition_index"] == place[1]]
    expected = {
        "log_start_offset": told[SpecialTimestamp.EARLIEST],
        "local_log_start_offset": told[SpecialTimestamp.EARLIEST_LOCAL],
        "high_watermark": told[SpecialTimestamp.LATEST],
        "last_stable_offset": stable,
        "leader_epoch": epoch,
    }
    tiered = told.get(SpecialTimestamp.LATEST_TIERED)
    topic_id = written_topic_id(topic["topic_id"])
    assert live.read_state(*place) == LocalLogState(
        **expected,
        highest_tiered_offset=tiered,
        earliest_pending_offset=_told_pending(filled, place),
        topic_id=topic_id,
    )
    assert files.read_state(*place) == LocalLogState(**expected, topic_id=topic_id)
    assert tiered is None or (tiered >= 0) == (place[0] == ORDERS)


def _told_pending(broker: TieredBroker, place: tuple[str, int]) -> int | None:
    """By our own request: kafka-python's public calls do not know it. None: nor does the broker."""
    pending = SpecialTimestamp.EARLIEST_PENDING_UPLOAD
    if pending not in SPECIALS:
        return None
    ((_, offset, _, _),) = ask_broker(broker, [Question(place=place, timestamp_ms=pending)])
    return -1 if offset is None else offset


def test_the_play_is_worth_asking(files: LogDirectoryTier, filled: TieredBroker) -> None:
    states = {place: files.read_state(*place) for place in PLACES}
    orders, cut, transacted = states[ORDERS, 0], states[PLAIN, 1], states[OPEN, 0]
    assert orders is not None
    assert cut is not None
    assert transacted is not None
    assert orders.log_start_offset == CUT_OFFSET < orders.local_log_start_offset < orders.high_watermark
    found = find_partition(_store(filled), PLAIN, 1)
    assert found is not None
    assert found.segments[0].base_offset < cut.log_start_offset == cut.local_log_start_offset == 100
    assert len(found.segments) > 3
    assert transacted.last_stable_offset == 2 * 21 < transacted.high_watermark
    assert set(PLACES) <= set(list_partitions(_store(filled)))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_answers_are_those_that_kafkas_clients_are_told(
    played: Played, filled: TieredBroker, files: LogDirectoryTier, live: LiveBrokerTier, place: tuple[str, int]
) -> None:
    state = files.read_state(*place)
    assert state is not None
    begin, outcomes = state.local_log_start_offset, set()
    with admin(filled) as client:
        for timestamp_ms in _asked_ms(played, place):
            told = _told(client, place, timestamp_ms)
            true = _as_found(told)
            assert live.find_offset(*place, timestamp_ms, state.log_start_offset) == true
            assert live.find_offset(*place, timestamp_ms, begin) == files.find_offset(*place, timestamp_ms, begin)
            if true is None or true.offset >= begin:
                assert files.find_offset(*place, timestamp_ms, begin) == true
            outcomes.add(true is not None and true.offset >= begin)
        largest = _as_found(_told(client, place, SpecialTimestamp.MAX_TIMESTAMP))
    assert live.find_max_timestamp(*place) == largest
    found = files.find_max_timestamp(*place)
    assert found == largest or (not NAMES_THE_LATEST and _is_same_batch(found, largest))
    assert outcomes == ({False} if place[0] == BRIEF else {True, False})


def _is_same_batch(found: FoundOffset | None, largest: FoundOffset | None) -> bool:
    """Whether an older broker told the last record of our record's batch: no more than ten are in one."""
    assert found is not None
    assert largest is not None
    return found.timestamp_ms == largest.timestamp_ms and 0 <= largest.offset - found.offset < 10


def _as_found(told: object) -> FoundOffset | None:
    offset, timestamp_ms, leader_epoch = told.offset, told.timestamp, told.leader_epoch  # type: ignore[attr-defined]
    if offset < 0:
        return None
    return FoundOffset(
        offset=offset, timestamp_ms=timestamp_ms, leader_epoch=-1 if leader_epoch is None else leader_epoch
    )


def test_live_answer_begins_where_the_question_does_markers_and_aborted_records_included(
    filled: TieredBroker, files: LogDirectoryTier, live: LiveBrokerTier
) -> None:
    state = files.read_state(OPEN, 0)
    assert state is not None
    for from_offset in range(state.high_watermark + 2):
        for timestamp_ms in (START_MS, START_MS + 15, START_MS + 110, START_MS + 2_000):
            asked = (OPEN, 0, timestamp_ms, from_offset)
            assert live.find_offset(*asked) == files.find_offset(*asked)
    markers = [files.find_offset(OPEN, 0, START_MS + 2_000, from_offset) for from_offset in (0, 21, 42)]
    assert [None if each is None else each.offset for each in markers] == [20, 41, None]
    # A range of the remote tier is read too, through the broker.
    sent = live.find_offset(ORDERS, 1, START_MS, 57)
    assert sent is not None
    assert sent.offset == 57


def test_leader_epochs_are_those_of_the_lineage(
    filled: TieredBroker, files: LogDirectoryTier, live: LiveBrokerTier
) -> None:
    for place in PLACES:
        state = live.read_state(*place)
        assert state is not None
        last = max(state.log_start_offset, state.high_watermark - 1)
        for offset in (state.log_start_offset, last, state.high_watermark, state.high_watermark + 9):
            assert live.leader_epoch_at(*place, offset) == files.leader_epoch_at(*place, offset) >= 0
    assert live.leader_epoch_at(ORDERS, 0, CUT_OFFSET - 1) == files.leader_epoch_at(ORDERS, 0, CUT_OFFSET - 1) == -1


def test_partition_that_the_broker_lacks_is_none_and_not_made(filled: TieredBroker, live: LiveBrokerTier) -> None:
    for place in (("nowhere", 0), (ORDERS, 2)):
        assert live.read_state(*place) is None
        assert live.find_offset(*place, 0, 0) is None
        assert live.find_max_timestamp(*place) is None
        assert live.leader_epoch_at(*place, 0) == -1
    assert "nowhere" not in filled.topics()


def test_topic_that_was_created_again_has_its_new_id(filled: TieredBroker, live: LiveBrokerTier) -> None:
    states = []
    for _ in range(2):
        make_topic(filled, AGAIN, partition_count=1)
        states.append(live.read_state(AGAIN, 0))
        with admin(filled) as client:
            (topic,) = client.describe_topics([AGAIN])
            assert states[-1] is not None
            assert states[-1].topic_id == written_topic_id(topic["topic_id"])
            client.delete_topics([AGAIN])
        filled.wait_until(lambda: AGAIN not in filled.topics(), "the deletion of a topic")
    assert states[0] != states[1]


def test_topic_that_the_user_may_not_describe_is_refused_by_its_code_and_harms_no_other(
    filled: TieredBroker, spark: SparkSession, warehouse: Path
) -> None:
    make_topic(filled, SECRET, partition_count=1, configs={})
    denied = ACL(
        principal=f"User:{USER}",
        host="*",
        operation=ACLOperation.DESCRIBE,
        permission_type=ACLPermissionType.DENY,
        resource_pattern=ResourcePattern(ResourceType.TOPIC, SECRET),
    )
    with admin(filled) as client:
        client.create_acls([denied])
    tables = Warehouse(spark=spark, uri=str(warehouse))
    tables.create_missing()
    tier = LiveBrokerTier(open_cluster(filled.sasl_bootstrap_servers, 120_000, filled.client_config()))
    filled.wait_until(lambda: _is_denied(tier), "the rule about who may describe a topic")
    tier.close()
    places = [(SECRET, 0, 0), (PLAIN, 0, 0), (SECRET, 0, -1), (PLAIN, 0, -1), ("nowhere", 0, 0)]
    requests, output = warehouse / "requests.csv", warehouse / "answers.jsonl"
    requests.write_text("topic,partition,timestamp_ms\n" + "".join(f"{t},{p},{ms}\n" for t, p, ms in places))
    settings = (
        f"warehouse.uri={warehouse}",
        f"list_offsets.bootstrap_servers={filled.sasl_bootstrap_servers}",
        f"metadata.client_config={filled.client_config()}",
        "remote.list.offsets.request.timeout.ms=300000",
    )
    run_tool(
        [
            str(ROOT / "spark-submit.sh"), "list_offsets", "--requests", str(requests), "--output", str(output),
            *(word for setting in settings for word in ("--set", setting)),
        ]
    )  # fmt: skip
    told = [json.loads(line) for line in output.read_text().splitlines()]
    refused, answered, unknown = (29, "TOPIC_AUTHORIZATION_FAILED"), (0, "NONE"), (3, "UNKNOWN_TOPIC_OR_PARTITION")
    assert [(row["error_code"], row["error"]) for row in told] == [refused, answered, refused, answered, unknown]
    assert [row["offset"] for row in told] == [None, 0, None, 300, None]


def _is_denied(tier: LiveBrokerTier) -> bool:
    try:
        tier.read_state(SECRET, 0)
    except NotAuthorizedError:
        return True
    return False


def test_tier_that_was_pickled_asks_with_a_client_of_its_own(filled: TieredBroker, live: LiveBrokerTier) -> None:
    def connection_count() -> int:
        return sum(each.status == psutil.CONN_ESTABLISHED for each in psutil.Process().net_connections())

    state = live.read_state(ORDERS, 0)
    count, copied = connection_count(), pickle.loads(pickle.dumps(live))
    try:
        assert copied == live
        for _ in range(2):
            assert copied.read_state(ORDERS, 0) == state
            assert connection_count() > count
            copied.close()
            assert connection_count() == count
    finally:
        copied.close()


def test_broker_that_stands_still_is_given_up_in_time_and_asked_again_afterwards(filled: TieredBroker) -> None:
    tier = LiveBrokerTier(open_cluster(filled.bootstrap_servers, 2_000, None))
    state = tier.read_state(ORDERS, 0)
    os.kill(filled.process.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(RetriableError, match="did not answer for offsets of partition 0 of topic orders"):
            tier.find_offset(ORDERS, 0, START_MS, 0)
        assert time.monotonic() - start < 30
    finally:
        os.kill(filled.process.pid, signal.SIGCONT)

    def answers() -> bool:
        with suppress(RetriableError):
            return tier.read_state(ORDERS, 0) == state
        return False

    filled.wait_until(answers, "the broker's answer after its rest")
    tier.close()


def test_hundreds_of_questions_a_second_are_answered(
    filled: TieredBroker, files: LogDirectoryTier, live: LiveBrokerTier, capsys: pytest.CaptureFixture[str]
) -> None:
    tiers: dict[str, LocalTier] = {"live": live, "files": files}
    rates: dict[tuple[str, str], float] = {}
    for name, tier in tiers.items():
        questions: dict[str, Callable[[int], object]] = {
            "offset": lambda at, tier=tier: tier.find_offset(PLAIN, 1, START_MS + at % 300 * 1_000, 100),  # type: ignore[misc]
            "state": lambda _, tier=tier: tier.read_state(PLAIN, 1),  # type: ignore[misc]
            "largest": lambda _, tier=tier: tier.find_max_timestamp(PLAIN, 1),  # type: ignore[misc]
        }
        rates |= {(name, kind): _rate(question) for kind, question in questions.items()}
    with capsys.disabled():
        print({" ".join(key): round(rate) for key, rate in rates.items()})
    assert rates["live", "offset"] > 100


def _rate(question: Callable[[int], object]) -> float:
    """Questions a second."""
    question(0)
    start, count = time.monotonic(), 0
    while time.monotonic() - start < 2:
        question(count)
        count += 1
    return count / (time.monotonic() - start)
