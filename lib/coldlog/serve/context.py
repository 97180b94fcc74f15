"""What the answers to all requests share: the view of the archive, the threads, the address, the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kio.schema.errors import ErrorCode

from coldlog.errors import ColdlogError
from coldlog.runtime.console import Console
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.groups.coordinator import Coordinator, Place
from coldlog.serve.groups.offset_table import Change, LeaseLostError
from coldlog.serve.groups.shared_groups import SharedGroups
from coldlog.serve.read_ahead import ReadAheadBytes
from coldlog.serve.read_quota import ReadQuota
from coldlog.serve.security.users import Users
from coldlog.serve.telemetry.metrics import Metrics
from coldlog.serve.threads import QueueFullError, Threads

_Found = TypeVar("_Found")
_ONLY_NODE_ID = 1


@dataclass(slots=True, kw_only=True)
class Context:
    """Shared by all connections of an endpoint. Use it in the event loop's thread."""

    view: ArchiveView
    host: str
    port: int
    fetch_threads: Threads
    """For reads of records."""
    lookup_threads: Threads
    """For questions for offsets, which may read the archive, too."""
    table_threads: Threads
    """For all else that is looked up in the tables."""
    send_threads: Threads
    """For what is sent from files."""
    console: Console
    timeout_ms: int
    """The time limit of a ListOffsets that has none of its own."""
    request_seconds: float
    """The time limit of all other reads."""
    groups: Coordinator
    metrics: Metrics
    quota: ReadQuota
    is_local: bool = False
    """Whether the archive is on a file system: one thread reads all partitions of a fetch."""
    read_ahead: ReadAheadBytes = field(default_factory=lambda: ReadAheadBytes(0))
    """The memory for slices that are read ahead."""
    node_id: int = _ONLY_NODE_ID
    shared: SharedGroups | None = None
    """The other endpoints of the warehouse, with which this one shares groups; None: it is alone."""
    users: Users | None = None
    """Who may connect; None: everybody."""
    mechanisms: tuple[str, ...] = ()
    """The SASL mechanisms that clients may use."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by another, when the tables have changed or the endpoint stops."""
    is_stopping: bool = False
    is_current: bool = True
    """Whether the newest tables could be opened when they were looked for last."""
    _reported: set[str] = field(default_factory=set)

    @property
    def unready(self) -> str:
        """Why new clients should not come now; empty if they may.

        A client remembers the nodes of its last Metadata answer only. If an older endpoint that does not know this one
        has given it, and is stopped, the client finds nobody. So one is stopped after the next is ready.
        """
        if self.is_stopping:
            return "stopping"
        if not self.is_current:
            return "no current tables"
        return "" if self.shared is None or self.shared.is_known else "not yet known to the other endpoints"

    def nodes(self) -> list[tuple[int, str, int]]:
        """Return id, host and port of each node, by id; this one is among them."""
        if self.shared is None:
            return [(self.node_id, self.host, self.port)]
        return [(each.node_id, each.host, each.port) for each in self.shared.nodes()]

    async def find_coordinators(self, group_ids: Collection[str]) -> dict[str, tuple[int, str, int] | None]:
        """Return id, host and port of the node that coordinates each group; None if that cannot be known now."""
        if self.shared is None:
            return dict.fromkeys(group_ids, (self.node_id, self.host, self.port))
        try:
            found = await self.shared.find(group_ids)
        except (TimeoutError, ColdlogError) as failed:
            self.report_once("leases", f"the leases of consumer groups cannot be read: {_reason(failed)}")
            return dict.fromkeys(group_ids)
        return {
            group_id: None if node is None else (node.node_id, node.host, node.port) for group_id, node in found.items()
        }

    async def knows_groups(self) -> bool:
        """Return whether it is known, just now, which node coordinates which groups."""
        try:
            if self.shared is not None:
                await self.shared.look()
        except (TimeoutError, ColdlogError) as failed:
            self.report_once("leases", f"the leases of consumer groups cannot be read: {_reason(failed)}")
            return False
        return True

    async def look_up(self, call: Callable[[], _Found], seconds: float | None = None) -> _Found:
        """Run a call that asks the tables in a thread. Raise `TimeoutError` if it does not return in time; without
        `seconds`, that of all reads.

        The call is never refused. It waits for a thread, however many calls wait: a connection has one request at a
        time, and a client cannot start if its request for metadata is refused.
        """
        return await self._look_up(self.table_threads, call, self.request_seconds if seconds is None else seconds)

    async def find(self, call: Callable[[], _Found]) -> _Found | None:
        """Do the same, and return None if the tables cannot be read in time."""
        try:
            return await self.look_up(call)
        except TimeoutError:
            return None
        except ColdlogError as failed:
            self.report_once("tables", f"the tables cannot be read: {failed}")
            return None

    async def look_up_offsets(self, call: Callable[[], _Found], seconds: float) -> _Found:
        """Do the same for a ListOffsets that searches records, in threads of its own. Raise `QueueFullError` if too
        many wait."""
        return await self._look_up(self.lookup_threads, call, seconds)

    async def _look_up(self, threads: Threads, call: Callable[[], _Found], seconds: float) -> _Found:
        try:
            return await threads.run(call, seconds)
        except QueueFullError:
            self.report_once(
                "full", "more questions wait than remote.log.offset.read.max.pending.tasks; some are refused"
            )
            raise
        except TimeoutError:
            self.report_once("lookups", "the tables, or what is looked up in the archive, have not answered in time")
            raise

    async def read(self, call: Callable[[], _Found]) -> _Found:
        """Run a call that reads the archive in a thread. Raise `TimeoutError` if it does not return in time."""
        return await self.fetch_threads.run(call, self.request_seconds)

    async def change_offsets(self, group_id: str, changes: Mapping[Place, Change]) -> ErrorCode:
        """Set or remove committed offsets of a group; return the error of all of them."""
        try:
            await self.groups.change_offsets(group_id, changes)
        except LeaseLostError:
            return ErrorCode.not_coordinator
        except (TimeoutError, ColdlogError) as failed:
            self.report_once(
                "commits",
                f"committed offsets cannot be written: {_reason(failed)}; "
                "serve.committed_offsets=memory does without the table",
            )
            return ErrorCode.coordinator_not_available
        return ErrorCode.none

    def announce(self) -> None:
        """Wake up everything that waits for news."""
        self.news.set()
        self.news = asyncio.Event()

    def report_once(self, place: str, text: str) -> None:
        """Report what is wrong at a place the first time only."""
        if place not in self._reported and len(self._reported) < 10_000:
            self._reported.add(place)
            self.console.warn(text)


def _reason(failed: Exception) -> str:
    return str(failed) or "no answer in time"
