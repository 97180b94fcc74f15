"""List the requests that are answered: by API key the versions, and what answers.

OffsetCommit and OffsetFetch end at version 9, because later ones ask by topic id. A client that asks for the list with
a newer version gets it in the layout of version 0, with UNSUPPORTED_VERSION, and asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kio.schema.errors import ErrorCode

from coldlog.serve.answer_writer import Values
from coldlog.serve.answers.configs import answer_describe_configs
from coldlog.serve.answers.fetch import answer_fetch
from coldlog.serve.answers.group_members import (
    answer_find_coordinator,
    answer_heartbeat,
    answer_join_group,
    answer_leave_group,
    answer_sync_group,
)
from coldlog.serve.answers.group_offsets import answer_offset_commit, answer_offset_delete, answer_offset_fetch
from coldlog.serve.answers.group_tools import answer_delete_groups, answer_describe_groups, answer_list_groups
from coldlog.serve.answers.log_dirs import answer_describe_log_dirs
from coldlog.serve.answers.metadata import answer_describe_cluster, answer_metadata, answer_topic_partitions
from coldlog.serve.answers.offsets import answer_epoch_ends, answer_list_offsets
from coldlog.serve.answers.refused import refuse_acls, refuse_produce, refuse_producer_id
from coldlog.serve.context import Context
from coldlog.serve.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Request

Answering = Callable[[Context, Request], Awaitable[Values]]


async def answer_api_versions(context: Context, request: Request) -> Values:
    """The keys and versions of this module."""
    offered = VERSIONS if context.users is not None else VERSIONS.keys() - SASL_VERSIONS.keys()
    return {
        "error_code": ErrorCode.unsupported_version if request.body is None else ErrorCode.none,
        "api_keys": [
            {"api_key": key, "min_version": VERSIONS[key][0], "max_version": VERSIONS[key][1]}
            for key in sorted(offered)
        ],
    }


_OFFERED: dict[int, tuple[int, int, Answering]] = {
    0: (3, 8, refuse_produce),
    1: (4, 18, answer_fetch),
    2: (1, 11, answer_list_offsets),
    3: (0, 12, answer_metadata),
    8: (2, 9, answer_offset_commit),
    9: (1, 9, answer_offset_fetch),
    10: (0, 4, answer_find_coordinator),
    11: (0, 9, answer_join_group),
    12: (0, 4, answer_heartbeat),
    13: (0, 5, answer_leave_group),
    14: (0, 5, answer_sync_group),
    15: (0, 6, answer_describe_groups),
    16: (0, 5, answer_list_groups),
    API_VERSIONS: (0, 4, answer_api_versions),
    22: (0, 4, refuse_producer_id),
    23: (2, 4, answer_epoch_ends),
    29: (1, 3, refuse_acls),
    32: (1, 4, answer_describe_configs),
    35: (1, 4, answer_describe_log_dirs),
    42: (0, 2, answer_delete_groups),
    47: (0, 0, answer_offset_delete),
    60: (0, 1, answer_describe_cluster),
    75: (0, 0, answer_topic_partitions),
}
SASL_VERSIONS = {SASL_HANDSHAKE: (1, 1), SASL_AUTHENTICATE: (0, 2)}
"""Answered by the session of a connection, and offered if clients have to authenticate."""
VERSIONS = {key: (first, last) for key, (first, last, _) in _OFFERED.items()} | SASL_VERSIONS
ANSWERS = {key: answering for key, (_, _, answering) in _OFFERED.items()}
