"""Answer Metadata, DescribeCluster, DescribeTopicPartitions: the node that is asked leads every partition.

Any node could lead any partition. Which node a client asks is what the load balancer has chosen, and that node lives.
With leaders spread over all nodes, clients would wait for the partitions of a node that was killed, until its lease
ends. The other nodes are named because one of them may coordinate the client's group.

Topics are never created. Leader epochs are those of the archive's lineage.

If the tables cannot be read in time, a topic that is named is LEADER_NOT_AVAILABLE, after which clients ask again. For
a request for all topics, the layout has no error: the answer has neither brokers nor topics, which clients take for
one that they have to ask for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from coldlog.serve.answer_writer import Values
from coldlog.serve.context import Context
from coldlog.serve.messages import Request
from coldlog.serve.offered_topics import is_legal_name
from coldlog.serve.security.rights import Rights

_NULL_FROM = 12
"""The first version in which a topic may have an id instead of a name. A broker refuses earlier requests for these."""
_MOST_PARTITIONS = 2000
"""Of one page, as max.request.partition.size.limit is by default."""
_OF_BROKERS, _OF_CONTROLLERS = 1, 2
"""Types of endpoints."""


async def answer_metadata(context: Context, request: Request) -> Values:
    """All topics, or those that are asked for by name."""
    asked: Sequence[Any] | None = request.body.topics
    is_all = asked is None or (request.version == 0 and not asked)
    named = dict.fromkeys((each.name, getattr(each, "topic_id", None)) for each in asked or ())
    wanted = None if is_all else list(named)  # Each once, as a broker has it: an answer must not outgrow its request.
    topics: list[Values] | None
    is_by_id = any(name is None or topic_id is not None for name, topic_id in named)
    if wanted is not None and request.version < _NULL_FROM and is_by_id:
        topics = [_without_partitions(ErrorCode.invalid_request, name or "", None) for name, _ in wanted]
    else:
        topics = await context.find(lambda: _topics(context, request.rights, wanted))
    is_empty = topics is None and wanted is None
    if topics is None:
        topics = [_not_available(request.rights, name, topic_id) for name, topic_id in wanted or ()]
    return {
        "brokers": [] if is_empty else _nodes(context),
        "cluster_id": context.view.cluster_id,
        "controller_id": context.node_id,
        "topics": topics,
    }


async def answer_describe_cluster(context: Context, request: Request) -> Values:
    """All nodes that live. None of them is a controller to tools that ask controllers."""
    kind = getattr(request.body, "endpoint_type", _OF_BROKERS)
    if kind != _OF_BROKERS:
        is_known = kind == _OF_CONTROLLERS
        return {
            "error_code": ErrorCode.mismatched_endpoint_type if is_known else ErrorCode.unsupported_endpoint_type,
            "error_message": "this is the endpoint of a broker" if is_known else f"unknown type of endpoint {kind}",
            "cluster_id": "",
            "brokers": [],
        }
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": _OF_BROKERS,
        "cluster_id": context.view.cluster_id,
        "controller_id": context.node_id,
        "brokers": [{**each, "broker_id": each["node_id"], "is_fenced": False} for each in _nodes(context)],
    }


async def answer_topic_partitions(context: Context, request: Request) -> Values:
    """The named topics, or all, in order from the cursor on, up to the limit of partitions. After them, on every page,
    the named ones that the client may not see."""
    body, rights = request.body, request.rights
    names, cursor, limit = sorted({each.name for each in body.topics}), body.cursor, body.response_partition_limit
    begin, first = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    if cursor is not None and (first < 0 or (names and begin not in names)):
        return {"topics": [_without_partitions(ErrorCode.invalid_request, name, None) for name in names]}

    def describe() -> Values:
        visible = [name for name in names if name in rights.topics] if names else _visible(context, rights)
        wanted = [(name, first if name == begin else 0) for name in visible if name >= begin]
        hidden = [
            _without_partitions(ErrorCode.topic_authorization_failed, name, None)
            for name in names
            if name >= begin and name not in rights.topics
        ]
        described, following = _page(context, rights, wanted, max(1, min(limit, _MOST_PARTITIONS)))
        return {"topics": [*described, *hidden], "next_cursor": following}

    found = await context.find(describe)
    return {"topics": [_not_available(rights, name) for name in names or [None]]} if found is None else found


def _page(
    context: Context, rights: Rights, wanted: Sequence[tuple[str, int]], room: int
) -> tuple[list[Values], Values | None]:
    """Describe topics, each from one of its partitions on, until there is no room for more partitions. Return also
    where the next page begins, if there is more."""
    described: list[Values] = []
    for name, first in wanted:
        if room == 0:
            return described, {"topic_name": name, "partition_index": 0}
        topic, stopped_at = _topic(context, rights, name, None, first, room)
        described.append(topic)
        room -= len(topic["partitions"])  # type: ignore[arg-type]  # a list
        if stopped_at is not None:
            return described, {"topic_name": name, "partition_index": stopped_at}
    return described, None


def _nodes(context: Context) -> list[Values]:
    """Return the nodes, as clients reach them."""
    return [{"node_id": node_id, "host": host, "port": port, "rack": None} for node_id, host, port in context.nodes()]


def _visible(context: Context, rights: Rights) -> list[str]:
    """Return the topics that a client may see, in order."""
    return sorted(name for name in context.view.topics() if name in rights.topics)


def _topics(context: Context, rights: Rights, asked: list[tuple[str | None, UUID | None]] | None) -> list[Values]:
    if asked is None:
        return [_topic(context, rights, name, None)[0] for name in _visible(context, rights)]
    topics: list[Values] = []
    for name, topic_id in asked:
        known = name if topic_id is None else context.view.name_of(topic_id)
        if topic_id is not None and known is not None and known not in rights.topics:
            known = None
        topics.append(_topic(context, rights, known, topic_id)[0])
    return topics


def _topic(
    context: Context, rights: Rights, name: str | None, topic_id: UUID | None, first: int = 0, most: int = 1 << 31
) -> tuple[dict[str, object], int | None]:
    """Return a topic, with partitions from `first` on, and the number of the next one if there are more."""
    is_visible = name is None or name in rights.topics
    count = context.view.topics().get(name or "", 0) if is_visible else 0
    if name is None or not count:
        error = ErrorCode.unknown_topic_id if name is None else unknown_topic(name)
        return _without_partitions(error if is_visible else ErrorCode.topic_authorization_failed, name, topic_id), None
    last = min(count, first + most)
    partitions = [_partition(context, name, number) for number in range(first, last)]
    topic = {
        "error_code": ErrorCode.none,
        "name": name,
        "topic_id": context.view.topic_id(name),
        "is_internal": False,
        "partitions": partitions,
    }
    return topic, last if last < count else None


def unknown_topic(name: str) -> ErrorCode:
    """Return the error for a topic that is not offered. If no topic can have this name, clients do not ask again."""
    return ErrorCode.unknown_topic_or_partition if is_legal_name(name) else ErrorCode.invalid_topic_exception


def _not_available(rights: Rights, name: str | None, topic_id: UUID | None = None) -> Values:
    is_visible = name is None or name in rights.topics
    error = ErrorCode.leader_not_available if is_visible else ErrorCode.topic_authorization_failed
    return _without_partitions(error, name, topic_id)


def _without_partitions(error: ErrorCode, name: str | None, topic_id: UUID | None) -> dict[str, object]:
    return {"error_code": error, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": []}


def _partition(context: Context, name: str, number: int) -> Values:
    known = context.view.partition(name, number)
    return {
        "error_code": ErrorCode.none,
        "partition_index": number,
        "leader_id": context.node_id,
        "leader_epoch": -1 if known is None else known.leader_epoch,
        "replica_nodes": [context.node_id],
        "isr_nodes": [context.node_id],
        "eligible_leader_replicas": [],  # Java's client fails at null
        "last_known_elr": [],
        "offline_replicas": [],
    }
