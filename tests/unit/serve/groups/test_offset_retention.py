"""Test that a group with members never loses its offsets, whichever of two endpoints looks for old ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coldlog.serve.groups.coordinator import Coordinator
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.groups.members import JoinRequest
from servers.committing_endpoints import DAY_MS, GROUP, Endpoints, Offsets, age, held, meanwhile, run_endpoints

_HOUR_MS = 3_600_000
_FIRST, _SECOND = ("archive.orders", 0), ("archive.orders", 1)
_FOREVER_S = 1e9
_JOIN = JoinRequest(
    member_id="",
    session_s=_FOREVER_S,
    rebalance_s=_FOREVER_S,
    protocol_type="consumer",
    protocols={"range": b""},
)


def _commit(offset: int, committed_ms: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, committed_ms=committed_ms)


def _join(endpoint: Coordinator, at_ms: int = 0) -> str:
    """Let a member join the group, and return its id."""
    ids: list[str] = []
    endpoint.groups[GROUP].join(_JOIN, at_ms / 1000, lambda joined: ids.append(joined.member_id))
    return ids[0]


def _numbers(offsets: Offsets) -> dict[tuple[str, int], int]:
    return {place: each.offset for place, each in offsets.items()}


def test_offsets_of_a_group_with_members_outlive_the_retention_at_every_endpoint(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.start()
        await one.change_offsets(GROUP, {_FIRST: _commit(7, 0), _SECOND: _commit(8, 0)})
        other = await endpoints.start()
        member, now_ms, everything = _join(one), 0, {_FIRST: 7, _SECOND: 8}
        while now_ms < 4 * DAY_MS:
            now_ms += 6 * _HOUR_MS
            for endpoint in (other, one):  # The one without the member looks first.
                await age(endpoint, now_ms)
                assert _numbers(held(endpoint)) == _numbers(await endpoints.kept()) == everything
        one.groups[GROUP].leave(member, None, now_ms / 1000)
        for endpoint in (other, one):
            await age(endpoint, now_ms + DAY_MS - 1)
            assert _numbers(held(endpoint)) == _numbers(await endpoints.kept()) == everything
        for endpoint in (other, one):
            await age(endpoint, now_ms + DAY_MS + _HOUR_MS + 1)
            assert held(endpoint) == await endpoints.kept() == {}

    run_endpoints(str(warehouse), steps)


def test_what_expires_while_a_member_joins_is_put_back(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.start()
        await one.change_offsets(GROUP, {_FIRST: _commit(7, 0)})

        async def join() -> None:
            _join(one)

        with meanwhile(join()):
            await age(one, 4 * DAY_MS)
        assert _numbers(held(one)) == _numbers(await endpoints.kept()) == {_FIRST: 7}

    run_endpoints(str(warehouse), steps)


def test_a_renewal_changes_no_offset_that_was_committed_meanwhile(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one, other = await endpoints.start(), await endpoints.start()
        await one.change_offsets(GROUP, {_FIRST: _commit(7, 0), _SECOND: _commit(8, 0)})
        _join(one)
        await other.change_offsets(GROUP, {_SECOND: _commit(18, DAY_MS)})
        # Both are in one commit of the table.
        committing = one.change_offsets(GROUP, {_FIRST: _commit(17, 2 * DAY_MS)})
        await asyncio.gather(committing, age(one, 3 * DAY_MS))
        kept = {_FIRST: _commit(17, 2 * DAY_MS), _SECOND: _commit(18, 3 * DAY_MS)}
        assert await endpoints.kept() == held(one) == kept

    run_endpoints(str(warehouse), steps)
