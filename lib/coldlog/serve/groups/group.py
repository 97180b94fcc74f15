"""The rules of one consumer group, as those of Kafka's group coordinator (classic protocol).

A generation begins when all members have joined, or those that have not within the rebalance timeout are removed. The
leader, which is told all subscriptions, then sends the assignment of every member with its SyncGroup. Requests of
another generation are refused, so a member that was removed can neither commit nor read on.

State    | JoinGroup                   | SyncGroup              | Heartbeat
EMPTY    | new generation              | UNKNOWN_MEMBER_ID      | UNKNOWN_MEMBER_ID
JOINING  | waits for the others        | REBALANCE_IN_PROGRESS  | REBALANCE_IN_PROGRESS
SYNCING  | new generation if changed   | waits for the leader's | none
STABLE   | new generation if changed   | the assignment         | none

There is no clock here: every call is given the time, in seconds, and `expire` must be called at `next_deadline`.
Answers that must wait are given to a function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from uuid import uuid4

from kio.schema.errors import ErrorCode

from coldlog.serve.groups.members import Identity, Joined, JoinRequest, Member, Synced

_MOST_MEMBERS = 1000
_MOST_NAME = 200
"""Characters of the client's own name in the id of a member, which must fit into every version."""
_NEVER = float("inf")


