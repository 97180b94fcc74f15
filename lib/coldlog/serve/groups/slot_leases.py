"""Decide which slots this node coordinates, and what it claims with the next commit of the table.

A lease is measured by a clock that only goes forward, in each process from what it saw itself; clocks of two machines
are never compared. The holder counts from before it asked for the commit. The others count from when they first saw the
row as it is. So the holder gives up first.

There is no clock and no table here: every call is given the time, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from coldlog.serve.groups.slots import SLOTS, Claim, Cluster, Lease, Node

FRESH_S = 1.0
"""What was read of the table is believed for so long, where it names another node."""


class SlotLeases:
    """The leases of this node, and what it knows of the others."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._lease_s = node.lease_ms / 1000
        self._cluster = Cluster()
        self._held: dict[int, Lease] = {}
        self._until = self._read_at = self._renewed_at = -float("inf")
        self._seen: dict[int, tuple[Node, float]] = {}
        """The row of each node, and since when it is as it is."""
        self._unaware: dict[str, int] = {}
        """The beat of each other node, by incarnation, when this one was registered."""
        self._wanted: set[int] = set()
        self._is_leaving = False

    @property
    def until(self) -> float:
        """When the leases end unless they are renewed."""
        return self._until

    @property
    def occupant(self) -> Node | None:
        """Return who has the node's id, as the table was read last."""
        return self._cluster.nodes.get(self.node.node_id)

    @property
    def is_registered(self) -> bool:
        """Whether the table had this process as the node, when it was read last."""
        occupant = self.occupant
        return occupant is not None and occupant.incarnation == self.node.incarnation

    def advertise(self, host: str, port: int) -> None:
        """Tell other nodes where clients reach this one."""
        self.node = replace(self.node, host=host, port=port)

    def held(self, now: float) -> Mapping[int, Lease]:
        """Return the leases that this node has now."""
        return self._held if now < self._until and not self._is_leaving else {}

    def is_fresh(self, now: float) -> bool:
        """Whether the table was read just now."""
        return now < self._read_at + FRESH_S

    def nodes(self, now: float) -> list[Node]:
        """Return the nodes that live, by id; this one is always among them."""
        others = (each for each in self._cluster.nodes.values() if each.node_id != self.node.node_id)
        live = [each for each in others if not self._has_ended(each, now)]
        return sorted([self.node, *live], key=lambda each: each.node_id)

    def is_known(self, now: float) -> bool:
        """Whether every node that lives has read the row of this one: each has written its own row since."""
        others = (each for each in self.nodes(now) if each.node_id != self.node.node_id)
        return self.is_registered and not any(self._unaware.get(each.incarnation) == each.beat for each in others)

    def coordinator(self, slot: int, now: float) -> Node | None:
        """Return the node that coordinates a slot; None if nobody does, or that is not known any more."""
        if slot in self.held(now):
            return self.node
        holder = self._cluster.holder(slot)
        is_other = holder is not None and holder.incarnation != self.node.incarnation
        return holder if holder is not None and is_other and not self._has_ended(holder, now) else None

    def unheld(self, now: float) -> frozenset[int]:
        """Return the slots that this node lists for nobody: the node with the lowest id does it for all."""
        if self._is_leaving or self.nodes(now)[0] != self.node:
            return frozenset()
        return frozenset(slot for slot in range(SLOTS) if self.coordinator(slot, now) is None)

    def want(self, slots: Iterable[int]) -> None:
        """Take these slots with the next commit, if nobody has them."""
        self._wanted.update(slots)

    def leave(self) -> None:
        """Give up everything: other nodes can take the slots after the next commit."""
        self._is_leaving = True

    def claim(self, now: float, now_ms: int) -> Claim:
        """Return what the next commit claims. The node's row changes only when it is time to renew the leases.

        `now_ms` is noted in rows that change, for people.
        """
        wanted, self._wanted = frozenset(self._wanted), set()
        if now >= self._renewed_at + self._lease_s / 6 or not self.is_registered:
            self.node = replace(self.node, beat=self.node.beat + 1)
        ended = (each for each in self._cluster.nodes.values() if each.incarnation != self.node.incarnation)
        return Claim(
            node=self.node,
            wanted=wanted,
            ended=frozenset(each for each in ended if self._has_ended(each, now)),
            is_leaving=self._is_leaving,
            now_ms=now_ms,
        )

    def follow(self, claim: Claim, cluster: Cluster, asked_at: float, now: float) -> None:
        """Go on with what a commit has made of a claim that was made at `asked_at`."""
        before = self.occupant
        self._cluster, self._read_at = cluster, now
        for node in cluster.nodes.values():
            if node.node_id not in self._seen or self._seen[node.node_id][0] != node:
                self._seen[node.node_id] = node, now
        if not self.is_registered:
            self._until, self._held = -float("inf"), {}
            return
        if before is None or before.incarnation != self.node.incarnation:
            self._unaware = {each.incarnation: each.beat for each in cluster.nodes.values()}
        if before != claim.node:
            self._renewed_at, self._until = asked_at, asked_at + self._lease_s
        own = (each for each in cluster.leases.values() if each.incarnation == self.node.incarnation)
        self._held = {each.slot: each for each in own}

    def _has_ended(self, node: Node, now: float) -> bool:
        _, since = self._seen[node.node_id]
        return now > since + node.lease_ms / 1000
