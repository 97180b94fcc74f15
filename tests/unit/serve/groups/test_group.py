"""Does a consumer group follow the rules of Kafka's coordinator?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from coldlog.serve.groups.group import CommittedOffset, Group, GroupState
from coldlog.serve.groups.members import Identity, Joined, JoinRequest, Synced

_SESSION_S, _REBALANCE_S = 10.0, 30.0
_JOIN = JoinRequest(
    member_id="",
    client_id="client",
    session_s=_SESSION_S,
    rebalance_s=_REBALANCE_S,
    protocol_type="consumer",
    protocols={"range": b"topics"},
)


class _Asker:
    """Asks a group, and keeps the answers."""

    def __init__(self, first_delay_s: float = 0.0) -> None:
        self.group = Group("group", first_delay_s=first_delay_s)
        self.joined: list[Joined] = []
        self.synced: list[Synced] = []

    def join(self, member_id: str = "", now: float = 0.0, **fields: Any) -> None:
        self.group.join(replace(_JOIN, member_id=member_id, **fields), now, self.joined.append)

    def sync(self, joined: Joined, now: float = 0.0) -> None:
        self.group.sync(_who(joined), {}, now, self.synced.append)

    def stable(self, count: int, **fields: Any) -> list[Joined]:
        """Let members join and get assignments; the first one leads."""
        for _ in range(count):
            self.join(**fields)
        for member_id in list(self.group.members)[:-1]:  # The first was alone until now.
            self.join(member_id, **fields)
        members = {each.member_id: each for each in self.joined if each.generation == self.group.generation}
        leader = members[self.group.leader]
        sent = {member_id: member_id.encode() for member_id in members}
        for each in sorted(members.values(), key=lambda each: each is not leader):
            self.group.sync(_who(each), sent if each is leader else {}, 0.0, self.synced.append)
        assert self.group.state is GroupState.STABLE
        return [leader, *(each for each in members.values() if each is not leader)]


def _who(joined: Joined) -> Identity:
    return Identity(member_id=joined.member_id, generation=joined.generation)


def test_a_new_member_gets_an_id_and_joins_with_it() -> None:
    asker = _Asker()
    asker.join(must_return=True)
    asker.join("invented", must_return=True)
    first, invented = asker.joined
    assert (first.error, invented.error) == (ErrorCode.member_id_required, ErrorCode.unknown_member_id)
    asker.join(first.member_id, must_return=True)
    assert asker.joined[-1].error is ErrorCode.none
    assert asker.joined[-1].leader == first.member_id


def test_members_that_start_together_are_one_generation_and_only_the_leader_is_told_all() -> None:
    asker = _Asker(first_delay_s=3)
    for now in (0.0, 1.0, 2.0):
        asker.join(now=now)
    assert not asker.joined
    assert asker.group.next_deadline() == 3
    asker.group.expire(3.0)
    leader, *others = sorted(asker.joined, key=lambda each: each.member_id != each.leader)
    assert {each.generation for each in asker.joined} == {1}
    assert {member_id for member_id, _, _ in leader.members} == {each.member_id for each in asker.joined}
    assert [each.members for each in others] == [(), ()]
    for each in others:
        asker.sync(each, now=3)
    assert not asker.synced
    asker.group.sync(_who(leader), {others[0].member_id: b"first"}, 3, asker.synced.append)
    assert sorted(each.assignment for each in asker.synced) == [b"", b"", b"first"]


def test_a_silent_member_is_removed_and_may_not_commit_any_more() -> None:
    asker = _Asker()
    leader, silent = asker.stable(2)
    assert asker.group.heartbeat(_who(leader), 9) is ErrorCode.none
    asker.group.expire(10)
    assert asker.group.heartbeat(_who(leader), 10) is ErrorCode.rebalance_in_progress
    assert asker.group.check_commit(_who(leader), 10) is ErrorCode.none
    asker.join(leader.member_id, now=10)
    assert asker.joined[-1].generation == leader.generation + 1
    assert asker.group.check_commit(_who(silent), 10) is ErrorCode.unknown_member_id
    assert asker.group.check_commit(_who(leader), 10) is ErrorCode.illegal_generation
    assert asker.group.check_commit(_who(asker.joined[-1]), 10) is ErrorCode.rebalance_in_progress
    assert asker.group.check_commit(Identity(member_id=""), 10) is ErrorCode.unknown_member_id


def test_a_member_that_does_not_join_again_in_time_is_left_out() -> None:
    asker = _Asker()
    leader, slow = asker.stable(2)
    asker.join(leader.member_id, now=5)
    for now in range(6, 36):
        asker.group.heartbeat(_who(slow), now)
        asker.group.expire(now)
    assert asker.joined[-1].members == ((leader.member_id, None, b"topics"),)
    assert asker.group.heartbeat(_who(slow), 36) is ErrorCode.unknown_member_id


def test_a_leader_that_assigns_nothing_is_removed() -> None:
    asker = _Asker()
    asker.join()
    asker.join()
    leader = asker.joined[0]
    asker.join(leader.member_id)
    leader, other = asker.joined[-1], asker.joined[-2]
    leader, other = (leader, other) if leader.leader == leader.member_id else (other, leader)
    asker.sync(other)
    for now in range(1, 31):
        asker.group.heartbeat(_who(leader), now)
        asker.group.expire(now)
    assert [each.error for each in asker.synced] == [ErrorCode.rebalance_in_progress]
    asker.join(other.member_id, now=31)
    assert asker.joined[-1].leader == other.member_id


def test_a_member_that_waits_for_an_assignment_has_its_session_to_join_again_if_the_leader_fails() -> None:
    """The leader's session ends when that of the member would have ended."""
    asker = _Asker(first_delay_s=3)
    for _ in range(2):
        asker.join()
    asker.group.expire(3)
    leader, waiting = sorted(asker.joined, key=lambda each: each.member_id != each.leader)
    asker.sync(waiting, now=3)
    asker.group.expire(13)
    assert [each.error for each in asker.synced] == [ErrorCode.rebalance_in_progress]
    assert asker.group.check_commit(_who(leader), 13) is ErrorCode.unknown_member_id
    asker.group.expire(14)
    asker.join(waiting.member_id, now=14)
    assert (asker.joined[-1].error, asker.joined[-1].member_id) == (ErrorCode.none, waiting.member_id)


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    asker = _Asker(first_delay_s=1)
    asker.join()
    asker.join()
    asker.group.expire(1)
    follower = next(each for each in asker.joined if each.member_id != each.leader)
    asker.sync(follower, now=1)
    asker.group.leave(follower.member_id, None, 2)
    assert [each.error for each in asker.synced] == [ErrorCode.unknown_member_id]
    asker.join(now=2)
    newcomer = next(each for each in asker.group.members if each not in [old.member_id for old in asker.joined])
    asker.group.leave(newcomer, None, 3)
    assert (asker.joined[-1].member_id, asker.joined[-1].error) == (newcomer, ErrorCode.unknown_member_id)


