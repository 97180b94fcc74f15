"""Keep the consumer groups of this endpoint in memory, and call them when their time has come.

Everything here runs in the event loop's thread. A group without members and offsets is removed. A commit is
answered after the store has it.

As in KIP-211 an offset expires when its group has had no members for the retention, and nothing was committed. After
the start of an endpoint, members of before may take a while to come back: nothing expires for `grace_s`.

With `leases`, only the groups of slots that this node holds are here. When a slot is taken, its offsets are those that
the table has; when its lease is lost, its groups are forgotten, and members that wait get NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from kio.schema.errors import ErrorCode

from coldlog.serve.groups.group import CommittedOffset, Group
from coldlog.serve.groups.members import Identity, Joined, JoinRequest, Synced
from coldlog.serve.groups.offset_table import Change, Expiry, Key, LeaseLostError, OffsetMemory, OffsetStore, Renewal
from coldlog.serve.groups.slot_leases import SlotLeases
from coldlog.serve.groups.slots import Lease, slot_of

_MOST_GROUPS = 10_000
LEAST_SESSION_S, MOST_SESSION_S = 6.0, 1800.0
"""As group.min.session.timeout.ms and group.max.session.timeout.ms are by default."""
_Answer = TypeVar("_Answer")
Place = tuple[str, int]
"""Topic and partition, as clients name them."""


class Coordinator:
    """All groups, by id. `topic_prefix` is before the names that the store has."""

    def __init__(
        self,
        *,
        first_delay_s: float,
        store: OffsetStore | None = None,
        topic_prefix: str = "",
        grace_s: float = 0.0,
        leases: SlotLeases | None = None,
    ) -> None:
        self.groups: dict[str, Group] = {}
        self._first_delay_s = first_delay_s
        self._store = store or OffsetMemory()
        self._topic_prefix = topic_prefix
        self._grace_s = grace_s
        self._began: float | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._leases = leases
        self._led: dict[int, Lease] = {}
        self._led_since: dict[int, float] = {}
        self._stored: tuple[str, ...] = ()
        self._lease_timer: asyncio.TimerHandle | None = None

    def refuse(self, group_id: str) -> ErrorCode:
        """Return NOT_COORDINATOR if another node may coordinate the group, to be called before a group is used."""
        is_here = self._leases is None or slot_of(group_id) in self._leases.held(_now())
        return ErrorCode.none if is_here else ErrorCode.not_coordinator

    def list_groups(self) -> dict[str, Group]:
        """Return the groups that this node lists: its own, and perhaps those with offsets that no node coordinates."""
        if self._leases is None:
            return self.groups
        now = _now()
        held, unheld = self._leases.held(now), self._leases.unheld(now)
        own = {group_id: group for group_id, group in self.groups.items() if slot_of(group_id) in held}
        vacant = (group_id for group_id in self._stored if slot_of(group_id) in unheld)
        return {**{group_id: Group(group_id, first_delay_s=self._first_delay_s) for group_id in vacant}, **own}

    def follow_leases(self, stored: Mapping[Key, CommittedOffset]) -> None:
        """Begin with the stored offsets of the slots that were taken, and forget the groups of those that were lost.

        To be called after every commit of the table, with all offsets that it has.
        """
        assert self._leases is not None
        self._stored = tuple(dict.fromkeys(group_id for group_id, _, _ in stored))
        taken = self._lead(self._leases.held(_now()))
        self.begin({key: offset for key, offset in stored.items() if slot_of(key[0]) in taken})

    async def join(self, group_id: str, asked: JoinRequest) -> Joined:
        """Add a member; return when all have joined."""
        if not LEAST_SESSION_S <= asked.session_s <= MOST_SESSION_S:
            return Joined(error=ErrorCode.invalid_session_timeout, member_id=asked.member_id)
        group = self.refuse(group_id) or self.find_or_make(group_id)
        if isinstance(group, ErrorCode):
            return Joined(error=group, member_id=asked.member_id)
        return await self._wait(group, lambda answer: group.join(asked, _now(), answer))

    async def sync(self, group_id: str, who: Identity, assignments: Mapping[str, bytes]) -> Synced:
        """Return a member's assignment when the leader has sent it."""
        group = self.groups.get(group_id)
        if group is None or self.refuse(group_id):
            return Synced(error=self.refuse(group_id) or ErrorCode.unknown_member_id)
        return await self._wait(group, lambda answer: group.sync(who, assignments, _now(), answer))

    def heartbeat(self, group_id: str, who: Identity) -> ErrorCode:
        """Keep a member's session."""
        group = self.groups.get(group_id)
        if group is None or self.refuse(group_id):
            return self.refuse(group_id) or ErrorCode.unknown_member_id
        return group.heartbeat(who, _now())

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> ErrorCode:
        """Remove a member."""
        group = self.groups.get(group_id)
        if group is None or self.refuse(group_id):
            return self.refuse(group_id) or ErrorCode.unknown_member_id
        error = group.leave(member_id, instance_id, _now())
        self.follow(group)
        return error

    def check_commit(self, group_id: str, who: Identity) -> Group | ErrorCode:
        """Return the group for which this client may commit; to be followed. A client without a group makes one."""
        if self.refuse(group_id):
            return ErrorCode.not_coordinator
        if group_id not in self.groups and who.generation >= 0:
            return ErrorCode.illegal_generation
        group = self.find_or_make(group_id)
        if isinstance(group, ErrorCode):
            return group
        error = group.check_commit(who, _now())
        if error is ErrorCode.none:
            return group
        self.follow(group)
        return error

    def begin(self, offsets: Mapping[Key, CommittedOffset]) -> None:
        """Begin with what the store has."""
        for (group_id, topic, partition), offset in offsets.items():
            self._make(group_id).offsets[self._topic_prefix + topic, partition] = offset

    async def change_offsets(self, group_id: str, changes: Mapping[Place, Change]) -> None:
        """Set or remove committed offsets of a group, and go on with what the store then has. Topics without the prefix
        have none. Raise `LeaseLostError` if another node coordinates the group, and what the store raises."""
        lease = self._led.get(slot_of(group_id))
        if self.refuse(group_id):
            raise LeaseLostError("another endpoint coordinates the group")
        prefix = self._topic_prefix
        keys = {
            (topic, partition): (group_id, topic.removeprefix(prefix), partition)
            for topic, partition in changes
            if topic.startswith(prefix)
        }
        kept = await self._store.save({key: changes[place] for place, key in keys.items()}, lease)
        if self._led.get(slot_of(group_id)) != lease:
            return  # The store has it, and gives it to who has the slot now.
        group = self._make(group_id)  # It may have been removed meanwhile.
        lost = self._expired_under_members(group, {place: changes[place] for place in keys if keys[place] not in kept})
        if lost:
            kept = {**kept, **await self._store.save({keys[place]: change for place, change in lost.items()}, lease)}
        for place, key in keys.items():
            if key in kept:
                group.offsets[place] = kept[key]
            else:
                group.offsets.pop(place, None)
        self.follow(group)

    def list_aged(self, now: float, now_ms: int, retention_ms: int) -> dict[str, dict[Place, Change]]:
        """Return changes of old offsets, by group: those of groups that have members, or had some since the offset was
        committed, are renewed; the others are removed when the retention is over. To be called again and again."""
        if self._began is None:
            self._began = now
        aged = dict[str, dict[Place, Change]]()
        for group_id, group in self.groups.items():
            began = max(self._began, self._led_since.get(slot_of(group_id), self._began))
            before_ms = now_ms - retention_ms if now >= began + self._grace_s else 0
            aged[group_id] = self._aged(group, now, now_ms, before_ms)
        return {group_id: changes for group_id, changes in aged.items() if changes}

    def find_or_make(self, group_id: str) -> Group | ErrorCode:
        """Return a group, which is new if there is none."""
        if not group_id:
            return ErrorCode.invalid_group_id
        if group_id not in self.groups and len(self.groups) >= _MOST_GROUPS:
            return ErrorCode.coordinator_not_available
        return self._make(group_id)

    def follow(self, group: Group) -> None:
        """Remove a group that is forgotten, or see that it is called in time. To be called after every change."""
        if self.groups.get(group.group_id) is not group:
            return  # It was forgotten while a request waited.
        timer, deadline = self._timers.get(group.group_id), group.next_deadline()
        if timer is not None and (group.is_forgotten or timer.when() > deadline):
            self._timers.pop(group.group_id).cancel()
            timer = None
        if group.is_forgotten:
            self.groups.pop(group.group_id, None)
        elif timer is None and deadline < float("inf"):
            self._timers[group.group_id] = asyncio.get_running_loop().call_at(deadline, self._expire, group)

    def end(self) -> None:
        """Answer everything that waits."""
        for timer in self._timers.values():
            timer.cancel()
        for group in self.groups.values():
            group.end()

    def _lead(self, held: Mapping[int, Lease]) -> set[int]:
        """Coordinate the groups of these slots only; return the slots that are new."""
        changed = {slot for slot in {*self._led, *held} if self._led.get(slot) != held.get(slot)}
        self._forget(group for group_id, group in list(self.groups.items()) if slot_of(group_id) in changed)
        self._led = dict(held)
        taken = changed & self._led.keys()
        self._led_since.update(dict.fromkeys(taken, _now()))
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        if self._leases is not None and held:
            self._lease_timer = asyncio.get_running_loop().call_at(self._leases.until, self._lead, {})
        return taken

    def _forget(self, groups: Iterable[Group]) -> None:
        for group in groups:
            if group.group_id in self._timers:
                self._timers.pop(group.group_id).cancel()
            del self.groups[group.group_id]
            group.end()

    def _aged(self, group: Group, now: float, now_ms: int, before_ms: int) -> dict[Place, Change]:
        """The store may have an earlier time than that of the last commit (`stale_ms`). So an offset is kept longer by
        this, and renewed before this is over."""
        last = group.last_members(now)
        seen_ms = 0 if last is None else now_ms - round((now - last) * 1000)
        stale_ms, changes = self._store.stale_ms, dict[Place, Change]()
        for place, each in group.offsets.items():
            if max(each.committed_ms, seen_ms) < before_ms - stale_ms:
                changes[place] = Expiry(before_ms=before_ms - stale_ms)
            elif each.committed_ms < seen_ms - stale_ms // 2:
                changes[place] = Renewal(offset=replace(each, committed_ms=seen_ms))
        return changes

    def _expired_under_members(self, group: Group, removed: Mapping[Place, Change]) -> dict[Place, Change]:
        """Return what was removed as old while a member came, as changes that put it back."""
        if not group.has_members:
            return {}
        now_ms = time.time_ns() // 1_000_000
        return {
            place: Renewal(offset=replace(group.offsets[place], committed_ms=now_ms))
            for place, change in removed.items()
            if isinstance(change, Expiry) and place in group.offsets
        }

    def _make(self, group_id: str) -> Group:
        if group_id not in self.groups:
            self.groups[group_id] = Group(group_id, first_delay_s=self._first_delay_s)
        return self.groups[group_id]

    def _expire(self, group: Group) -> None:
        del self._timers[group.group_id]
        group.expire(_now())
        self.follow(group)

    async def _wait(self, group: Group, ask: Callable[[Callable[[_Answer], None]], None]) -> _Answer:
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()

        def answer(given: _Answer) -> None:
            if not future.done():
                future.set_result(given)

        ask(answer)
        self.follow(group)
        return await future


def _now() -> float:
    return asyncio.get_running_loop().time()
