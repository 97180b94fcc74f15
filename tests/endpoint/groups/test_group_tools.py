"""Do tools see the groups, and set and remove what is committed?"""

from __future__ import annotations

import confluent_kafka
import confluent_kafka.admin as confluent
import kafka
import pytest

from endpoint.conftest import Endpoint
from endpoint.support.raw_client import connected, message
from endpoint.support.truth import true_records

_PLACES = [("payments", 0), ("payments", 1)]


def _committed(admin: confluent.AdminClient, group: str) -> dict[tuple[str, int], int]:
    asked = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets(asked)[group].result(60)
    return {(each.topic, each.partition): each.offset for each in found.topic_partitions}


def _groups(admin: confluent.AdminClient) -> dict[str, str]:
    return {each.group_id: each.state.name for each in admin.list_consumer_groups().result(60).valid}


def _set(admin: confluent.AdminClient, group: str, offset: int) -> list[int]:
    """Commit an offset for a group, and return the error of each partition."""
    ends = [confluent_kafka.TopicPartition(*place, offset) for place in _PLACES]
    asked = [confluent_kafka.ConsumerGroupTopicPartitions(group, ends)]
    done = admin.alter_consumer_group_offsets(asked)[group].result(60)
    return [0 if each.error is None else each.error.code() for each in done.topic_partitions]


def test_a_group_without_members_can_be_set_listed_and_deleted(endpoint: Endpoint) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": endpoint.address})
    assert _set(admin, "set-by-a-tool", 7) == [0, 0]
    assert _committed(admin, "set-by-a-tool") == dict.fromkeys(_PLACES, 7)
    assert _groups(admin)["set-by-a-tool"] == "EMPTY"
    admin.delete_consumer_groups(["set-by-a-tool"])["set-by-a-tool"].result(60)
    assert "set-by-a-tool" not in _groups(admin)
    with pytest.raises(confluent_kafka.KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups(["set-by-a-tool"])["set-by-a-tool"].result(60)


def test_a_group_with_members_is_described_and_neither_set_nor_deleted(endpoint: Endpoint) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": endpoint.address})
    consumer = kafka.KafkaConsumer(
        "payments", bootstrap_servers=endpoint.address, group_id="described", client_id="seen", enable_auto_commit=False
    )
    while not consumer.assignment():
        consumer.poll(200)
    consumer.commit({kafka.TopicPartition(*_PLACES[0]): kafka.OffsetAndMetadata(5, "note", -1)})
    described = admin.describe_consumer_groups(["described"])["described"].result(60)
    (member,) = described.members
    assert (described.state.name, member.client_id, member.host) == ("STABLE", "seen", "/127.0.0.1")
    assigned = {(each.topic, each.partition) for each in member.assignment.topic_partitions}
    assert assigned == {("payments", 0), ("payments", 1), ("payments", 2)}
    assert _set(admin, "described", 7) == [confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID] * 2
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["described"])["described"].result(60)
    with connected(endpoint.port) as client:
        assert [_remove(client.ask(47, 0, _removal("described", *place))) for place in _PLACES] == [86, 86]
    assert _committed(admin, "described") == {_PLACES[0]: 5}
    consumer.close()
    assert _groups(admin)["described"] == "EMPTY"
    with connected(endpoint.port) as client:
        assert _remove(client.ask(47, 0, _removal("described", *_PLACES[0]))) == 0
    assert "described" not in _groups(admin)


def _removal(group: str, topic: str, partition: int) -> object:
    part = message(47, 0, "OffsetDeleteRequestPartition", partition_index=partition)
    asked = message(47, 0, "OffsetDeleteRequestTopic", name=topic, partitions=(part,))
    return message(47, 0, "OffsetDeleteRequest", group_id=group, topics=(asked,))


def _remove(answer: object) -> int:
    (topic,) = answer.topics  # type: ignore[attr-defined]  # kio's
    return int(topic.partitions[0].error_code)


def test_offsets_of_unknown_partitions_are_not_kept_and_transactions_have_no_coordinator(endpoint: Endpoint) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": endpoint.address})
    part = message(8, 5, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5, committed_metadata=None)
    topic = message(8, 5, "OffsetCommitRequestTopic", name="no-such-topic", partitions=(part,))
    with connected(endpoint.port) as client:
        commit = message(
            8,
            5,
            "OffsetCommitRequest",
            group_id="simple",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=(topic,),
        )
        assert [int(each.partitions[0].error_code) for each in client.ask(8, 5, commit).topics] == [3]
        assert "simple" not in _groups(admin)
        answer = client.ask(10, 4, message(10, 4, "FindCoordinatorRequest", key_type=1, coordinator_keys=("id",)))
    assert [int(each.error_code) for each in answer.coordinators] == [53]


def test_a_group_goes_on_where_it_has_committed(endpoint: Endpoint) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": endpoint.address})
    assert _set(admin, "goes-on", 100) == [0, 0]
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": endpoint.address, "group.id": "goes-on", "auto.offset.reset": "error"}
    )
    consumer.assign([confluent_kafka.TopicPartition(*_PLACES[0])])
    found = consumer.poll(60)
    assert found is not None
    assert found.error() is None
    offsets = [row["o"] for row in true_records(_PLACES[0], "read_committed")]
    assert found.offset() == min(offset for offset in offsets if offset >= 100)
    consumer.close()
