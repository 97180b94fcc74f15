"""Which committed offsets are too old?"""

from __future__ import annotations

from coldlog.serve.groups.coordinator import Coordinator
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.groups.members import JoinRequest
from coldlog.serve.groups.offset_table import Expiry, Renewal

_JOIN = JoinRequest(member_id="", session_s=10.0, rebalance_s=10.0, protocol_type="consumer", protocols={"range": b""})
_FIRST, _SECOND = ("archive.orders", 0), ("archive.orders", 1)


def _with_offsets(*groups: str, grace_s: float = 0.0) -> Coordinator:
    """Groups that have committed an offset at 999 and one at 1000."""
    started = Coordinator(first_delay_s=0.0, topic_prefix="archive.", grace_s=grace_s)
    started.begin(
        {
            (group, "orders", partition): CommittedOffset(offset=7, committed_ms=committed_ms)
            for group in groups
            for partition, committed_ms in ((0, 999), (1, 1000))
        }
    )
    return started


def _renewal(at_ms: int) -> Renewal:
    return Renewal(offset=CommittedOffset(offset=7, committed_ms=at_ms))


def test_old_offsets_expire_unless_the_group_has_members() -> None:
    groups = _with_offsets("without", "with")
    groups.groups["with"].join(_JOIN, 0.0, lambda _: None)
    renewed = {_FIRST: _renewal(6000), _SECOND: _renewal(6000)}
    assert groups.list_aged(6.0, 6000, 5000) == {"without": {_FIRST: Expiry(before_ms=1000)}, "with": renewed}
    assert groups.list_aged(6.0, 5999, 5000).keys() == {"with"}


def test_the_retention_begins_when_the_last_member_has_gone() -> None:
    groups = _with_offsets("group")
    group, ids = groups.groups["group"], list[str]()
    group.join(_JOIN, 2.0, lambda joined: ids.append(joined.member_id))
    assert group.leave(ids[0], None, 3.0) == 0
    assert groups.list_aged(7.999, 7999, 5000) == {"group": {_FIRST: _renewal(3000), _SECOND: _renewal(3000)}}
    assert groups.list_aged(8.001, 8001, 5000) == {"group": dict.fromkeys((_FIRST, _SECOND), Expiry(before_ms=3001))}


def test_nothing_expires_while_members_may_come_back_after_a_start() -> None:
    groups = _with_offsets("group", grace_s=60.0)
    assert groups.list_aged(100.0, 9000, 5000) == {}
    assert groups.list_aged(159.9, 9000, 5000) == {}
    assert groups.list_aged(160.0, 9000, 5000).keys() == {"group"}
