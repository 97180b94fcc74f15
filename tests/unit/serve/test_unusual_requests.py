"""Test requests that are legal and that common clients do not send: limits, repeated names, no partitions, ids.

The rules are those of a broker (Kafka's KafkaApis and ReplicaManager).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from asked_endpoint import ask, asked, encoded, part
from coldlog.serve.context import Context
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.presence import Presence
from worlds.named_topics import END, named_topics

HOUR_MS = 3_600_000
GROUP = "group"


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with named_topics(tmp_path_factory.mktemp("topics"), {"a": 3, "b": 1}) as made:
        yield made


def _fetch(
    partitions: Sequence[tuple[str, int, int]], *, min_bytes: int = 1, max_wait_ms: int = HOUR_MS, version: int = 12
) -> Any:
    """A Fetch of topic, partition and offset."""

    def asked_topic(topic: str, number: int, offset: int) -> object:
        fields = {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1}
        return part(1, version, "FetchTopic", topic=topic, partitions=(part(1, version, "FetchPartition", **fields),))

    return part(
        1,
        version,
        "FetchRequest",
        max_wait=timedelta(milliseconds=max_wait_ms),
        min_bytes=min_bytes,
        isolation_level=0,
        topics=tuple(asked_topic(*each) for each in partitions),
        **({"forgotten_topics_data": ()} if version >= 7 else {}),
    )


def _ask_alone(context: Context, request: Any) -> Any:
    """Ask as a client that has gone: a wait would raise an error."""
    presence = Presence()
    presence.end()
    return asyncio.run(ask(context, encoded(request), presence=presence))


@pytest.mark.parametrize("min_bytes", [0, -1])
def test_a_fetch_that_wants_no_bytes_is_answered_at_once(context: Context, min_bytes: int) -> None:
    (topic,) = _ask_alone(context, _fetch([("a", 0, END)], min_bytes=min_bytes)).responses
    assert [(int(each.error_code), each.records) for each in topic.partitions] == [(0, b"")]


def test_a_fetch_of_no_partitions_is_answered_at_once(context: Context) -> None:
    """As of a client that had a session with incremental fetches at another node."""
    assert _ask_alone(context, _fetch([], min_bytes=1)).responses == ()


def test_a_fetch_at_the_end_waits(context: Context) -> None:
    with pytest.raises(ConnectionResetError):
        _ask_alone(context, _fetch([("a", 0, END)], min_bytes=1))


@pytest.mark.parametrize(("version", "error"), [(4, 6), (5, 6), (6, 56), (12, 56)])
def test_old_clients_get_an_error_that_they_know_if_the_store_fails(tmp_path: Path, version: int, error: int) -> None:
    """NOT_LEADER_OR_FOLLOWER for KAFKA_STORAGE_ERROR: after both a client asks again."""
    with named_topics(tmp_path / "tables", {"a": 1}) as context:
        context.view.topics()
        (tmp_path / "tables").rename(tmp_path / "gone")
        (topic,) = asked(context, _fetch([("a", 0, END + 1)], version=version)).responses
    assert [int(each.error_code) for each in topic.partitions] == [error]


def test_topics_that_are_named_more_than_once_are_answered_as_often(context: Context) -> None:
    wanted = [("a", (0,)), ("b", (0, 0)), ("a", (2, -1))]
    offsets = {("a", 0): CommittedOffset(offset=7), ("b", 0): CommittedOffset(offset=8)}

    async def fetch_committed(version: int) -> list[tuple[str, list[tuple[int, int]]]]:
        await context.groups.change_offsets(GROUP, offsets)
        name = "OffsetFetchRequestTopic" if version < 8 else "OffsetFetchRequestTopics"
        topics = tuple(part(9, version, name, name=topic, partition_indexes=numbers) for topic, numbers in wanted)
        of_group = {"group_id": GROUP, "topics": topics}
        groups = {"groups": (part(9, version, "OffsetFetchRequestGroup", **of_group),)} if version >= 8 else of_group
        answer = await ask(context, encoded(part(9, version, "OffsetFetchRequest", **groups)))
        found = answer.groups[0].topics if version >= 8 else answer.topics
        return [
            (topic.name, [(each.partition_index, each.committed_offset) for each in topic.partitions])
            for topic in found
        ]

    for version in (5, 8):
        assert asyncio.run(fetch_committed(version)) == [
            ("a", [(0, 7)]),
            ("b", [(0, 8), (0, 8)]),
            ("a", [(2, -1), (-1, -1)]),
        ]


def test_a_group_that_is_named_twice_is_deleted_once(context: Context) -> None:
    async def delete() -> list[int]:
        await context.groups.change_offsets(GROUP, {("a", 0): CommittedOffset(offset=7)})
        answer = await ask(context, encoded(part(42, 2, "DeleteGroupsRequest", groups_names=(GROUP, GROUP))))
        return [int(each.error_code) for each in answer.results]

    assert asyncio.run(delete()) == [0]


@pytest.mark.parametrize(("acks", "is_answered"), [(-1, True), (1, True), (0, False)])
def test_a_producer_that_expects_no_answer_loses_its_connection(
    context: Context, acks: int, *, is_answered: bool
) -> None:
    records = part(0, 8, "PartitionProduceData", index=0, records=b"")
    topic = part(0, 8, "TopicProduceData", name="a", partition_data=(records,))
    request = part(0, 8, "ProduceRequest", transactional_id=None, acks=acks, timeout=timedelta(0), topic_data=(topic,))
    if is_answered:
        (response,) = asked(context, request).responses
        assert [int(each.error_code) for each in response.partition_responses] == [29]
    else:
        with pytest.raises(ConnectionAbortedError):
            asked(context, request)


@pytest.mark.parametrize("client_id", [None, "", "x" * (2**15 - 1), "é\0"])
def test_any_client_id_is_answered(context: Context, client_id: str | None) -> None:
    for version in (0, 8, 9, 12):
        operations = {"include_topic_authorized_operations": False} if version >= 8 else {}
        operations |= {"include_cluster_authorized_operations": False} if 8 <= version <= 10 else {}
        request = part(3, version, "MetadataRequest", topics=(), **operations)
        asyncio.run(ask(context, encoded(request, client_id=client_id)))
