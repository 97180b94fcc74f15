"""Test what the live tier does without a connection; tests/system and tests/broker test it with servers."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from coldlog.brokers.kafka_client import open_cluster
from coldlog.brokers.offsets_client import Leader, LeaderOffsets, ListedOffset, OffsetQuestion, OffsetsClient
from coldlog.errors import NotSupportedError
from coldlog.lookups.local import live_broker_tier
from coldlog.lookups.local.live_broker_tier import LiveBrokerTier
from coldlog.model.list_offsets import SpecialTimestamp

CLUSTER = open_cluster("127.0.0.1:9092", 500, None)
EPOCHS, END = ((0, 3), (2, 7), (5, 9)), 12
"""Each epoch and its first offset; the log begins at offset 3."""


@dataclass(slots=True, kw_only=True)
class LineageClient(OffsetsClient):
    """Answers from EPOCHS, by the rule of Kafka's LeaderEpochFileCache.endOffsetFor."""

    def list_offsets(
        self, topic: str, partition: int, questions: Sequence[OffsetQuestion], *, is_leader_asked: bool = False
    ) -> LeaderOffsets:
        earliest = ListedOffset(offset=EPOCHS[0][1], timestamp_ms=-1, leader_epoch=-1)
        return LeaderOffsets(leader=Leader(node_id=1, leader_epoch=EPOCHS[-1][0]), answers=[earliest])

    def end_offset_of_epoch(self, topic: str, partition: int, leader_epoch: int) -> int:
        later = [start for epoch, start in EPOCHS if epoch > leader_epoch]
        return min(later, default=END if leader_epoch == EPOCHS[-1][0] else -1)


def tier_of(client: OffsetsClient) -> LiveBrokerTier:
    tier = LiveBrokerTier(CLUSTER)
    tier._held.client, tier._held.process_id = client, os.getpid()
    return tier


def test_tier_can_be_pickled_and_connects_at_its_first_request() -> None:
    tier = LiveBrokerTier(CLUSTER)
    assert pickle.loads(pickle.dumps(tier)) == tier
    assert tier.covers_archive
    tier.close()


def test_broker_before_kafka_3_is_not_asked_for_the_largest_timestamp() -> None:
    tier = tier_of(OffsetsClient(cluster=CLUSTER, _version=SpecialTimestamp.MAX_TIMESTAMP.since_version - 1))
    with pytest.raises(NotSupportedError, match="Kafka 3.0 or later is needed"):
        tier.find_max_timestamp("orders", 0)


def test_leader_epoch_of_an_offset_is_the_last_that_begins_at_it_or_before() -> None:
    tier = tier_of(LineageClient(cluster=CLUSTER))
    for offset in range(END + 3):
        epochs = [epoch for epoch, start in EPOCHS if start <= offset]
        assert tier.leader_epoch_at("orders", 0, offset) == max(epochs, default=-1)


@dataclass(slots=True, kw_only=True)
class EncodingClient(OffsetsClient):
    """The leader of an empty log. It encodes each request, as if it were sent."""

    sent: list[int] = field(default_factory=list)

    def _ask_leader(self, topic: str, partition: int, question: Callable[[Any, Leader], Awaitable[Any]]) -> Any:
        return asyncio.run(question(None, Leader(node_id=1, leader_epoch=0)))  # type: ignore[arg-type]  # a coroutine

    async def _send(self, admin: object, message: Any, leader: Leader) -> Any:
        message.encode(version=12)
        self.sent.append(message.max_bytes)
        answer = SimpleNamespace(error_code=0, records=None, high_watermark=0, aborted_transactions=None)
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[answer])])


def test_fetch_of_more_bytes_than_kafkas_number_holds_asks_for_the_most() -> None:
    client = EncodingClient(cluster=CLUSTER)
    for max_bytes in (1, 2**31 - 1, 2**31, 2**63 - 1):
        assert tier_of(client).read_batches("orders", 0, 0, max_bytes) is None
    assert client.sent == [1, *[2**31 - 1] * 3]


@dataclass(slots=True, kw_only=True)
class CountedClient(LineageClient):
    """Counts the clients that are open."""

    open_clients: ClassVar[set[int]] = set()

    def __post_init__(self) -> None:
        self.open_clients.add(id(self))

    def close(self) -> None:
        self.open_clients.discard(id(self))


def test_clients_of_threads_that_have_ended_are_closed_and_closed_ones_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_broker_tier, "OffsetsClient", CountedClient)
    tier = LiveBrokerTier(CLUSTER)

    def ask_in_a_thread(*, is_closing: bool) -> None:
        def ask() -> None:
            tier.leader_epoch_at("orders", 0, 5)
            if is_closing:
                tier.close()

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    for _ in range(5):
        ask_in_a_thread(is_closing=True)
        assert (len(CountedClient.open_clients), len(tier._opened)) == (0, 0)
    for _ in range(5):
        ask_in_a_thread(is_closing=False)
        assert len(CountedClient.open_clients) == len(tier._opened) == 1
    tier.leader_epoch_at("orders", 0, 5)
    assert len(CountedClient.open_clients) == 1
    tier.close_all()
    assert not CountedClient.open_clients
