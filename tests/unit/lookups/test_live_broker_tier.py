"""Test what the live tier does without a connection; tests/system and tests/broker test it with servers."""

from __future__ import annotations

import os
import pickle

import pytest

from coldlog.brokers.kafka_client import open_cluster
from coldlog.brokers.offsets_client import OffsetsClient
from coldlog.errors import NotSupportedError
from coldlog.lookups.local.live_broker_tier import LiveBrokerTier
from coldlog.model.list_offsets import SpecialTimestamp

CLUSTER = open_cluster("127.0.0.1:9092", 500, None)


def test_tier_can_be_pickled_and_connects_at_its_first_request() -> None:
    tier = LiveBrokerTier(CLUSTER)
    assert pickle.loads(pickle.dumps(tier)) == tier
    assert tier.covers_archive
    tier.close()


def test_broker_before_kafka_3_is_not_asked_for_the_largest_timestamp() -> None:
    tier = LiveBrokerTier(CLUSTER)
    tier._held.process_id = os.getpid()
    tier._held.client = OffsetsClient(cluster=CLUSTER, _version=SpecialTimestamp.MAX_TIMESTAMP.since_version - 1)
    with pytest.raises(NotSupportedError, match="Kafka 3.0 or later is needed"):
        tier.find_max_timestamp("orders", 0)
