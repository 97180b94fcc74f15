"""Answer OffsetCommit, OffsetFetch and OffsetDelete.

A commit is answered when it is kept. If that is not known, the answer is COORDINATOR_NOT_AVAILABLE, after which clients
ask again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from coldlog.serve.answers.group_members import identity
from coldlog.serve.answers.group_tools import subscribed_topics
from coldlog.serve.context import Context
from coldlog.serve.groups.coordinator import Place
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
    errors: dict[Place, ErrorCode] = {}
    offsets: dict[Place, CommittedOffset | None] = {}
    for topic in body.topics:
        for each in topic.partitions:
            place = topic.name, each.partition_index
            errors[place] = group if isinstance(group, ErrorCode) else _refuse(each, counts.get(topic.name, 0))
            if errors[place] is ErrorCode.none:
                offsets[place] = CommittedOffset(
                    offset=each.committed_offset,
                    leader_epoch=getattr(each, "committed_leader_epoch", -1),
                    metadata=each.committed_metadata or "",
                    committed_ms=time.time_ns() // 1_000_000,
                )
    if offsets:
        errors |= dict.fromkeys(offsets, await context.change_offsets(body.group_id, offsets))
    if isinstance(group, Group):
        context.groups.follow(group)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": errors[topic.name, each.partition_index]}
                    for each in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


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
    is_read = {topic.name: read is None or topic.name in read for topic in body.topics}
    places: list[Place] = [
        (topic.name, each.partition_index)
        for topic in body.topics
        for each in topic.partitions
        if not is_read[topic.name]
    ]
    error = await context.change_offsets(body.group_id, dict.fromkeys(places)) if places else ErrorCode.none
    return {
        "error_code": ErrorCode.none,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": ErrorCode.group_subscribed_to_topic if is_read[topic.name] else error,
                    }
                    for each in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


def _refuse(asked: Any, count: int) -> ErrorCode:
    if not 0 <= asked.partition_index < count:
        return ErrorCode.unknown_topic_or_partition
    is_long = len(asked.committed_metadata or "") > _MOST_METADATA
    return ErrorCode.offset_metadata_too_large if is_long else ErrorCode.none


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
