"""Keep committed offsets in the table `committed_offsets` of the warehouse.

What is committed within a second is written together, by one commit of the table, and acknowledged after that. The
commits follow one another. A commit that fails leaves the table as it was, or its outcome is unknown; those who wait
for it get the error and may ask again. Other endpoints may write the same table: only the rows that were committed here
are changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from coldlog.errors import RetriableError
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.threads import Threads, check_wanted
from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.delta.small_table import Row, SmallTable

Key = tuple[str, str, int]
"""Group, topic as the archive has it, partition."""
Changes = Mapping[Key, CommittedOffset | None]
"""None: the offset is removed."""

_SAME_MS = 3_600_000
"""An offset that is committed again unchanged is written again after this time."""
_SECONDS = 1.0
"""From the beginning of one commit of the table to that of the next, at least."""


class OffsetStore(Protocol):
    """Where committed offsets are kept."""

    async def save(self, changes: Changes) -> None:
        """Return when the changes are kept. Raise `TimeoutError` or `ColdlogError` if that is not known."""
        ...


class OffsetMemory:
    """Keeps nothing but what the groups have in memory."""

    async def save(self, changes: Changes) -> None:
        """Do nothing."""


class OffsetTable:
    """The table of one warehouse."""

    def __init__(self, uri: str, threads: Threads, *, timeout_seconds: float, seconds: float = _SECONDS) -> None:
        self._uri = uri
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._seconds = seconds
        self._waiting: dict[Key, CommittedOffset | None] = {}
        self._next: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0

    async def load(self) -> dict[Key, CommittedOffset]:
        """Return all offsets; none if there is no table."""
        rows = await self._threads.run(self._table().read, self._timeout_seconds)
        return {_key(row): _offset(row) for row in rows}

    async def save(self, changes: Changes) -> None:
        """Write the changes with the next commit of the table."""
        self._waiting.update(changes)
        if self._next is None:
            self._next = asyncio.create_task(self._write())
        await asyncio.shield(self._next)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            await asyncio.sleep(self._not_before - loop.time())
            self._not_before = loop.time() + self._seconds
            changes, self._waiting, self._next = self._waiting, {}, None
            await self._threads.run(lambda: self._table().change(_applying(changes)), self._timeout_seconds)

    def _table(self) -> SmallTable:
        """Open the table anew, since a call that hangs keeps the turn of the one that it has."""
        return SmallTable(uri=self._uri, table=COMMITTED_OFFSETS)


def _applying(changes: Changes) -> Callable[[list[Row]], list[Row]]:
    def apply(rows: list[Row]) -> list[Row]:
        check_wanted()  # Later commits may be in the table.
        offsets: dict[Key, CommittedOffset | None] = {_key(row): _offset(row) for row in rows}
        offsets.update((key, each) for key, each in changes.items() if not _is_kept(each, offsets.get(key)))
        return [_row(key, offset) for key, offset in offsets.items() if offset is not None]

    return apply


def _is_kept(offset: CommittedOffset | None, before: CommittedOffset | None) -> bool:
    """Return whether nothing is to be written: clients commit the same offsets again every few seconds."""
    if offset is None or before is None or offset.committed_ms >= before.committed_ms + _SAME_MS:
        return False
    return replace(offset, committed_ms=before.committed_ms) == before


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
