"""Keep committed offsets in the table `committed_offsets` of the warehouse.

What is committed within a second is written together, by one commit of the table, and acknowledged after that. The
commits follow one another. A commit that fails leaves the table as it was, or its outcome is unknown; those who wait
for it get the error and may ask again. Other endpoints may write the same table: only the rows that were committed here
are changed, and a row expires only if it is still old when it is removed. The rows of a group with members are renewed,
so that no other endpoint removes them.

Endpoints that share groups have their leases in the same table (`slots`). A change that was accepted under a lease is
made only if the version of the table from which its commit is computed still has this lease, with the same epoch. Delta
lets the commit follow no other version. So a node that was paused, however long, never changes an offset after another
node took its slot; the client gets `LeaseLostError`. The one who takes a slot reads its offsets in the same commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from coldlog.errors import ColdlogError, RetriableError
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.groups.slot_leases import SlotLeases
from coldlog.serve.groups.slots import NO_GROUP, Claim, Cluster, Lease, claimed, iter_rows, read_cluster
from coldlog.serve.threads import Threads, check_wanted
from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.delta.small_table import Row, SmallTable

Key = tuple[str, str, int]
"""Group, topic as the archive has it, partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """An offset is removed if it was committed before a time."""

    before_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """An offset of a group with members, which is kept as if it were committed again at the time that it has here. If
    another endpoint has committed another one, that one is kept."""

    offset: CommittedOffset


Change = CommittedOffset | Expiry | Renewal | None
"""None: the offset is removed."""
Changes = Mapping[Key, Change]

_SAME_MS = 3_600_000
"""An offset that is committed again unchanged is written again after this time."""
_SECONDS = 1.0
"""From the beginning of one commit of the table to that of the next, at least."""


class LeaseLostError(ColdlogError):
    """Another node coordinates the group now. Nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The rows of the table after a commit, or as they were read."""

    offsets: Mapping[Key, CommittedOffset]
    cluster: Cluster = field(default_factory=Cluster)


class OffsetStore(Protocol):
    """Where committed offsets are kept."""

    stale_ms: int
    """An offset that is committed again unchanged may keep its earlier time in the store, for at most so long."""

    async def save(self, changes: Changes, lease: Lease | None = None) -> Mapping[Key, CommittedOffset]:
        """Return what is kept of these offsets when the changes are made. Raise `LeaseLostError` if they are not made
        because their slot has another lease than `lease`, `TimeoutError` or another `ColdlogError` if that is not
        known."""
        ...


class OffsetMemory:
    """Keeps nothing but what the groups have in memory."""

    stale_ms = 0

    async def save(self, changes: Changes, lease: Lease | None = None) -> Mapping[Key, CommittedOffset]:
        """Return what is committed."""
        kept = {key: _after(change, None) for key, change in changes.items()}
        return {key: offset for key, offset in kept.items() if offset is not None}


