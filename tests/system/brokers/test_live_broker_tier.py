"""Test the live tier with a broker that does not answer; tests/broker tests it with brokers that do."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from coldlog.brokers.kafka_client import open_cluster
from coldlog.errors import RetriableError
from coldlog.lookups.local.live_broker_tier import LiveBrokerTier

pytestmark = pytest.mark.usefixtures("kafka_leftovers")


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_every_request_to_a_silent_broker_ends_in_time(silent: str) -> None:
    tier = LiveBrokerTier(open_cluster(silent, 500, None))
    questions = (
        lambda: tier.read_state("orders", 3),
        lambda: tier.find_offset("orders", 3, 5, 0),
        lambda: tier.find_max_timestamp("orders", 3),
        lambda: tier.leader_epoch_at("orders", 3, 7),
    )
    for question in questions:
        start = time.monotonic()
        with pytest.raises(RetriableError, match=f"{silent} did not answer for .* within 500 ms"):
            question()
        assert time.monotonic() - start < 30
    tier.close()
