"""Share the groups of a warehouse with other endpoints: register this node, keep its leases, find coordinators.

The node is written once in a third of its lease, and when it takes a slot, with the commit that has the offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

from coldlog.errors import ColdlogError, UsageError
from coldlog.runtime.console import Console
from coldlog.serve.groups.offset_table import OffsetTable
from coldlog.serve.groups.slot_leases import SlotLeases
from coldlog.serve.groups.slots import Node, slot_of

_LOOK_S = 1.0


class SharedGroups:
    """This node among those that have the table."""

    def __init__(self, leases: SlotLeases, table: OffsetTable, console: Console) -> None:
        self._leases = leases
        self._table = table
        self._console = console

    @property
    def held_count(self) -> int:
        """How many slots this node coordinates."""
        return len(self._leases.held(_now()))

    @property
    def is_known(self) -> bool:
        """Whether every node that lives names this one to its clients."""
        return self._leases.is_known(_now())

    def nodes(self) -> list[Node]:
        """Return the nodes that live, by id, as the table was read last."""
        return self._leases.nodes(_now())

    async def register(self, host: str, port: int) -> None:
        """Write the node into the table. Raise `UsageError` if its id is that of another process, which is known when
        this renews its lease; the lease of one that was killed ends. Raise what the table raises."""
        self._leases.advertise(host, port)
        await self._table.save({})
        first = self._leases.occupant
        while not self._leases.is_registered:
            await asyncio.sleep(_LOOK_S)
            await self._table.save({})
            other = self._leases.occupant
            if other is not None and other != first and not self._leases.is_registered:
                raise UsageError(
                    f"serve.node_id={other.node_id} is that of the endpoint at {other.host}:{other.port}; give each "
                    "endpoint a number of its own"
                )

    async def keep(self, seconds: float) -> None:
        """Renew the leases again and again, in time for `seconds`. What fails is reported once until it works again."""
        has_failed = False
        while True:
            await asyncio.sleep(seconds / 3)
            why = ""
            try:
                await self._table.save({})
            except (TimeoutError, ColdlogError) as failed:
                why = str(failed) or "no answer in time"
            else:
                why = "" if self._leases.is_registered else "another endpoint has the same serve.node_id"
            if why and not has_failed:
                self._console.warn(f"the leases of consumer groups cannot be renewed: {why}")
            has_failed = bool(why)

    async def find(self, group_ids: Collection[str]) -> dict[str, Node | None]:
        """Return the coordinator of each group, which is this node if a slot had none. Raise what the table raises."""
        slots = {slot_of(group_id) for group_id in group_ids}
        held = self._leases.held(_now())
        elsewhere = slots - held.keys()
        if elsewhere and not (self._leases.is_fresh(_now()) and all(self._coordinators(elsewhere).values())):
            self._leases.want(elsewhere)
            await self._table.save({})
        found = self._coordinators(slots)
        return {group_id: found[slot_of(group_id)] for group_id in group_ids}

    async def look(self) -> None:
        """See that what is known of the leases is not old. Raise what the table raises."""
        if not self._leases.is_fresh(_now()):
            await self._table.save({})

    async def leave(self) -> None:
        """Coordinate nothing from now on, and let other nodes take the slots. If that cannot be written, the lease ends
        by itself."""
        self._leases.leave()
        with suppress(TimeoutError, ColdlogError):
            await self._table.save({})

    def _coordinators(self, slots: Collection[int]) -> dict[int, Node | None]:
        return {slot: self._leases.coordinator(slot, _now()) for slot in slots}


def _now() -> float:
    return asyncio.get_running_loop().time()
