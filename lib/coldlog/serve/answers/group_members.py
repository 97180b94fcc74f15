"""Answer what members of a consumer group send: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

This node coordinates every group, unless endpoints share them (`serve.node_id`). There are no transactions.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from coldlog.serve.answer_writer import Values
from coldlog.serve.context import Context
from coldlog.serve.groups.members import Identity, Joined, JoinRequest, Synced
from coldlog.serve.messages import Request

_GROUP, _TRANSACTION = 0, 1
_RETURNS_FROM, _TIMEOUT_FROM, _MEMBERS_FROM, _KEYS_FROM = 4, 1, 3, 4
"""Versions: of JoinGroup that asks for an id first, and that has a rebalance timeout; of LeaveGroup and of
FindCoordinator with many."""


async def answer_find_coordinator(context: Context, request: Request) -> Values:
    """Name the coordinator of each group. Transactions have none."""
    kind = getattr(request.body, "key_type", _GROUP)
    error = ErrorCode.none if kind == _GROUP else ErrorCode.invalid_request
    if kind == _TRANSACTION:
        error = ErrorCode.transactional_id_authorization_failed

    keys = [request.body.key] if request.version < _KEYS_FROM else list(request.body.coordinator_keys)
    wanted = {key for key in keys if error is ErrorCode.none and key in request.rights.groups}
    nodes = await context.find_coordinators(wanted) if wanted else {}

    def describe(key: str) -> Values:
        reason, node = error, nodes.get(key)
        if error is ErrorCode.none and key not in wanted:
            reason = ErrorCode.group_authorization_failed
        elif error is ErrorCode.none and node is None:
            reason = ErrorCode.coordinator_not_available
        node_id, host, port = node or (-1, "", -1)
        return {
            "error_code": reason,
            "error_message": None,
            "node_id": node_id,
            "host": host,
            "port": port,
            "key": key,
        }

    if request.version < _KEYS_FROM:
        return describe(request.body.key)
    return {"coordinators": [describe(key) for key in keys]}


async def answer_join_group(context: Context, request: Request) -> Values:
    """The next generation, when all members have joined."""
    body = request.body
    session_s = body.session_timeout.total_seconds()
    rebalance = body.rebalance_timeout.total_seconds() if request.version >= _TIMEOUT_FROM else session_s
    asked = JoinRequest(
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        client_id=request.client_id or "",
        client_host=request.client_host,
        session_s=session_s,
        rebalance_s=max(0.0, rebalance),
        protocol_type=body.protocol_type,
        protocols={protocol.name: bytes(protocol.metadata) for protocol in body.protocols},
        must_return=request.version >= _RETURNS_FROM,
    )
    if body.group_id in request.rights.groups:
        with request.presence.waiting():
            joined = await context.groups.join(body.group_id, asked)
    else:
        joined = Joined(error=ErrorCode.group_authorization_failed, member_id=body.member_id)
    return {
        "error_code": joined.error,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol,
        "leader": joined.leader,
        "skip_assignment": False,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in joined.members
        ],
    }


async def answer_sync_group(context: Context, request: Request) -> Values:
    """The member's assignment, when the leader has sent it."""
    body = request.body
    assignments = {each.member_id: bytes(each.assignment) for each in body.assignments}
    if body.group_id in request.rights.groups:
        with request.presence.waiting():
            synced = await context.groups.sync(body.group_id, identity(body), assignments)
    else:
        synced = Synced(error=ErrorCode.group_authorization_failed)
    return {
        "error_code": synced.error,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


async def answer_heartbeat(context: Context, request: Request) -> Values:
    """Whether the member is one of this generation, and has to join again."""
    body = request.body
    if body.group_id not in request.rights.groups:
        return {"error_code": ErrorCode.group_authorization_failed}
    return {"error_code": context.groups.heartbeat(body.group_id, identity(body))}


async def answer_leave_group(context: Context, request: Request) -> Values:
    """Each member that has left."""
    body = request.body
    if body.group_id not in request.rights.groups:
        return {"error_code": ErrorCode.group_authorization_failed, "members": []}
    if request.version < _MEMBERS_FROM:
        return {"error_code": context.groups.leave(body.group_id, body.member_id, None)}
    return {
        "error_code": ErrorCode.none,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": context.groups.leave(body.group_id, member.member_id, member.group_instance_id),
            }
            for member in body.members
        ],
    }


def identity(body: Any) -> Identity:
    """Return who sends a request."""
    generation = body.generation_id if hasattr(body, "generation_id") else body.generation_id_or_member_epoch
    return Identity(
        member_id=body.member_id, generation=generation, instance_id=getattr(body, "group_instance_id", None)
    )