def test_a_static_member_that_starts_again_keeps_its_assignment_and_fences_its_older_self() -> None:
    asker = _Asker()
    (old,) = asker.stable(1, instance_id="instance")
    asker.join(instance_id="instance", now=1)
    new = asker.joined[-1]
    assert (new.error, new.generation) == (ErrorCode.none, old.generation)
    asker.sync(new, now=1)
    assert asker.synced[-1].assignment == old.member_id.encode()
    older = replace(_who(old), instance_id="instance")
    assert asker.group.heartbeat(older, 2) is ErrorCode.fenced_instance_id
    asker.join(old.member_id, instance_id="instance", now=2)
    assert asker.joined[-1].error is ErrorCode.fenced_instance_id


def test_a_member_without_a_common_assignor_is_refused_and_disturbs_no_one() -> None:
    asker = _Asker()
    (member,) = asker.stable(1)
    asker.join(protocols={"sticky": b""})
    asker.join(protocol_type="connect")
    assert [each.error for each in asker.joined[-2:]] == [ErrorCode.inconsistent_group_protocol] * 2
    assert asker.group.heartbeat(_who(member), 1) is ErrorCode.none


def test_when_the_last_member_leaves_the_offsets_stay_and_anyone_may_set_them() -> None:
    asker = _Asker()
    (member,) = asker.stable(1)
    asker.group.offsets["topic", 0] = CommittedOffset(offset=7)
    assert asker.group.leave(member.member_id, None, 1) is ErrorCode.none
    assert asker.group.state is GroupState.EMPTY
    assert asker.group.check_commit(Identity(member_id=""), 1) is ErrorCode.none
    assert not asker.group.is_forgotten
    asker.group.offsets.clear()
    assert asker.group.is_forgotten


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 8)), max_size=60))
def test_every_request_is_answered_in_the_end_whatever_was_asked_before(steps: list[tuple[int, int, int]]) -> None:
    asker, now, waiting = _Asker(first_delay_s=1), 0.0, {"join": 0, "sync": 0}
    for step, which, wait in steps:
        now += wait
        if asker.group.next_deadline() <= now:
            asker.group.expire(now)
        ids = [*asker.group.members, *(each.member_id for each in asker.joined if each.member_id), "unknown"]
        member_id = ids[which % len(ids)]
        who = Identity(member_id=member_id, generation=asker.group.generation)
        if step <= 1:
            instance_id = f"instance-{which}" if which < 2 else None
            asker.join("" if step else member_id, now, must_return=which > 3, instance_id=instance_id)
            waiting["join"] += 1
        elif step <= 3:
            asker.group.sync(who, {member_id: b"all"}, now, asker.synced.append)
            waiting["sync"] += 1
        elif step == 4:
            asker.group.leave(member_id, None, now)
        else:
            asker.group.heartbeat(who, now)
    for _ in range(1000):
        due = asker.group.next_deadline()
        if due == float("inf"):
            break
        asker.group.expire(due)
    assert (len(asker.joined), len(asker.synced)) == (waiting["join"], waiting["sync"])
    assert asker.group.is_forgotten
