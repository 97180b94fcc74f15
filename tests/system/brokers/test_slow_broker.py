"""Test what brokers are told of the asker's timeout, and what becomes of their REQUEST_TIMED_OUT and topic ids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from coldlog.brokers.kafka_client import open_cluster
from coldlog.lookups.list_offsets import ListOffsets, LookupOptions
from coldlog.lookups.local.live_broker_tier import LiveBrokerTier
from coldlog.lookups.questions import Answers
from coldlog.lookups.timed_answers import answer_until
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from servers.slow_broker import OFFSET, REQUEST_TIMED_OUT, TOPIC_ID, SlowBroker, running_broker
from tables.empty_index import asked, empty_index
from tables.scattered_tables import write

pytestmark = pytest.mark.usefixtures("kafka_leftovers")
TIMEOUT_MS = 3_000
"""The client's own: the state of a partition takes a slow broker longer."""


@contextmanager
def tier_of(broker: SlowBroker, timeout_ms: int = TIMEOUT_MS) -> Iterator[LiveBrokerTier]:
    """Close it before the broker ends: a client left open connects again in vain, and leaves sockets to later tests."""
    with closing(LiveBrokerTier(open_cluster(broker.bootstrap_servers, timeout_ms, None))) as tier:
        yield tier


def answers_of(tier: LiveBrokerTier, *timestamps_ms: int) -> Answers:
    return ListOffsets(empty_index(), tier).answer(asked(*timestamps_ms))


def test_timeout_of_the_asker_reaches_the_broker_and_is_waited_for() -> None:
    with running_broker(delay_s=0.8) as broker, tier_of(broker) as tier:
        questions, deadline = asked(SpecialTimestamp.LATEST), np.full(1, time.time() + 60)
        answers = answer_until(lambda: ListOffsets(empty_index(), tier), questions, deadline, most_at_once=1)
        assert (answers.errors.tolist(), answers.offsets.tolist()) == ([ErrorCode.NONE], [OFFSET])
        assert all(40_000 < timeout_ms <= 60_000 for timeout_ms in broker.timeouts_ms)
        # Without a deadline, the client's own time-out is sent, and ends the wait.
        broker.timeouts_ms.clear()
        late = answers_of(tier, SpecialTimestamp.LATEST)
        assert late.errors.tolist() == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert set(broker.timeouts_ms) == {TIMEOUT_MS}


def test_timeout_that_a_broker_answers_is_that_of_the_request() -> None:
    with running_broker(error=REQUEST_TIMED_OUT) as broker, tier_of(broker) as tier:
        questions, deadline = asked(SpecialTimestamp.LATEST, 5), np.full(2, time.time() + 60)
        answers = answer_until(lambda: ListOffsets(empty_index(), tier), questions, deadline, most_at_once=1)
        assert answers.errors.tolist() == [ErrorCode.REQUEST_TIMED_OUT] * 2
        assert time.time() < deadline[0] - 30, "the answer is not waited for any longer"


def test_timeout_that_a_broker_answers_long_before_its_time_is_asked_again() -> None:
    """Kafka 4 answers so if a remote lookup ends while it checks whether it has ended."""
    with running_broker(error=REQUEST_TIMED_OUT, error_count=2) as broker, tier_of(broker) as tier:
        answers = answers_of(tier, SpecialTimestamp.LATEST)
        assert (answers.errors.tolist(), answers.offsets.tolist()) == ([ErrorCode.NONE], [OFFSET])


def test_partition_that_hangs_at_the_broker_times_out_alone(tmp_path: Path) -> None:
    for table in (SEGMENTS, PARTITION_METADATA, OFFSET_INDEX, TIME_INDEX):
        write(tmp_path, table, [])
    with (
        running_broker(delay_s=30, quick_topics=("quick",)) as broker,
        tier_of(broker, 60_000) as tier,
        OffsetReader(tmp_path, LookupOptions(local=tier)) as reader,
    ):
        requests = [(topic, 0, SpecialTimestamp.LATEST) for topic in ("slow", "quick")]
        answers = reader.list_offsets(requests, timeout_ms=5_000)
        assert [row["error"] for row in answers] == ["REQUEST_TIMED_OUT", "NONE"]
        assert answers[1]["offset"] == OFFSET


@pytest.mark.parametrize(("topic_id", "written"), [(TOPIC_ID, "AAAAAAAAAAAAAAAAAAAABw"), (None, None)])
def test_topic_id_of_a_broker_that_has_none_is_not_known(topic_id: UUID | None, written: str | None) -> None:
    with running_broker(topic_id=topic_id) as broker, tier_of(broker, 30_000) as tier:
        state = tier.read_state("orders", 0)
        assert state is not None
        assert state.topic_id == written
