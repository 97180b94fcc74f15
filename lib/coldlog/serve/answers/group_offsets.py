"""Answer OffsetCommit, OffsetFetch and OffsetDelete. Committed offsets are kept as long as the endpoint runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from coldlog.serve.answers.group_members import identity
from coldlog.serve.answers.group_tools import subscribed_topics
from coldlog.serve.context import Context
from coldlog.serve.groups.group import CommittedOffset, Group
from coldlog.serve.messages import Request, Values

_MANY_GROUPS_FROM = 8
_MOST_METADATA = 4096
"""As offset.metadata.max.bytes is by default."""


async def answer_offset_commit(context: Context, request: Request) -> Values:
    """Each offset that was kept."""
    body = request.body
    counts = await context.look_up(context.view.topics)
    group = context.groups.check_commit(body.group_id, identity(body))
    answers = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": each.partition_index,
                    "error_code": _commit(group, topic.name, each, counts.get(topic.name, 0)),
                }
                for each in topic.partitions
            ],
        }
        for topic in body.topics
    ]
    if isinstance(group, Group):
        context.groups.follow(group)
    return {"topics": answers}


async def answer_offset_fetch(context: Context, request: Request) -> Values:
    """The committed offset of each partition, -1 where there is none; of all that have one if none is named."""
    body = request.body
    if request.version < _MANY_GROUPS_FROM:
        return {"error_code": ErrorCode.none, "topics": _committed(context, body.group_id, body.topics)}
    return {
        "groups": [
            {
                "group_id": group.group_id,
                "error_code": ErrorCode.none,
                "topics": _committed(context, group.group_id, group.topics),
            }
            for group in body.groups
        ]
    }


async def answer_offset_delete(context: Context, request: Request) -> Values:
    """Each offset that was removed; those of topics that the group reads stay."""
    body = request.body
    group = context.groups.groups.get(body.group_id)
    if group is None:
        return {"error_code": ErrorCode.group_id_not_found, "topics": []}
    read = subscribed_topics(group)
    answers: list[Values] = []
    for topic in body.topics:
        is_read = read is None or topic.name in read
        error = ErrorCode.group_subscribed_to_topic if is_read else ErrorCode.none
        numbers = [each.partition_index for each in topic.partitions]
        for number in numbers if not is_read else ():
            group.offsets.pop((topic.name, number), None)
        partitions = [{"partition_index": number, "error_code": error} for number in numbers]
        answers.append({"name": topic.name, "partitions": partitions})
    context.groups.follow(group)
    return {"error_code": ErrorCode.none, "topics": answers}


def _commit(group: Group | ErrorCode, topic: str, asked: Any, count: int) -> ErrorCode:
    if isinstance(group, ErrorCode):
        return group
    if not 0 <= asked.partition_index < count:
        return ErrorCode.unknown_topic_or_partition
    metadata = asked.committed_metadata or ""
    if len(metadata) > _MOST_METADATA:
        return ErrorCode.offset_metadata_too_large
    group.offsets[topic, asked.partition_index] = CommittedOffset(
        offset=asked.committed_offset, leader_epoch=getattr(asked, "committed_leader_epoch", -1), metadata=metadata
    )
    return ErrorCode.none


def _committed(context: Context, group_id: str, asked: Sequence[Any] | None) -> list[Values]:
    group = context.groups.groups.get(group_id)
    offsets = {} if group is None else group.offsets
    places: dict[str, list[int]] = {}
    if asked is None:
        for topic, number in offsets:
            places.setdefault(topic, []).append(number)
    else:
        places = {topic.name: list(topic.partition_indexes) for topic in asked}
    none = CommittedOffset(offset=-1)
    return [
        {
            "name": name,
            "partitions": [_partition(number, offsets.get((name, number), none)) for number in numbers],
        }
        for name, numbers in places.items()
    ]


def _partition(number: int, committed: CommittedOffset) -> Values:
    return {
        "partition_index": number,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": ErrorCode.none,
    }
