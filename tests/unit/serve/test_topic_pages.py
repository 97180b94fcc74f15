"""Test that DescribeTopicPartitions and Metadata answer as a broker does, with any rights of the client.

The rules are those of Kafka's DescribeTopicPartitionsRequestHandler, KRaftMetadataCache and KafkaApis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asked_endpoint import asked, part
from coldlog.serve.context import Context
from worlds.named_topics import named_topics, rights_to

COUNTS = {"a": 1, "b": 5, "b.c": 2, "b_c": 1, "d": 3}
"""Partitions of each topic."""
INVALID, UNKNOWN, UNAUTHORIZED, INVALID_REQUEST, UNKNOWN_ID = 17, 3, 29, 42, 100
MISMATCHED, UNSUPPORTED = 114, 115
MOST = 2000
Cursor = tuple[str, int]
Topics = list[tuple[str | None, int, list[int]]]
"""Name, error, partitions."""
LONGEST = "n" * 249
NAMES = st.sampled_from([*COUNTS, "", "aa", "b b", ".", "..", "...", LONGEST, LONGEST + "n", "zz", "é"])
RIGHTS = st.none() | st.frozensets(NAMES, max_size=6)
"""The topics that a client may see; None: all."""


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with named_topics(tmp_path_factory.mktemp("topics"), COUNTS) as made:
        yield made


def _page(
    context: Context, visible: frozenset[str] | None, names: Sequence[str], cursor: Cursor | None, limit: int
) -> tuple[Topics, Cursor | None]:
    request = part(
        75,
        0,
        "DescribeTopicPartitionsRequest",
        topics=tuple(part(75, 0, "TopicRequest", name=name) for name in names),
        response_partition_limit=limit,
        cursor=None if cursor is None else part(75, 0, "Cursor", topic_name=cursor[0], partition_index=cursor[1]),
    )
    answer = asked(context, request, rights_to(visible))
    topics = [
        (topic.name, int(topic.error_code), [each.partition_index for each in topic.partitions])
        for topic in answer.topics
    ]
    following = answer.next_cursor
    return topics, None if following is None else (following.topic_name, following.partition_index)


def _unknown(name: str) -> int:
    is_legal = 0 < len(name) <= 249 and name not in {".", ".."} and all(each.isascii() for each in name)
    return UNKNOWN if is_legal and " " not in name else INVALID


def _broker_page(
    visible: frozenset[str] | None, names: Sequence[str], cursor: Cursor | None, limit: int
) -> tuple[Topics, Cursor | None]:
    begin, first = cursor or ("", 0)
    topics = {name for name in (names or COUNTS) if name >= begin}
    if cursor is not None and (first < 0 or (names and begin not in topics)):
        return [(name, INVALID_REQUEST, []) for name in sorted(set(names))], None
    hidden = {name for name in topics if visible is not None and name not in visible}
    described: Topics = []
    remaining, following = max(min(MOST, limit), 1), None
    for name in sorted(topics - hidden):
        if remaining == 0:
            following = name, 0
            break
        count = COUNTS.get(name)
        if count is None:
            described.append((name, _unknown(name), []))
            continue
        start = first if name == begin else 0
        upper = min(count, start + remaining)
        described.append((name, 0, list(range(start, upper))))
        remaining -= len(range(start, upper))
        if upper < count:
            following = name, upper
            break
    return described + [(name, UNAUTHORIZED, []) for name in sorted(hidden) if names], following


@given(
    visible=RIGHTS,
    names=st.lists(NAMES, max_size=6),
    cursor=st.none() | st.tuples(NAMES, st.integers(-2, 7)),
    limit=st.integers(-1, 13) | st.just(2**31 - 1),
)
def test_a_page_of_topics_is_that_of_a_broker(
    context: Context, visible: frozenset[str] | None, names: list[str], cursor: Cursor | None, limit: int
) -> None:
    assert _page(context, visible, names, cursor, limit) == _broker_page(visible, names, cursor, limit)


@given(visible=RIGHTS, names=st.lists(NAMES, max_size=6), limit=st.integers(-1, 13))
def test_the_pages_together_have_each_partition_that_a_client_may_see_once(
    context: Context, visible: frozenset[str] | None, names: list[str], limit: int
) -> None:
    found: list[tuple[str | None, int]] = []
    cursor: Cursor | None = None
    while True:
        topics, following = _page(context, visible, names, cursor, limit)
        found += [(name, number) for name, _, numbers in topics for number in numbers]
        if following is None:
            break
        assert cursor is None or following > cursor
        cursor = following
    asked_names = set(names) or set(COUNTS)
    expected = asked_names if visible is None else asked_names & visible
    assert found == [(name, number) for name in sorted(expected & set(COUNTS)) for number in range(COUNTS[name])]


@given(visible=RIGHTS, names=st.none() | st.lists(NAMES, max_size=6), version=st.integers(0, 12))
def test_metadata_has_the_topics_and_the_errors_of_a_broker(
    context: Context, visible: frozenset[str] | None, names: list[str] | None, version: int
) -> None:
    if names is None and version == 0:
        names = []  # An array that is null is not of this version.
    found = _metadata(context, visible, None if names is None else [(name, None) for name in names], version)
    is_all = names is None or (not names and version == 0)
    expected: Topics = []
    for name in sorted(COUNTS) if is_all else list(dict.fromkeys(names or ())):
        is_hidden = visible is not None and name not in visible
        if is_hidden and is_all:
            continue
        error = 0 if name in COUNTS else _unknown(name)
        numbers = list(range(COUNTS.get(name, 0)))
        expected.append((name, UNAUTHORIZED, []) if is_hidden else (name, error, numbers))
    assert found == expected


def test_metadata_by_an_id_has_no_name_of_a_topic_that_is_hidden_or_unknown(context: Context) -> None:
    ids = {name: context.view.topic_id(name) for name in COUNTS}
    wanted = [("x", ids["a"]), ("a", uuid4()), (None, ids["b"]), (None, uuid4())]
    found = _metadata(context, frozenset({"a"}), wanted, 12)
    assert found == [("a", 0, [0]), *[(None, UNKNOWN_ID, [])] * 3]
    for version in (10, 11):
        assert [error for _, error, _ in _metadata(context, None, wanted[:1], version)] == [INVALID_REQUEST]


@pytest.mark.parametrize(("kind", "error"), [(1, 0), (2, MISMATCHED), (3, UNSUPPORTED)])
def test_an_endpoint_is_no_controller(context: Context, kind: int, error: int) -> None:
    """A tool that asks a controller gets an error, as from a broker."""
    asking = part(60, 1, "DescribeClusterRequest", include_cluster_authorized_operations=False, endpoint_type=kind)
    answer = asked(context, asking)
    assert (int(answer.error_code), answer.endpoint_type) == (error, 1)
    assert [broker.broker_id for broker in answer.brokers] == ([] if error else [1])


def _metadata(
    context: Context,
    visible: frozenset[str] | None,
    wanted: Sequence[tuple[str | None, UUID | None]] | None,
    version: int,
) -> Topics:
    def named(name: str | None, topic_id: UUID | None) -> object:
        by_id = {"topic_id": topic_id} if version >= 10 else {}
        return part(3, version, "MetadataRequestTopic", name=name, **by_id)

    operations = {"include_topic_authorized_operations": False} if version >= 8 else {}
    if 8 <= version <= 10:
        operations |= {"include_cluster_authorized_operations": False}
    topics = None if wanted is None else tuple(named(*each) for each in wanted)
    answer = asked(context, part(3, version, "MetadataRequest", topics=topics, **operations), rights_to(visible))
    assert [broker.node_id for broker in answer.brokers] == [1]
    return [
        (topic.name, int(topic.error_code), [each.partition_index for each in topic.partitions])
        for topic in answer.topics
    ]
