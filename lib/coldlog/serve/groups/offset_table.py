"""Keep committed offsets in the table `committed_offsets` of the warehouse.

What is committed within a second is written together, by one commit of the table, and acknowledged after that. The
commits follow one another. A commit that fails leaves the table as it was, or its outcome is unknown; those who wait
for it get the error and may ask again. Other endpoints may write the same table: only the rows that were committed here
are changed, and a row expires only if it is still old when it is removed. The rows of a group with members are renewed,
so that no other endpoint removes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from coldlog.errors import RetriableError
from coldlog.serve.groups.group import CommittedOffset
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


class OffsetStore(Protocol):
    """Where committed offsets are kept."""

    stale_ms: int
    """An offset that is committed again unchanged may keep its earlier time in the store, for at most so long."""

    async def save(self, changes: Changes) -> Mapping[Key, CommittedOffset]:
        """Return what is kept of these offsets when the changes are made. Raise `TimeoutError` or `ColdlogError` if
        that is not known."""
        ...


class OffsetMemory:
    """Keeps nothing but what the groups have in memory."""

    stale_ms = 0

    async def save(self, changes: Changes) -> Mapping[Key, CommittedOffset]:
        """Return what is committed."""
        kept = {key: _after(change, None) for key, change in changes.items()}
        return {key: offset for key, offset in kept.items() if offset is not None}


class OffsetTable:
    """The table of one warehouse."""

    stale_ms = _SAME_MS

    def __init__(self, uri: str, threads: Threads, *, timeout_seconds: float, seconds: float = _SECONDS) -> None:
        self._uri = uri
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._seconds = seconds
        self._waiting: dict[Key, Change] = {}
        self._next: asyncio.Task[dict[Key, CommittedOffset]] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0
        self._table: SmallTable | None = None

    async def load(self) -> dict[Key, CommittedOffset]:
        """Return all offsets; none if there is no table."""
        return _offsets(await self._run(SmallTable.read))

    async def save(self, changes: Changes) -> Mapping[Key, CommittedOffset]:
        """Write the changes with the next commit of the table."""
        for key, change in changes.items():
            waiting = self._waiting.get(key)
            is_old = isinstance(change, Expiry) or (isinstance(change, Renewal) and not isinstance(waiting, Expiry))
            if not is_old or key not in self._waiting:  # What waits to be committed is newer.
                self._waiting[key] = change
        if self._next is None:
            self._next = asyncio.create_task(self._write())
        kept = await asyncio.shield(self._next)
        return {key: kept[key] for key in changes if key in kept}

    async def _write(self) -> dict[Key, CommittedOffset]:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            await asyncio.sleep(self._not_before - loop.time())
            self._not_before = loop.time() + self._seconds
            changes, self._waiting, self._next = self._waiting, {}, None
            return _offsets(await self._run(lambda table: table.change(_applying(changes))))

    async def _run(self, call: Callable[[SmallTable], list[Row]]) -> list[Row]:
        """Call with the table that is open. A call that hangs keeps it; the next one opens another."""
        table, self._table = self._table or SmallTable(uri=self._uri, table=COMMITTED_OFFSETS), None
        rows = await self._threads.run(lambda: call(table), self._timeout_seconds)
        self._table = table
        return rows


def _applying(changes: Changes) -> Callable[[list[Row]], list[Row]]:
    def apply(rows: list[Row]) -> list[Row]:
        check_wanted()  # Later commits may be in the table.
        offsets = _offsets(rows)
        changed = {key: _after(change, offsets.get(key)) for key, change in changes.items()}
        return [_row(key, offset) for key, offset in {**offsets, **changed}.items() if offset is not None]

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


def _offsets(rows: Iterable[Row]) -> dict[Key, CommittedOffset]:
    return {_key(row): _offset(row) for row in rows}


def _key(row: Row) -> Key:
    return str(row["group_id"]), str(row["topic"]), _number(row, "partition")


def _offset(row: Row) -> CommittedOffset:
    return CommittedOffset(
        offset=_number(row, "committed_offset"),
        leader_epoch=_number(row, "leader_epoch"),
        metadata=str(row["metadata"]),
        committed_ms=_number(row, "committed_ms"),
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
    }


def _number(row: Row, name: str) -> int:
    value = row[name]
    if not isinstance(value, int):
        raise RetriableError(f"table {COMMITTED_OFFSETS.name} has {value!r} as {name}; restore its files")
    return value
