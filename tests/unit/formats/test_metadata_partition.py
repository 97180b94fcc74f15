"""Test which partition of the metadata topic has the events of a topic-partition, against a real broker."""

from __future__ import annotations

import json

import pytest

from coldlog.errors import UsageError
from coldlog.model.ids import TopicIdPartition, uuid_text
from coldlog.tiering.rules.metadata_partition import find_metadata_partition
from worlds.kafka_sample import KAFKA_SAMPLE


def test_every_event_of_the_golden_topic_is_in_its_partition() -> None:
    with (KAFKA_SAMPLE / "truth" / "rlmm-events.jsonl").open(encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines]
    places = {(each["topic"], each["topic_id"], each["partition"], each["mp"]) for each in events}
    for topic, topic_id, partition, expected in places:
        found = find_metadata_partition(TopicIdPartition(topic=topic, topic_id=topic_id, partition=partition), 3)
        assert found == expected, (topic, partition)
    assert len(places) > 25
    assert {place[3] for place in places} == {0, 1, 2}


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one partition"):
        find_metadata_partition(TopicIdPartition(topic="t", topic_id=uuid_text(bytes(16)), partition=0), 0)
