"""Which committed offsets are too old?"""

from __future__ import annotations

from coldlog.serve.groups.coordinator import Coordinator
from coldlog.serve.groups.group import CommittedOffset
from coldlog.serve.groups.members import JoinRequest
from coldlog.serve.groups.offset_table import Expiry

_JOIN = JoinRequest(member_id="", session_s=10.0, rebalance_s=10.0, protocol_type="consumer", protocols={"range": b""})


def test_old_offsets_expire_unless_the_group_has_members() -> None:
    groups = Coordinator(first_delay_s=0.0, topic_prefix="archive.")
    groups.begin(
        {
            (group, "orders", partition): CommittedOffset(offset=7, committed_ms=committed_ms)
            for group in ("without", "with")
            for partition, committed_ms in ((0, 999), (1, 1000))
        }
    )
    groups.groups["with"].join(_JOIN, 0.0, lambda _: None)
    assert groups.list_expired(1000) == {"without": {("archive.orders", 0): Expiry(before_ms=1000)}}
    assert groups.list_expired(999) == {}
