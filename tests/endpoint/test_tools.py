"""Do tools that describe topics get along with the endpoint?"""

from __future__ import annotations

from pathlib import Path

import confluent_kafka.admin as confluent
from kio.schema.errors import ErrorCode

from endpoint.conftest import Endpoint
from endpoint.support.each_request import ANY_ACL
from endpoint.support.raw_client import RawClient, connected, message
from endpoint.support.truth import PLACES, end_offset
from worlds.kafka_sample import TIERED_STORAGE, true_segments


def _epoch_end(client: RawClient, topic: str, epoch: int) -> tuple[int, int]:
    part = message(23, 4, "OffsetForLeaderPartition", partition=0, leader_epoch=epoch)
    asked = message(23, 4, "OffsetForLeaderTopic", topic=topic, partitions=(part,))
    answer = client.ask(23, 4, message(23, 4, "OffsetForLeaderEpochRequest", topics=(asked,)))
    (found,) = answer.topics[0].partitions
    assert found.error_code == 0
    return found.leader_epoch, found.end_offset


def test_a_leader_epoch_ends_where_the_next_one_begins(endpoint: Endpoint) -> None:
    topics = {topic for topic, partition in PLACES if partition == 0}
    starts: dict[str, dict[int, int]] = {topic: {} for topic in topics}
    for finished in true_segments("COPY_SEGMENT_FINISHED"):
        if finished["partition"] == 0 and finished["topic"] in topics:
            for epoch, start in finished["leader_epochs"].items():
                known = starts[finished["topic"]]
                known[int(epoch)] = min(start, known.get(int(epoch), start))
    with connected(endpoint.port) as client:
        for topic, epochs in starts.items():
            numbers = sorted(epochs)
            ends = [*(epochs[number] for number in numbers[1:]), end_offset((topic, 0), "read_uncommitted")]
            for number, true_end in zip(numbers, ends, strict=True):
                assert _epoch_end(client, topic, number) == (number, true_end)
            assert _epoch_end(client, topic, numbers[-1] + 1) == (-1, -1)


def test_an_admin_client_describes_cluster_topics_and_settings(endpoint: Endpoint) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": endpoint.address})
    described = admin.list_topics(timeout=60)
    found = {(name, number) for name, topic in described.topics.items() for number in topic.partitions}
    assert found == set(PLACES)
    resource = confluent.ConfigResource(confluent.ResourceType.TOPIC, "orders")  # type: ignore[attr-defined]
    configs = admin.describe_configs([resource])[resource].result(60)
    assert {name: entry.value for name, entry in configs.items()} == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    cluster = admin.describe_cluster().result(60)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [endpoint.address]


def test_the_size_of_a_partition_is_that_of_its_archived_logs(endpoint: Endpoint, golden_archive: Path) -> None:
    logs = golden_archive / TIERED_STORAGE.name
    with connected(endpoint.port) as client:
        everything = client.ask(35, 4, message(35, 4, "DescribeLogDirsRequest", topics=None))
        unknown = message(35, 4, "DescribableLogDirTopic", topic="payments", partitions=(1, 99))
        named = client.ask(35, 4, message(35, 4, "DescribeLogDirsRequest", topics=(unknown,)))
    (directory,) = everything.results
    sizes = {
        (topic.name, each.partition_index): each.partition_size
        for topic in directory.topics
        for each in topic.partitions
    }
    assert sizes.keys() == set(PLACES)
    for number in range(3):
        true = sum(path.stat().st_size for path in logs.glob(f"payments-{number}-*/*.log"))
        assert sizes["payments", number] == true > 0
    ((topic,),) = (each.topics for each in named.results)
    assert [(each.partition_index, each.partition_size) for each in topic.partitions] == [(1, sizes["payments", 1])]


def test_access_rights_are_not_told_as_at_a_broker_without_an_authorizer(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        answer = client.ask(29, 3, message(29, 3, "DescribeAclsRequest", **ANY_ACL))
    assert (ErrorCode(answer.error_code), answer.resources) == (ErrorCode.security_disabled, ())


def test_partitions_are_described_page_by_page(endpoint: Endpoint) -> None:
    found: list[tuple[str, int]] = []
    cursor = None
    with connected(endpoint.port) as client:
        while True:
            asked = message(
                75, 0, "DescribeTopicPartitionsRequest", topics=(), response_partition_limit=2, cursor=cursor
            )
            answer = client.ask(75, 0, asked)
            page = [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
            assert 0 < len(page) <= 2
            found += page
            if answer.next_cursor is None:
                break
            where = {"topic_name": answer.next_cursor.topic_name, "partition_index": answer.next_cursor.partition_index}
            cursor = message(75, 0, "Cursor", **where)
    assert found == sorted(PLACES)