class GroupState(Enum):
    """What a group does; the values are those of Kafka's tools."""

    EMPTY = "Empty"
    JOINING = "PreparingRebalance"
    SYNCING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """Where a group goes on reading. `topic_id` is that of the topic at the commit, as text; empty: unknown."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0
    topic_id: str = ""


class Group:
    """A group. Its first rebalance takes `first_delay_s` or longer: members that start together then join together."""

    def __init__(self, group_id: str, *, first_delay_s: float) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.offsets: dict[tuple[str, int], CommittedOffset] = {}
        self._first_delay_s = first_delay_s
        self._vacant_since: float | None = None
        self._promised: dict[str, float] = {}
        """Member ids that clients were given and have not used yet, with the times at which they expire."""
        self._not_before = 0.0
        self._deadline = _NEVER
        """When the rebalance ends."""

    @property
    def is_forgotten(self) -> bool:
        """Whether the group has no members and no committed offsets, so that it can be removed."""
        return not self.has_members and not self.offsets

    @property
    def has_members(self) -> bool:
        """Whether it has members, or clients that are about to join."""
        return bool(self.members or self._promised)

    def last_members(self, now: float) -> float | None:
        """Return until when the group has had members, which is now if it has some; None if none ever joined."""
        return now if self.has_members else self._vacant_since

    def join(self, asked: JoinRequest, now: float, answer: Callable[[Joined], None]) -> None:
        """Add the member to the next generation."""
        known = self._static(asked.instance_id)
        error = self._refuse_join(asked, known)
        if error is not ErrorCode.none:
            answer(Joined(error=error, member_id=asked.member_id))
        elif asked.member_id in self.members:
            self._join_again(self.members[asked.member_id], asked, now, answer)
        elif known is not None:
            self._replace(known, asked, now, answer)
        elif not asked.member_id and asked.must_return and asked.instance_id is None:
            member_id = _new_id(asked)
            self._promised[member_id] = now + asked.session_s
            answer(Joined(error=ErrorCode.member_id_required, member_id=member_id))
        else:
            self._promised.pop(asked.member_id, None)
            member_id = asked.member_id or _new_id(asked)
            self.members[member_id] = Member(member_id=member_id, asked=asked, deadline=now + asked.session_s)
            self._wait(self.members[member_id], asked, now, answer)

    def sync(
        self, who: Identity, assignments: Mapping[str, bytes], now: float, answer: Callable[[Synced], None]
    ) -> None:
        """Return the member's assignment as soon as the leader has sent it."""
        error = self._check(who)
        if error is ErrorCode.none and self.state is GroupState.JOINING:
            error = ErrorCode.rebalance_in_progress
        if error is not ErrorCode.none:
            answer(Synced(error=error))
            return
        member = self.members[who.member_id]
        member.deadline = now + member.asked.session_s
        member.answer_sync(Synced(error=ErrorCode.rebalance_in_progress))
        member.syncing = answer
        if self.state is GroupState.SYNCING and who.member_id == self.leader:
            for each in self.members.values():
                each.assignment = assignments.get(each.member_id, b"")
            self.state, self._deadline = GroupState.STABLE, _NEVER
        if self.state is GroupState.STABLE:
            for each in self.members.values():
                if each.syncing is not None:
                    each.deadline = now + each.asked.session_s
                each.answer_sync(self._synced(each))

    def heartbeat(self, who: Identity, now: float) -> ErrorCode:
        """Keep the member's session."""
        error = self._check(who)
        if error is not ErrorCode.none:
            return error
        member = self.members[who.member_id]
        member.deadline = now + member.asked.session_s
        return ErrorCode.rebalance_in_progress if self.state is GroupState.JOINING else ErrorCode.none

    def leave(self, member_id: str, instance_id: str | None, now: float) -> ErrorCode:
        """Remove a member; a static one may be named by its instance alone."""
        static = self._static(instance_id)
        if instance_id is not None:
            if static is None:
                return ErrorCode.unknown_member_id
            if member_id not in ("", static.member_id):
                return ErrorCode.fenced_instance_id
            member_id = static.member_id
        if self._promised.pop(member_id, None) is not None:
            self._complete_if_all_joined(now)
            return ErrorCode.none
        if member_id not in self.members:
            return ErrorCode.unknown_member_id
        self._remove(member_id, now)
        return ErrorCode.none

    def check_commit(self, who: Identity, now: float) -> ErrorCode:
        """Return whether this client may commit now. One that is no member may if the group has none."""
        if who.generation < 0 and not self.members:
            return ErrorCode.none
        error = self._check(who)
        if error is not ErrorCode.none:
            return error
        if self.state is GroupState.SYNCING:
            return ErrorCode.rebalance_in_progress
        member = self.members[who.member_id]
        member.deadline = now + member.asked.session_s
        return ErrorCode.none

    def expire(self, now: float) -> None:
        """Do what is due: end sessions, and rebalances that have taken too long."""
        for member_id in [each for each, deadline in self._promised.items() if deadline <= now]:
            del self._promised[member_id]
        for member in [each for each in self.members.values() if _is_silent(each, now)]:
            self._remove(member.member_id, now)
        if self.state is GroupState.SYNCING and self._deadline <= now:
            for member in [each for each in self.members.values() if each.syncing is None]:
                self._remove(member.member_id, now)
        elif self.state is GroupState.JOINING and self._deadline <= now:
            self._complete(now)
        self._complete_if_all_joined(now)

    def next_deadline(self) -> float:
        """Return when `expire` has something to do."""
        sessions = [each.deadline for each in self.members.values() if each.joining is None and each.syncing is None]
        rebalance = [self._deadline]
        if self.state is GroupState.JOINING and self._have_all_joined():
            rebalance.append(self._not_before)
        return min(*sessions, *self._promised.values(), *rebalance, _NEVER)

    def end(self) -> None:
        """Answer everything that waits: the endpoint stops."""
        for member in self.members.values():
            member.answer_join(Joined(error=ErrorCode.not_coordinator, member_id=member.member_id))
            member.answer_sync(Synced(error=ErrorCode.not_coordinator))

    def _static(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((each for each in self.members.values() if each.asked.instance_id == instance_id), None)

    def _refuse_join(self, asked: JoinRequest, known: Member | None) -> ErrorCode:
        if asked.member_id and known is not None and known.member_id != asked.member_id:
            return ErrorCode.fenced_instance_id
        if asked.member_id and asked.member_id not in self.members and asked.member_id not in self._promised:
            return ErrorCode.unknown_member_id
        others = [each for each in self.members.values() if each is not known and each.member_id != asked.member_id]
        if not asked.protocol_type or not asked.protocols:
            return ErrorCode.inconsistent_group_protocol
        if others and (asked.protocol_type != self.protocol_type or not _common(asked.protocols, others)):
            return ErrorCode.inconsistent_group_protocol
        if known is None and asked.member_id not in self.members:
            room = _MOST_MEMBERS - len(self.members) - len(self._promised) + (asked.member_id in self._promised)
            return ErrorCode.none if room > 0 else ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _check(self, who: Identity) -> ErrorCode:
        """Return what is wrong with a member of this generation."""
        static = self._static(who.instance_id)
        if static is not None and static.member_id != who.member_id:
            return ErrorCode.fenced_instance_id
        if who.member_id not in self.members or (who.instance_id is not None and static is None):
            return ErrorCode.unknown_member_id
        return ErrorCode.none if who.generation == self.generation else ErrorCode.illegal_generation

    def _join_again(self, member: Member, asked: JoinRequest, now: float, answer: Callable[[Joined], None]) -> None:
        is_same = dict(member.asked.protocols) == dict(asked.protocols)
        is_leader = member.member_id == self.leader
        if is_same and (self.state is GroupState.SYNCING or (self.state is GroupState.STABLE and not is_leader)):
            member.deadline = now + asked.session_s
            answer(self._joined(member))  # It did not get the answer, or would get the same again.
            return
        self._wait(member, asked, now, answer)

    def _replace(self, old: Member, asked: JoinRequest, now: float, answer: Callable[[Joined], None]) -> None:
        """Let a static member that has started again take its place. In a stable group it keeps its assignment."""
        del self.members[old.member_id]
        old.answer_join(Joined(error=ErrorCode.fenced_instance_id, member_id=old.member_id))
        old.answer_sync(Synced(error=ErrorCode.fenced_instance_id))
        member_id = _new_id(asked)
        member = Member(member_id=member_id, asked=asked, deadline=now + asked.session_s, assignment=old.assignment)
        self.members[member_id] = member
        was_leader = self.leader == old.member_id
        if was_leader:
            self.leader = member_id
        if self.state is GroupState.STABLE and dict(old.asked.protocols) == dict(asked.protocols):
            # Named as leader it would assign anew, which nobody waits for.
            answer(self._joined(member, leader=old.member_id if was_leader else self.leader))
            return
        self._wait(member, asked, now, answer)

    def _wait(self, member: Member, asked: JoinRequest, now: float, answer: Callable[[Joined], None]) -> None:
        """Let a member wait for the next generation, which begins if it has not begun yet."""
        member.answer_join(Joined(error=ErrorCode.rebalance_in_progress, member_id=member.member_id))
        member.asked, member.joining = asked, answer
        self.protocol_type = asked.protocol_type
        self._rebalance(now)

    def _remove(self, member_id: str, now: float) -> None:
        member = self.members.pop(member_id)
        member.answer_join(Joined(error=ErrorCode.unknown_member_id, member_id=member_id))
        member.answer_sync(Synced(error=ErrorCode.unknown_member_id))
        self._rebalance(now)

    def _rebalance(self, now: float) -> None:
        """Begin a rebalance, or end the one that is under way if all have joined."""
        if self.state is not GroupState.JOINING:
            self._not_before = now + self._first_delay_s if self.state is GroupState.EMPTY else now
            for member in self.members.values():
                member.assignment = b""
                if member.syncing is not None:  # It was silent only because it waited.
                    member.deadline = now + member.asked.session_s
                member.answer_sync(Synced(error=ErrorCode.rebalance_in_progress))
            self.state = GroupState.JOINING
            self._deadline = max(self._not_before, now + self._rebalance_s())
        self._complete_if_all_joined(now)

    def _rebalance_s(self) -> float:
        return max((each.asked.rebalance_s for each in self.members.values()), default=0.0)

    def _have_all_joined(self) -> bool:
        return not self._promised and all(each.joining is not None for each in self.members.values())

    def _complete_if_all_joined(self, now: float) -> None:
        is_due = now >= self._not_before or not self.members
        if self.state is GroupState.JOINING and is_due and self._have_all_joined():
            self._complete(now)

    def _complete(self, now: float) -> None:
        """Begin a generation of those that have joined; static members that have not keep their place."""
        for member in list(self.members.values()):
            if member.joining is None and member.asked.instance_id is None:
                del self.members[member.member_id]
        joined = [each for each in self.members.values() if each.joining is not None]
        if self.members and not joined:
            self._deadline = now + max(1.0, self._rebalance_s())
            return
        self.generation += 1
        if not joined:
            self.state, self.protocol, self.leader, self._deadline = GroupState.EMPTY, None, "", _NEVER
            self._vacant_since = now
            return
        if self.leader not in [each.member_id for each in joined]:
            self.leader = joined[0].member_id
        self.protocol = _vote(list(self.members.values()))
        self.state, self._deadline = GroupState.SYNCING, now + max(1.0, self._rebalance_s())
        for member in joined:
            member.deadline = now + member.asked.session_s
            member.answer_join(self._joined(member))

    def _joined(self, member: Member, leader: str | None = None) -> Joined:
        leader, protocol = self.leader if leader is None else leader, self.protocol or ""
        everyone = (
            (each.member_id, each.asked.instance_id, each.asked.protocols[protocol]) for each in self.members.values()
        )
        return Joined(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=protocol,
            leader=leader,
            members=tuple(everyone) if leader == member.member_id else (),
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment)


def _new_id(asked: JoinRequest) -> str:
    return f"{(asked.instance_id or asked.client_id)[:_MOST_NAME]}-{uuid4()}"


def _is_silent(member: Member, now: float) -> bool:
    return member.joining is None and member.syncing is None and member.deadline <= now


def _common(protocols: Mapping[str, bytes], others: list[Member]) -> set[str]:
    return set(protocols).intersection(*(each.asked.protocols for each in others))


def _vote(members: list[Member]) -> str:
    """Return the assignor that most members prefer of those that all know."""
    common = _common(members[0].asked.protocols, members)
    votes = Counter(next(name for name in each.asked.protocols if name in common) for each in members)
    return votes.most_common(1)[0][0]
