"""Answer OffsetCommit, OffsetFetch and OffsetDelete.

A commit is answered when it is kept. If that is not known, the answer is COORDINATOR_NOT_AVAILABLE, after which clients
ask again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from coldlog.serve.answer_writer import Values
from coldlog.serve.answers.group_members import identity
from coldlog.serve.answers.group_tools import subscribed_topics
from coldlog.serve.context import Context
from coldlog.serve.groups.coordinator import Place
from coldlog.serve.groups.group import CommittedOffset, Group
from coldlog.serve.messages import Request
from coldlog.serve.offered_topics import OfferedTopics
from coldlog.serve.security.rights import Rights

_MANY_GROUPS_FROM = 8
_MOST_METADATA = 4096
"""As offset.metadata.max.bytes is by default."""
_NONE = CommittedOffset(offset=-1)


async def answer_offset_commit(context: Context, request: Request) -> Values:
    """Each offset that was kept."""
    body = request.body
    offered = await context.find(context.view.offered)
    counts = {} if offered is None else offered.counts
    ids = {} if offered is None else offered.partition_ids
    group: Group | ErrorCode = ErrorCode.group_authorization_failed
    if offered is None:
        group = ErrorCode.coordinator_not_available
    elif body.group_id in request.rights.groups:
        group = context.groups.check_commit(body.group_id, identity(body))
    errors: dict[Place, ErrorCode] = {}
    offsets: dict[Place, CommittedOffset | None] = {}
    for topic in body.topics:
        for each in topic.partitions:
            place = topic.name, each.partition_index
            count = counts.get(topic.name, 0) if topic.name in request.rights.topics else None
            errors[place] = group if isinstance(group, ErrorCode) else _refuse(each, count)
            if errors[place] is ErrorCode.none:
                offsets[place] = CommittedOffset(
                    offset=each.committed_offset,
                    leader_epoch=getattr(each, "committed_leader_epoch", -1),
                    metadata=each.committed_metadata or "",
                    committed_ms=time.time_ns() // 1_000_000,
                    topic_id=ids.get(place, ""),
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
    """The committed offset of each partition, -1 where there is none; of all that have one if none is named.

    If the topic was created again since, its offset does not count. Kafka removes it with the topic."""
    body, rights = request.body, request.rights
    is_one = request.version < _MANY_GROUPS_FROM
    # Each group once: an answer with all its offsets must not be there as often as a client likes.
    asked = {each.group_id: each.topics for each in ([body] if is_one else body.groups)}
    offered = await _find_offered(context, [group_id for group_id in asked if group_id in rights.groups])
    answers = [
        {"group_id": group_id, **_committed(context, rights, group_id, topics, offered)}
        for group_id, topics in asked.items()
    ]
    return answers[0] if is_one else {"groups": answers}


async def answer_offset_delete(context: Context, request: Request) -> Values:
    """Each offset that was removed; those of topics that the group reads stay."""
    body = request.body
    if body.group_id not in request.rights.groups:
        return {"error_code": ErrorCode.group_authorization_failed, "topics": []}
    group, refusal = context.groups.groups.get(body.group_id), context.groups.refuse(body.group_id)
    if group is None or refusal is not ErrorCode.none:
        return {"error_code": refusal or ErrorCode.group_id_not_found, "topics": []}
    read = subscribed_topics(group)
    refused = {
        topic.name: ErrorCode.topic_authorization_failed
        if topic.name not in request.rights.topics
        else ErrorCode.group_subscribed_to_topic
        for topic in body.topics
        if topic.name not in request.rights.topics or read is None or topic.name in read
    }
    places: list[Place] = [
        (topic.name, each.partition_index)
        for topic in body.topics
        for each in topic.partitions
        if topic.name not in refused
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
                        "error_code": refused.get(topic.name, error),
                    }
                    for each in topic.partitions
                ],
            }
            for topic in body.topics
        ],
    }


def _refuse(asked: Any, count: int | None) -> ErrorCode:
    """Return why an offset is not kept. `count` is the topic's number of partitions; None if the client may not see
    it."""
    if count is None:
        return ErrorCode.topic_authorization_failed
    if not 0 <= asked.partition_index < count:
        return ErrorCode.unknown_topic_or_partition
    is_long = len(asked.committed_metadata or "") > _MOST_METADATA
    return ErrorCode.offset_metadata_too_large if is_long else ErrorCode.none


async def _find_offered(context: Context, group_ids: Collection[str]) -> OfferedTopics | None:
    """Return the topics that say which offsets of these groups count; None if they cannot be read.

    Before an offset is left out, this looks for newer tables: only they may have its incarnation."""
    view, looks = context.view, context.view.looks

    def offered_now() -> OfferedTopics:
        view.look_again(looks)
        return view.offered()

    offered = await context.find(view.offered)
    if offered is None or all(_held(context, each) == _counted(context, each, offered) for each in group_ids):
        return offered
    return await context.find(offered_now)


def _held(context: Context, group_id: str) -> Mapping[Place, CommittedOffset]:
    group = context.groups.groups.get(group_id)
    return {} if group is None else group.offsets


def _counted(context: Context, group_id: str, offered: OfferedTopics) -> Mapping[Place, CommittedOffset]:
    """Return the offsets, without those of older incarnations of their topics."""
    ids = offered.partition_ids
    return {
        place: each
        for place, each in _held(context, group_id).items()
        if not each.topic_id or not ids.get(place) or each.topic_id == ids[place]
    }


def _committed(
    context: Context, rights: Rights, group_id: str, asked: Sequence[Any] | None, offered: OfferedTopics | None
) -> dict[str, object]:
    error = context.groups.refuse(group_id) if group_id in rights.groups else ErrorCode.group_authorization_failed
    if error is ErrorCode.none and offered is None:
        error = ErrorCode.coordinator_load_in_progress  # After any other error some clients do not ask again.
    offsets = {} if error is not ErrorCode.none or offered is None else _counted(context, group_id, offered)
    places: dict[str, list[int]] = {}
    for topic, number in offsets:
        if topic in rights.topics:
            places.setdefault(topic, []).append(number)
    topics: list[Values] = []
    wanted = places.items() if asked is None else ((topic.name, topic.partition_indexes) for topic in asked)
    for name, numbers in wanted:
        is_hidden = error is ErrorCode.none and name not in rights.topics
        reason = ErrorCode.topic_authorization_failed if is_hidden else error
        found = offsets if reason is ErrorCode.none else {}
        topics.append(
            {
                "name": name,
                "partitions": [_partition(number, found.get((name, number), _NONE), reason) for number in numbers],
            }
        )
    return {"error_code": error, "topics": topics}


def _partition(number: int, committed: CommittedOffset, error: ErrorCode) -> Values:
    return {
        "partition_index": number,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": error,
    }
