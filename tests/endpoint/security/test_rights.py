"""Does a client see and use what the users' file gives it, and nothing of the rest?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import confluent_kafka
import confluent_kafka.admin as confluent
import pytest
from kio.schema.errors import ErrorCode

from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import read_with_librdkafka
from endpoint.support.each_request import ANY_ACL, each_request
from endpoint.support.raw_client import fetch, message
from endpoint.support.truth import PLACES, true_records
from endpoint.support.users_file import connected_as, librdkafka_options, write_users

_RIGHTS = {
    "all": "",
    "some": 'topics = ["ord*", "payments"]\ngroups = ["bill*"]',
    "none": "topics = []",
}
_SAME_LENGTH = ((b"orders", b"ordexx"), (b"payments", b"paymexxx"), (b"group", b"grouq"))
"""Names that exist, and names that do not."""
_VISIBLE = {"orders", "payments"}


@pytest.fixture(scope="module")
def endpoint(golden_uri: str, golden_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The sample, for users with all, some and no rights."""
    directory = tmp_path_factory.mktemp("rights")
    users = directory / "users.toml"
    write_users(users, _RIGHTS)
    with serving(directory / "notes", golden_uri, golden_archive, f"serve.users={users}") as running:
        yield running


def _admin(endpoint: Endpoint, user: str) -> confluent.AdminClient:
    return confluent.AdminClient({"bootstrap.servers": endpoint.address, **librdkafka_options(user)})


def _commit(endpoint: Endpoint, user: str, group: str, place: tuple[str, int]) -> None:
    ends = [confluent_kafka.TopicPartition(*place, 7)]
    asked = [confluent_kafka.ConsumerGroupTopicPartitions(group, ends)]
    admin = _admin(endpoint, user)  # It must live until it has answered.
    done = admin.alter_consumer_group_offsets(asked)[group].result(60)
    for each in done.topic_partitions:
        if each.error is not None:
            raise confluent_kafka.KafkaException(each.error)


def _renamed(content: bytes) -> bytes:
    for name, other in _SAME_LENGTH:
        content = content.replace(name, other)
    return content


def _answer(endpoint: Endpoint, user: str, request: bytes) -> bytes:
    with connected_as(endpoint, user) as client:
        client.connection.sendall(request)
        return client.receive()


def test_what_exists_and_what_does_not_is_the_same_to_a_client_without_rights(endpoint: Endpoint) -> None:
    telling = set()
    for request in each_request():
        key, other = int.from_bytes(request[4:6], "big"), _renamed(request)
        if other == request:
            continue
        assert _renamed(_answer(endpoint, "none", request)) == _answer(endpoint, "none", other), key
        _commit(endpoint, "all", "group", ("orders", 0))  # Some of the requests remove it.
        if key != 11 and _renamed(_answer(endpoint, "all", request)) != _answer(endpoint, "all", other):
            telling.add(key)
    # To others the same requests tell it; those of members would after they joined.
    assert telling >= {1, 2, 3, 8, 15, 23, 32, 35, 47, 75}


def test_listings_have_only_what_a_client_may_see(endpoint: Endpoint) -> None:
    assert set(_admin(endpoint, "all").list_topics(timeout=60).topics) > _VISIBLE
    assert set(_admin(endpoint, "some").list_topics(timeout=60).topics) == _VISIBLE
    assert not _admin(endpoint, "none").list_topics(timeout=60).topics
    _commit(endpoint, "all", "group", ("orders", 0))
    _commit(endpoint, "some", "billing", ("orders", 0))
    admins = {user: _admin(endpoint, user) for user in _RIGHTS}
    groups = {
        user: {each.group_id for each in admin.list_consumer_groups().result(60).valid}
        for user, admin in admins.items()
    }
    assert groups["all"] >= {"group", "billing"}
    assert (groups["some"], groups["none"]) == ({"billing"}, set())
    asked = message(75, 0, "DescribeTopicPartitionsRequest", topics=(), response_partition_limit=100)
    sized = message(35, 4, "DescribeLogDirsRequest", topics=None)
    with connected_as(endpoint, "some") as client:
        assert {topic.name for topic in client.ask(75, 0, asked).topics} == _VISIBLE
        (directory,) = client.ask(35, 4, sized).results
        assert {topic.name for topic in directory.topics} == _VISIBLE
        refused = client.ask(29, 3, message(29, 3, "DescribeAclsRequest", **ANY_ACL))
        assert ErrorCode(refused.error_code) is ErrorCode.cluster_authorization_failed


def test_a_client_reads_and_commits_what_it_may(endpoint: Endpoint) -> None:
    places = [place for place in PLACES if place[0] in _VISIBLE]
    options = {**librdkafka_options("some"), "group.id": "bills"}
    found = read_with_librdkafka(endpoint.address, places, "read_committed", options)
    assert not [place for place in places if found[place] != true_records(place, "read_committed")]
    hidden = next(place for place in PLACES if place[0] not in _VISIBLE)
    for group, place in (("group", ("orders", 0)), ("billing", hidden)):
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            _commit(endpoint, "some", group, place)
        assert "AUTHORIZATION_FAILED" in refused.value.args[0].name()


def test_offsets_of_hidden_topics_are_not_listed(endpoint: Endpoint) -> None:
    hidden = next(place for place in PLACES if place[0] not in _VISIBLE)
    for place in (("orders", 0), hidden):
        _commit(endpoint, "all", "bill-both", place)
    asked = message(9, 5, "OffsetFetchRequest", group_id="bill-both", topics=None)
    listed = {}
    for user in ("all", "some"):
        with connected_as(endpoint, user) as client:
            listed[user] = {topic.name for topic in client.ask(9, 5, asked).topics}
    assert listed == {"all": {"orders", hidden[0]}, "some": {"orders"}}


def test_an_id_of_a_hidden_topic_is_like_one_that_nobody_has(endpoint: Endpoint) -> None:
    hidden = next(topic_id for name, topic_id in _ids(endpoint).items() if name not in _VISIBLE)
    with connected_as(endpoint, "some") as client:
        for topic_id in (hidden, uuid4()):
            (topic,) = client.ask(1, 16, fetch(16, [(topic_id, 0, 0)])).responses
            assert (topic.topic_id, topic.partitions[0].error_code) == (topic_id, 100)
            named = message(3, 12, "MetadataRequestTopic", topic_id=topic_id, name=None)
            asked = message(3, 12, "MetadataRequest", topics=(named,), include_topic_authorized_operations=False)
            (described,) = client.ask(3, 12, asked).topics
            assert (described.error_code, described.name, described.partitions) == (100, None, ())


def _ids(endpoint: Endpoint) -> dict[str, UUID]:
    with connected_as(endpoint, "all") as client:
        asked = message(3, 12, "MetadataRequest", topics=None, include_topic_authorized_operations=False)
        return {topic.name: topic.topic_id for topic in client.ask(3, 12, asked).topics}
