"""committing_endpoints: groups of several endpoints over one table of committed offsets, without network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest

from coldlog.runtime.console import Console
from coldlog.serve.groups.coordinator import Coordinator
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.groups.offset_table import OffsetTable
from coldlog.serve.groups.shared_groups import SharedGroups
from coldlog.serve.groups.slot_leases import SlotLeases
from coldlog.serve.groups.slots import Node
from coldlog.serve.threads import Threads
from coldlog.tables.delta.small_table import Row, SmallTable

GROUP = "readers"
LEASE_S = 20.0
DAY_MS = 24 * 3_600_000
Offsets = dict[tuple[str, int], CommittedOffset]
"""Of topics and partitions."""
_PREFIX = "archive."


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingEndpoint:
    """An endpoint with a node id."""

    groups: Coordinator
    shared: SharedGroups

    async def take(self, group: str) -> int:
        """Ask for the coordinator of a group, as a client does; return its node id."""
        node = (await self.shared.find([group]))[group]
        assert node is not None
        return node.node_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Those of the warehouse at `uri`."""

    uri: str
    threads: Threads

    def table(self) -> OffsetTable:
        """What an endpoint has of the table."""
        return OffsetTable(self.uri, self.threads, timeout_seconds=60, seconds=0)

    async def start(self) -> Coordinator:
        """Start an endpoint, which reads the table."""
        table = self.table()
        started = Coordinator(first_delay_s=0, store=table, topic_prefix=_PREFIX)
        started.begin(await table.load())
        return started

    async def share(self, node_id: int, *, first_delay_s: float = 0, grace_s: float = 0) -> SharingEndpoint:
        """Start an endpoint that shares groups with others, with leases of `LEASE_S`."""
        lease_ms = round(LEASE_S * 1000)
        node = Node(node_id=node_id, host="", port=0, incarnation=uuid4().hex, lease_ms=lease_ms)
        leases = SlotLeases(node)
        table = OffsetTable(self.uri, self.threads, timeout_seconds=60, seconds=0, leases=leases)
        groups = Coordinator(
            first_delay_s=first_delay_s, store=table, topic_prefix=_PREFIX, grace_s=grace_s, leases=leases
        )
        table.call_after_commits(groups.follow_leases)
        started = SharingEndpoint(groups=groups, shared=SharedGroups(leases, table, Console()))
        await started.shared.register(f"host{node_id}", 9092)
        return started

    async def kept(self) -> Offsets:
        """What the table has of the group."""
        offsets = await self.table().load()
        return {(_PREFIX + topic, number): each for (group, topic, number), each in offsets.items() if group == GROUP}


def run_endpoints(uri: str, steps: Callable[[Endpoints], Awaitable[None]]) -> None:
    """Take the steps of a test, with a thread for each of two endpoints."""

    async def run() -> None:
        await steps(Endpoints(uri=uri, threads=threads))

    with closing(Threads("offsets", 2)) as threads:
        asyncio.run(run())


async def age(endpoint: Coordinator, now_ms: int, retention_ms: int = DAY_MS) -> None:
    """Renew and remove offsets at a time, as the program does again and again."""
    for group, changes in endpoint.list_aged(now_ms / 1000, now_ms, retention_ms).items():
        await endpoint.change_offsets(group, changes)


async def expire(endpoint: Coordinator, before_ms: int) -> None:
    """Remove what is older."""
    await age(endpoint, before_ms + DAY_MS)


def held(endpoint: Coordinator) -> Offsets:
    """What an endpoint has of the group in memory."""
    return dict(endpoint.groups[GROUP].offsets) if GROUP in endpoint.groups else {}


def let_pass(seconds: float) -> None:
    """Put the clock of the event loop forward: for every endpoint, so much time has passed."""
    loop = asyncio.get_running_loop()
    time = loop.time
    loop.time = lambda: time() + seconds  # type: ignore[method-assign]


@contextmanager
def meanwhile(do: Awaitable[None]) -> Iterator[None]:
    """Do something after the next change has read its rows, and before it writes them."""
    loop, todo, change = asyncio.get_running_loop(), [do], SmallTable.change

    async def wait(awaited: Awaitable[None]) -> None:
        await awaited

    def change_after(table: SmallTable, made: Callable[[list[Row]], list[Row]]) -> list[Row]:
        def make(rows: list[Row]) -> list[Row]:
            while todo:
                asyncio.run_coroutine_threadsafe(wait(todo.pop()), loop).result(60)
            return made(rows)

        return change(table, make)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SmallTable, "change", change_after)
        yield
    assert not todo, "nothing was changed"
