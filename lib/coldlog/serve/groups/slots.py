"""Say which node coordinates which groups, in rows beside the committed offsets.

A group belongs to a slot, by the CRC of its id, as in Kafka to a partition of __consumer_offsets. A slot's lease names
the process that took it last, with an epoch that only grows. It holds as long as the process's node has a row. A node
renews its row (`beat`) with all its leases. Who takes a slot of a node that has ended removes the node's row.

These rows have no group. They are in the table of the offsets because one commit then reads the lease and writes the
offsets: Delta refuses it if the lease has changed meanwhile. The columns have other meanings in them:

topic  | partition | committed_offset | leader_epoch | metadata                                | committed_ms
node   | node id   | beat             | -1           | host, port, incarnation, lease_ms: JSON | last renewal
slot   | slot      | epoch            | node id      | incarnation                             | when it was taken

Other rows without a group are refused with `RetriableError`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from coldlog.errors import RetriableError
from coldlog.tables.delta.small_table import Row

SLOTS = 50
"""As offsets.topic.num.partitions is by default. Nodes of one warehouse must agree on it."""
NO_GROUP = ""
_NODE, _SLOT = "node", "slot"


def slot_of(group_id: str) -> int:
    """Return the slot of a group."""
    return zlib.crc32(group_id.encode("utf-8", "surrogatepass")) % SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A process that coordinates groups, and where clients reach it. `incarnation` is of this process alone."""

    node_id: int
    host: str
    port: int
    incarnation: str
    lease_ms: int
    beat: int = 0
    renewed_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to coordinate the groups of a slot."""

    slot: int
    epoch: int
    node_id: int
    incarnation: str
    taken_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """All nodes by id, and the last lease of each slot that ever had one."""

    nodes: Mapping[int, Node] = field(default_factory=dict)
    leases: Mapping[int, Lease] = field(default_factory=dict)

    def holder(self, slot: int) -> Node | None:
        """Return the node that coordinates a slot; None if nobody does."""
        lease = self.leases.get(slot)
        node = None if lease is None else self.nodes.get(lease.node_id)
        return node if lease is not None and node is not None and node.incarnation == lease.incarnation else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a node wants to change: its own row (`is_leaving`: removed), and slots that nobody holds.

    `ended` are rows of nodes that were not renewed in time. If such a row has another beat by now, its node lives.
    """

    node: Node
    wanted: frozenset[int] = frozenset()
    ended: frozenset[Node] = frozenset()
    is_leaving: bool = False
    now_ms: int = 0


def claimed(cluster: Cluster, claim: Claim) -> Cluster:
    """Return the cluster after a claim. A node whose id another live process uses gets nothing."""
    nodes = {node_id: node for node_id, node in cluster.nodes.items() if node not in claim.ended}
    present = nodes.get(claim.node.node_id)
    if present is not None and present.incarnation != claim.node.incarnation:
        return Cluster(nodes=nodes, leases=cluster.leases)
    if claim.is_leaving:
        nodes.pop(claim.node.node_id, None)
        return Cluster(nodes=nodes, leases=cluster.leases)
    nodes[claim.node.node_id] = present if present == claim.node else replace(claim.node, renewed_ms=claim.now_ms)
    after, leases = Cluster(nodes=nodes, leases=cluster.leases), dict(cluster.leases)
    for slot in claim.wanted:
        if after.holder(slot) is None:
            last = leases.get(slot)
            leases[slot] = Lease(
                slot=slot,
                epoch=1 if last is None else last.epoch + 1,
                node_id=claim.node.node_id,
                incarnation=claim.node.incarnation,
                taken_ms=claim.now_ms,
            )
    return Cluster(nodes=nodes, leases=leases)


def read_cluster(rows: Iterable[Row]) -> Cluster:
    """Read the rows without a group."""
    nodes, leases = dict[int, Node](), dict[int, Lease]()
    try:
        for row in rows:
            if row["topic"] == _NODE:
                node = _node(row)
                nodes[node.node_id] = node
            elif row["topic"] == _SLOT:
                lease = _lease(row)
                leases[lease.slot] = lease
            else:
                raise ValueError(row["topic"])
    except (ValueError, TypeError, KeyError) as unfit:
        raise RetriableError(f"table committed_offsets has an unknown row without a group: {unfit!r}") from None
    return Cluster(nodes=nodes, leases=leases)


def iter_rows(cluster: Cluster) -> Iterator[Row]:
    """Write a cluster as rows."""
    for node in cluster.nodes.values():
        reached = {
            "host": node.host,
            "port": node.port,
            "incarnation": node.incarnation,
            "lease_ms": node.lease_ms,
        }
        yield _row(_NODE, node.node_id, node.beat, -1, json.dumps(reached), node.renewed_ms)
    for lease in cluster.leases.values():
        yield _row(_SLOT, lease.slot, lease.epoch, lease.node_id, lease.incarnation, lease.taken_ms)


def _row(kind: str, number: int, offset: int, epoch: int, metadata: str, committed_ms: int) -> Row:
    return {
        "group_id": NO_GROUP,
        "topic": kind,
        "partition": number,
        "committed_offset": offset,
        "leader_epoch": epoch,
        "metadata": metadata,
        "committed_ms": committed_ms,
    }


def _node(row: Row) -> Node:
    reached = json.loads(str(row["metadata"]))
    return Node(
        node_id=_number(row["partition"]),
        host=str(reached["host"]),
        port=_number(reached["port"]),
        incarnation=str(reached["incarnation"]),
        lease_ms=_number(reached["lease_ms"]),
        beat=_number(row["committed_offset"]),
        renewed_ms=_number(row["committed_ms"]),
    )


def _lease(row: Row) -> Lease:
    return Lease(
        slot=_number(row["partition"]),
        epoch=_number(row["committed_offset"]),
        node_id=_number(row["leader_epoch"]),
        incarnation=str(row["metadata"]),
        taken_ms=_number(row["committed_ms"]),
    )


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r} is not a number")
    return value
