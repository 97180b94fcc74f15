"""Answer what tools ask about consumer groups: ListGroups, DescribeGroups, DeleteGroups.

Tools ask every node for its groups. Groups that no node coordinates are listed by the node with the lowest id.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from kio.serial.readers import read_int16, read_int32, read_legacy_string

from coldlog.serve.answer_writer import Values
from coldlog.serve.context import Context
from coldlog.serve.groups.group import Group, GroupState
from coldlog.serve.messages import Request

_TYPE = "classic"
_DEAD = "Dead"
_NOT_ASKED = -(2**31)
_REFUSED: Values = {"error_code": ErrorCode.group_authorization_failed, "error_message": None, "group_state": ""}
_ERROR_FROM = 6
"""The version of DescribeGroups from which on a group that does not exist is an error."""


async def answer_list_groups(context: Context, request: Request) -> Values:
    """All groups that the client may see, in the states, and of the types, that are asked for."""
    states = {str(state).lower() for state in getattr(request.body, "states_filter", ())}
    types = {str(kind).lower() for kind in getattr(request.body, "types_filter", ())}
    if not await context.knows_groups():
        return {"error_code": ErrorCode.coordinator_not_available, "groups": []}
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state.value,
                "group_type": _TYPE,
            }
            for group_id, group in sorted(context.groups.list_groups().items())
            if group_id in request.rights.groups
            and (not states or group.state.value.lower() in states)
            and (not types or _TYPE in types)
        ],
    }


async def answer_describe_groups(context: Context, request: Request) -> Values:
    """State and members of each group."""
    described: list[Values] = []
    for group_id in dict.fromkeys(request.body.groups):
        group, refusal = context.groups.groups.get(group_id), context.groups.refuse(group_id)
        if group_id not in request.rights.groups:
            described.append({**_dead(group_id, request.version), **_REFUSED})
        elif refusal is not ErrorCode.none:
            described.append({**_dead(group_id, request.version), **_REFUSED, "error_code": refusal})
        else:
            described.append(_dead(group_id, request.version) if group is None else _describe(group))
    return {"groups": described}


async def answer_delete_groups(context: Context, request: Request) -> Values:
    """Each group that was removed; those with members stay."""
    results: list[Values] = []
    for group_id in dict.fromkeys(request.body.groups_names):
        group, error = context.groups.groups.get(group_id), context.groups.refuse(group_id)
        if group_id not in request.rights.groups:
            error = ErrorCode.group_authorization_failed
        elif error is not ErrorCode.none:
            pass
        elif group is None:
            error = ErrorCode.group_id_not_found
        elif group.members:
            error = ErrorCode.non_empty_group
        else:
            error = await context.change_offsets(group_id, dict.fromkeys(group.offsets))
        results.append({"group_id": group_id, "error_code": error})
    return {"results": results}


def subscribed_topics(group: Group) -> set[str] | None:
    """Return the topics that members read; None if that cannot be known."""
    topics: set[str] = set()
    for member in group.members.values():
        try:
            topics |= _topics(member.asked.protocols[group.protocol or ""])
        except Exception:  # noqa: BLE001 - bytes of a stranger
            return None
    return topics


def _topics(subscription: bytes) -> set[str]:
    """Read the topics of a ConsumerProtocolSubscription, which are its first field in every version."""
    _, at = read_int16(subscription, 0)
    count, size = read_int32(subscription, at)
    at += size
    topics = set()
    for _ in range(count):
        name, size = read_legacy_string(subscription, at)
        at += size
        topics.add(name)
    return topics


def _dead(group_id: str, version: int) -> Values:
    is_error = version >= _ERROR_FROM
    return {
        "error_code": ErrorCode.group_id_not_found if is_error else ErrorCode.none,
        "error_message": "there is no such group" if is_error else None,
        "group_id": group_id,
        "group_state": _DEAD,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": _NOT_ASKED,
    }


def _describe(group: Group) -> Values:
    is_stable = group.state is GroupState.STABLE
    protocol = (group.protocol or "") if is_stable else ""
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.asked.instance_id,
                "client_id": member.asked.client_id,
                "client_host": f"/{member.asked.client_host}",
                "member_metadata": member.asked.protocols[protocol] if is_stable else b"",
                "member_assignment": member.assignment if is_stable else b"",
            }
            for member in group.members.values()
        ],
        "authorized_operations": _NOT_ASKED,
    }
