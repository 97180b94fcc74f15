"""Test that committed offsets pass from node to node, and a node that lost its lease changes none of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from coldlog.errors import UsageError
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.groups.members import Identity, JoinRequest
from coldlog.serve.groups.offset_table import LeaseLostError
from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.delta.small_table import SmallTable
from servers.committing_endpoints import (
    DAY_MS,
    GROUP,
    LEASE_S,
    Endpoints,
    age,
    held,
    let_pass,
    meanwhile,
    run_endpoints,
)

_FIRST, _SECOND = ("archive.orders", 0), ("archive.orders", 1)
_NOBODY = Identity(member_id="")
_JOIN = JoinRequest(member_id="", session_s=60.0, rebalance_s=60.0, protocol_type="consumer", protocols={"range": b""})


def _commit(offset: int, committed_ms: int = 0) -> CommittedOffset:
    return CommittedOffset(offset=offset, committed_ms=committed_ms)


def test_a_node_that_was_paused_in_a_commit_changes_no_offset_that_a_later_holder_has_committed(
    warehouse: Path,
) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one, other = await endpoints.share(1), await endpoints.share(2)
        assert await one.take(GROUP) == 1
        await one.groups.change_offsets(GROUP, {_FIRST: _commit(7), _SECOND: _commit(7)})

        async def take_over() -> None:
            await other.shared.look()
            let_pass(LEASE_S + 1)
            assert await other.take(GROUP) == 2
            assert held(other.groups) == {_FIRST: _commit(7), _SECOND: _commit(7)}
            await other.groups.change_offsets(GROUP, {_FIRST: _commit(9)})

        let_pass(2)
        with meanwhile(take_over()), pytest.raises(LeaseLostError):
            await one.groups.change_offsets(GROUP, {_FIRST: _commit(8), _SECOND: None})
        assert await endpoints.kept() == held(other.groups) == {_FIRST: _commit(9), _SECOND: _commit(7)}
        assert one.groups.groups == {}
        assert one.groups.check_commit(GROUP, _NOBODY) is ErrorCode.not_coordinator
        assert await one.take(GROUP) == 2

    run_endpoints(str(warehouse), steps)


def test_a_commit_of_a_group_whose_lease_was_lost_and_taken_back_is_refused(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one, other = await endpoints.share(1), await endpoints.share(2)
        await one.take(GROUP)

        async def pass_on_and_back() -> None:
            await other.shared.look()
            let_pass(LEASE_S + 1)
            assert await other.take(GROUP) == 2
            await other.groups.change_offsets(GROUP, {_FIRST: _commit(9)})
            await other.shared.leave()

        let_pass(2)
        with meanwhile(pass_on_and_back()):
            late = asyncio.create_task(one.groups.change_offsets(GROUP, {_FIRST: _commit(8)}))
            await asyncio.sleep(0)
            with pytest.raises(LeaseLostError):
                await late
        assert await one.take(GROUP) == 1
        assert await endpoints.kept() == held(one.groups) == {_FIRST: _commit(9)}

    run_endpoints(str(warehouse), steps)


def test_an_endpoint_whose_number_is_that_of_another_one_does_not_start(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.share(1)
        await one.take(GROUP)
        starting = asyncio.create_task(endpoints.share(1))
        while not (await asyncio.wait([starting], timeout=0.2))[0]:
            let_pass(LEASE_S / 4)
            await one.shared.look()
        with pytest.raises(UsageError, match="serve.node_id=1 is that of the endpoint at host1:9092"):
            await starting
        assert await one.take(GROUP) == 1

    run_endpoints(str(warehouse), steps)


def test_members_that_wait_are_told_to_look_for_the_coordinator_when_the_lease_ends(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.share(1, first_delay_s=1000)
        await one.take(GROUP)
        joining = asyncio.create_task(one.groups.join(GROUP, _JOIN))
        await asyncio.sleep(0)
        let_pass(LEASE_S + 1)
        async with asyncio.timeout(30):
            joined = await joining
        assert joined.error is ErrorCode.not_coordinator
        assert one.groups.groups == {}

    run_endpoints(str(warehouse), steps)


def test_every_request_for_a_group_that_another_node_coordinates_is_not_coordinator(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one, other = await endpoints.share(1), await endpoints.share(2)
        await one.take(GROUP)
        groups, who = other.groups, Identity(member_id="member", generation=1)
        answers = [
            (await groups.join(GROUP, _JOIN)).error,
            (await groups.sync(GROUP, who, {})).error,
            groups.heartbeat(GROUP, who),
            groups.leave(GROUP, "member", None),
            groups.check_commit(GROUP, who),
            groups.check_commit(GROUP, _NOBODY),
        ]
        assert answers == [ErrorCode.not_coordinator] * len(answers)
        with pytest.raises(LeaseLostError):
            await groups.change_offsets(GROUP, {_FIRST: _commit(8)})
        assert await endpoints.kept() == {}

    run_endpoints(str(warehouse), steps)


def test_offsets_of_a_taken_slot_expire_only_when_members_have_had_time_to_come_back(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        one = await endpoints.share(1, grace_s=60.0)
        await one.take(GROUP)
        await one.groups.change_offsets(GROUP, {_FIRST: _commit(7)})
        await one.shared.leave()
        other = await endpoints.share(2, grace_s=60.0)
        now = asyncio.get_running_loop().time
        assert other.groups.list_aged(now() - 1000, 9 * DAY_MS, DAY_MS) == {}
        await other.take(GROUP)
        assert other.groups.list_aged(now() + 59, 9 * DAY_MS, DAY_MS) == {}
        assert other.groups.list_aged(now() + 61, 9 * DAY_MS, DAY_MS).keys() == {GROUP}
        assert one.groups.list_aged(now() + 61, 9 * DAY_MS, DAY_MS) == {}

    run_endpoints(str(warehouse), steps)


def test_a_table_of_endpoints_without_leases_goes_on_with_them_and_without(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        alone = await endpoints.start()
        await alone.change_offsets(GROUP, {_FIRST: _commit(7)})
        one = await endpoints.share(1)
        await one.take(GROUP)
        assert held(one.groups) == {_FIRST: _commit(7)}
        later = await endpoints.start()
        assert later.groups.keys() == {GROUP}
        await later.change_offsets("of another slot", {_SECOND: _commit(8)})
        await age(later, 30 * DAY_MS)
        await one.shared.look()
        assert one.groups.refuse(GROUP) is ErrorCode.none, "the leases were kept"

    run_endpoints(str(warehouse), steps)


def test_endpoints_without_a_node_id_write_no_leases(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        alone = await endpoints.start()
        await alone.change_offsets(GROUP, {_FIRST: _commit(7)})
        table = SmallTable(uri=str(warehouse), table=COMMITTED_OFFSETS)
        assert [row["group_id"] for row in table.read()] == [GROUP]
        assert table.version() == 1

    run_endpoints(str(warehouse), steps)