class OffsetTable:
    """The table of one warehouse. With `leases`, each commit has their claim too."""

    stale_ms = _SAME_MS

    def __init__(
        self,
        uri: str,
        threads: Threads,
        *,
        timeout_seconds: float,
        seconds: float = _SECONDS,
        leases: SlotLeases | None = None,
    ) -> None:
        self._uri = uri
        self._leases = leases
        self._follow: Callable[[Mapping[Key, CommittedOffset]], None] = lambda _: None
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._seconds = seconds
        self._waiting: dict[Key, tuple[Change, Lease | None]] = {}
        self._next: asyncio.Task[Written] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0
        self._table: SmallTable | None = None

    async def load(self) -> Mapping[Key, CommittedOffset]:
        """Return all offsets; none if there is no table."""
        return _written(await self._run(SmallTable.read)).offsets

    def call_after_commits(self, follow: Callable[[Mapping[Key, CommittedOffset]], None]) -> None:
        """Call this with all offsets after each commit, when the leases are known and before anybody is answered."""
        self._follow = follow

    async def save(self, changes: Changes, lease: Lease | None = None) -> Mapping[Key, CommittedOffset]:
        """Write the changes, and what the leases claim, with the next commit of the table."""
        for key, change in changes.items():
            waiting, _ = self._waiting.get(key, (None, None))
            is_old = isinstance(change, Expiry) or (isinstance(change, Renewal) and not isinstance(waiting, Expiry))
            if not is_old or key not in self._waiting:  # What waits to be committed is newer.
                self._waiting[key] = change, lease
        if self._next is None:
            self._next = asyncio.create_task(self._write())
        written = await asyncio.shield(self._next)
        if lease is not None and written.cluster.leases.get(lease.slot) != lease:
            raise LeaseLostError("another endpoint coordinates the group now")
        return {key: written.offsets[key] for key in changes if key in written.offsets}

    async def _write(self) -> Written:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            await asyncio.sleep(self._not_before - loop.time())
            asked_at = loop.time()
            self._not_before = asked_at + self._seconds
            changes, self._waiting, self._next = self._waiting, {}, None
            claim = None if self._leases is None else self._leases.claim(asked_at, time.time_ns() // 1_000_000)
            written = _written(await self._run(lambda table: table.change(_applying(changes, claim))))
            if self._leases is not None and claim is not None:
                self._leases.follow(claim, written.cluster, asked_at, loop.time())
                self._follow(written.offsets)
            return written

    async def _run(self, call: Callable[[SmallTable], list[Row]]) -> list[Row]:
        """Call with the table that is open. A call that hangs keeps it; the next one opens another."""
        table, self._table = self._table or SmallTable(uri=self._uri, table=COMMITTED_OFFSETS), None
        rows = await self._threads.run(lambda: call(table), self._timeout_seconds)
        self._table = table
        return rows


def _applying(
    changes: Mapping[Key, tuple[Change, Lease | None]], claim: Claim | None
) -> Callable[[list[Row]], list[Row]]:
    def apply(rows: list[Row]) -> list[Row]:
        check_wanted()  # Later commits may be in the table.
        before = _written(rows)
        cluster = before.cluster if claim is None else claimed(before.cluster, claim)
        changed = {
            key: _after(change, before.offsets.get(key))
            for key, (change, lease) in changes.items()
            if lease is None or cluster.leases.get(lease.slot) == lease
        }
        offsets = {**before.offsets, **changed}
        return [
            *iter_rows(cluster),
            *(_row(key, offset) for key, offset in offsets.items() if offset is not None),
        ]

    return apply


def _after(change: Change, before: CommittedOffset | None) -> CommittedOffset | None:
    """Return what is kept of an offset, which another endpoint may have committed meanwhile."""
    if isinstance(change, Expiry):
        return before if before is None or before.committed_ms >= change.before_ms else None
    if isinstance(change, Renewal):
        renewed_ms = change.offset.committed_ms
        return change.offset if before is None else replace(before, committed_ms=max(before.committed_ms, renewed_ms))
    if change is None or before is None or change.committed_ms >= before.committed_ms + _SAME_MS:
        return change
    # Clients commit the same offsets again every few seconds: then nothing is written.
    return before if replace(change, committed_ms=before.committed_ms) == before else change


def _written(rows: Iterable[Row]) -> Written:
    by_kind: tuple[list[Row], list[Row]] = [], []
    for row in rows:
        by_kind[row["group_id"] == NO_GROUP].append(row)
    offsets, leases = by_kind
    return Written(offsets={_key(row): _offset(row) for row in offsets}, cluster=read_cluster(leases))


def _key(row: Row) -> Key:
    return str(row["group_id"]), str(row["topic"]), _number(row, "partition")


def _offset(row: Row) -> CommittedOffset:
    return CommittedOffset(
        offset=_number(row, "committed_offset"),
        leader_epoch=_number(row, "leader_epoch"),
        metadata=str(row["metadata"]),
        committed_ms=_number(row, "committed_ms"),
        topic_id=str(row["topic_id"] or ""),
    )


def _row(key: Key, offset: CommittedOffset) -> Row:
    group_id, topic, partition = key
    return {
        "group_id": group_id,
        "topic": topic,
        "partition": partition,
        "committed_offset": offset.offset,
        "leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "committed_ms": offset.committed_ms,
        "topic_id": offset.topic_id or None,
    }


def _number(row: Row, name: str) -> int:
    value = row[name]
    if not isinstance(value, int):
        raise RetriableError(f"table {COMMITTED_OFFSETS.name} has {value!r} as {name}; restore its files")
    return value
