"""Test that a client without rights learns nothing of topics and groups, by any request in any version.

Its answers for names that exist are those for names that do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from asked_endpoint import ask, encoded, sample
from coldlog.serve.answers.offered import ANSWERS, VERSIONS
from coldlog.serve.context import Context
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.messages import load_entity
from coldlog.serve.security.rights import ALL_RIGHTS, NO_RIGHTS, Rights
from worlds.named_topics import named_topics

THERE, NOT_THERE = "orders", "ordexx"
"""The name of a topic and of a group, and one that neither has."""
FIELDS: dict[str, object] = {
    "key_type": 0,
    "endpoint_type": 1,
    "min_bytes": 0,
    "states_filter": "Empty",
    "types_filter": "classic",
    "member_id": "",
    "group_instance_id": None,
    "current_leader_epoch": -1,
}
WAITS = {11, 14}
"""JoinGroup and SyncGroup."""
SAME_TO_ALL = {0, 10, 12, 13, 18, 22, 29, 60}
"""Requests whose answers tell nothing to clients with rights either: they are refused, or the sample is no member."""


@pytest.fixture
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with named_topics(tmp_path_factory.mktemp("topics"), {THERE: 3, "other": 1}) as made:
        yield made


def _answer(context: Context, key: int, version: int, name: str, topic_id: UUID, rights: Rights) -> str:
    """Return the answer as text, without name and id."""
    values = {"string": name, "uuid": topic_id, **FIELDS}
    request = sample(load_entity(key, version, is_request=True), values, entries=1)

    async def answer() -> Any:
        offsets = {(THERE, 2): CommittedOffset(offset=7)}
        await context.groups.change_offsets(THERE, offsets)
        return await ask(context, encoded(request), rights)

    return str(asyncio.run(answer())).replace(name, "NAME").replace(str(topic_id), "ID")


@pytest.mark.parametrize("key", sorted(ANSWERS))
def test_names_that_exist_and_names_that_do_not_are_the_same_to_a_client_without_rights(
    context: Context, key: int
) -> None:
    topic_id = context.view.topic_id(THERE)
    assert topic_id is not None
    names = (THERE, topic_id), (NOT_THERE, uuid4())
    telling = []
    for version in range(VERSIONS[key][0], VERSIONS[key][1] + 1):
        there, not_there = (_answer(context, key, version, *each, NO_RIGHTS) for each in names)
        assert there == not_there, version
        if key not in WAITS:
            there, not_there = (_answer(context, key, version, *each, ALL_RIGHTS) for each in names)
            telling.append(there != not_there)
    assert any(telling) == (key not in SAME_TO_ALL | WAITS)
