"""Test that offsets expire only after their retention, also if two endpoints write the table."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coldlog.serve.groups.group import CommittedOffset
from servers.committing_endpoints import GROUP, Endpoints, expire, held, meanwhile, run_endpoints

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_FIRST, _SECOND = ("archive.orders", 0), ("archive.orders", 1)


def _commit(offset: int, committed_ms: int) -> CommittedOffset:
    return CommittedOffset(offset=offset, committed_ms=committed_ms)


def test_what_another_endpoint_has_committed_since_does_not_expire(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.start()
        await one.change_offsets(GROUP, {_FIRST: _commit(7, 0), _SECOND: _commit(8, 0)})
        other = await endpoints.start()
        await other.change_offsets(GROUP, {_FIRST: _commit(9, 5 * _DAY_MS)})
        await expire(one, 4 * _DAY_MS)
        assert await endpoints.kept() == {_FIRST: _commit(9, 5 * _DAY_MS)}
        assert held(one) == {_FIRST: _commit(9, 5 * _DAY_MS)}, "it goes on with what it has found"
        await expire(one, 7 * _DAY_MS)
        assert await endpoints.kept() == held(one) == {}

    run_endpoints(str(warehouse), steps)


def test_what_another_endpoint_commits_while_it_expires_is_kept(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one, other = await endpoints.start(), await endpoints.start()
        await one.change_offsets(GROUP, {_FIRST: _commit(7, 0), _SECOND: _commit(8, 0)})
        with meanwhile(other.change_offsets(GROUP, {_FIRST: _commit(7, 5 * _DAY_MS)})):
            await expire(one, 4 * _DAY_MS)
        assert await endpoints.kept() == held(one) == {_FIRST: _commit(7, 5 * _DAY_MS)}

    run_endpoints(str(warehouse), steps)


def test_what_is_committed_just_before_it_would_expire_is_kept(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.start()
        await one.change_offsets(GROUP, {_FIRST: _commit(7, 0)})
        # Both are in one commit of the table.
        committing = one.change_offsets(GROUP, {_FIRST: _commit(9, 5 * _DAY_MS)})
        await asyncio.gather(committing, expire(one, 4 * _DAY_MS))
        assert await endpoints.kept() == held(one) == {_FIRST: _commit(9, 5 * _DAY_MS)}

    run_endpoints(str(warehouse), steps)


def test_an_offset_that_is_only_committed_again_is_kept_for_the_whole_retention(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.start()
        last_ms = _HOUR_MS - 1
        for committed_ms in (0, last_ms):
            await one.change_offsets(GROUP, {_FIRST: _commit(7, committed_ms)})
        other = await endpoints.start()  # It knows the row only, which is as it was at first.
        for endpoint in (one, other):
            await expire(endpoint, last_ms)
            assert held(endpoint).keys() == {_FIRST}
        assert (await endpoints.kept()).keys() == {_FIRST}
        for endpoint in (one, other):
            await expire(endpoint, last_ms + _HOUR_MS + 1)
            assert await endpoints.kept() == held(endpoint) == {}

    run_endpoints(str(warehouse), steps)


def test_only_topics_with_the_prefix_have_offsets(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.start()
        await one.change_offsets(GROUP, {_FIRST: _commit(7, 0)})
        await one.change_offsets(GROUP, {("orders", 0): None, ("other.orders", 0): None, _SECOND: _commit(8, 0)})
        assert await endpoints.kept() == held(one) == {_FIRST: _commit(7, 0), _SECOND: _commit(8, 0)}

    run_endpoints(str(warehouse), steps)
