"""Test that at most one node coordinates a slot, whenever nodes are paused, killed, slow or have wrong clocks."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import RetriableError
from coldlog.serve.groups.slot_leases import SlotLeases
from coldlog.serve.groups.slots import SLOTS, Claim, Cluster, Node, claimed, iter_rows, read_cluster, slot_of

_LEASE_S = 10.0
_SLOT = 7
_EVERY_SLOT = frozenset(range(SLOTS))


class _Table:
    """The table, and nodes that write it."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._incarnations = count()

    def start(self, node_id: int) -> SlotLeases:
        incarnation = f"process {next(self._incarnations)}"
        lease_ms = round(_LEASE_S * 1000)
        return SlotLeases(
            Node(node_id=node_id, host=f"host{node_id}", port=9092, incarnation=incarnation, lease_ms=lease_ms)
        )

    def commit(self, leases: SlotLeases, now: float, *wanted: int, took_s: float = 0.0) -> None:
        """Commit what a node claims; it knows the outcome after `took_s`."""
        leases.want(wanted)
        self.write(leases, leases.claim(now, 0), now, took_s)

    def write(self, leases: SlotLeases, claim: Claim, asked_at: float, took_s: float = 0.0) -> None:
        self.cluster = read_cluster(list(iter_rows(claimed(self.cluster, claim))))
        leases.follow(claim, self.cluster, asked_at, asked_at + took_s)

    def epoch(self) -> int:
        return self.cluster.leases[_SLOT].epoch


def test_a_slot_is_coordinated_by_who_asks_first_and_others_name_that_node() -> None:
    table = _Table()
    one, other = table.start(1), table.start(2)
    table.commit(one, 0.0, _SLOT)
    table.commit(other, 1.0, _SLOT)
    assert one.held(1.0).keys() == {_SLOT}
    assert other.held(1.0) == {}
    assert one.coordinator(_SLOT, 1.0) == one.node
    assert other.coordinator(_SLOT, 1.0) == one.node
    assert other.coordinator(_SLOT + 1, 1.0) is None


def test_a_lease_that_is_renewed_goes_on_and_one_that_is_not_ends_first_for_its_holder() -> None:
    table = _Table()
    one, other = table.start(1), table.start(2)
    table.commit(one, 0.0, _SLOT)
    table.commit(other, 1.0)
    for now in (4.0, 8.0, 12.0):
        table.commit(one, now)
        table.commit(other, now + 1, _SLOT)
        assert one.held(now + 1).keys() == {_SLOT}
        assert other.held(now + 1) == {}
    assert one.held(12.0 + _LEASE_S) == {}, "it counts from when it asked"
    table.commit(other, 13.0 + _LEASE_S, _SLOT)
    assert other.held(23.0) == {}, "not before the end of what it saw itself"
    table.commit(other, 13.1 + _LEASE_S, _SLOT)
    assert other.held(23.1).keys() == {_SLOT}
    assert other.nodes(23.1) == [other.node]
    assert table.epoch() == 2


def test_a_node_renews_its_row_twice_in_a_lease_at_least_and_not_with_every_commit() -> None:
    table = _Table()
    one = table.start(1)
    table.commit(one, 0.0, _SLOT)
    beats = set()
    for tenth in range(1, 101):
        table.commit(one, tenth / 10)
        beats.add(table.cluster.nodes[1].beat)
    assert 3 <= len(beats) <= 8


def test_a_node_that_has_renewed_after_it_was_read_last_has_not_ended() -> None:
    table = _Table()
    one, other = table.start(1), table.start(2)
    table.commit(one, 0.0, _SLOT)
    table.commit(other, 0.0)
    other.want([_SLOT])
    late = other.claim(_LEASE_S + 1, 0)
    assert late.ended
    table.commit(one, _LEASE_S - 1)
    table.write(other, late, _LEASE_S + 1)
    assert one.held(_LEASE_S + 1).keys() == {_SLOT}
    assert other.held(_LEASE_S + 1) == {}


def test_a_node_that_goes_on_after_its_lease_has_only_what_nobody_took() -> None:
    table = _Table()
    one, other = table.start(1), table.start(2)
    table.commit(one, 0.0, _SLOT, _SLOT + 1)
    table.commit(other, 0.0)
    table.commit(other, 2 * _LEASE_S, _SLOT)
    assert one.held(2 * _LEASE_S) == {}
    table.commit(one, 3 * _LEASE_S, _SLOT)
    assert one.held(3 * _LEASE_S).keys() == {_SLOT + 1}


def test_a_node_that_leaves_has_nothing_and_others_take_over_at_once() -> None:
    table = _Table()
    one, other = table.start(1), table.start(2)
    table.commit(one, 0.0, _SLOT)
    table.commit(other, 0.0)
    one.leave()
    assert one.held(0.1) == {}
    table.commit(one, 0.1, _SLOT)
    table.commit(other, 0.2, _SLOT)
    assert other.held(0.2).keys() == {_SLOT}
    assert table.epoch() == 2


def test_a_slot_that_nobody_has_is_listed_by_one_node() -> None:
    table = _Table()
    one, other = table.start(1), table.start(2)
    table.commit(one, 0.0)
    table.commit(other, 0.0, _SLOT)
    table.commit(one, 1.0)
    assert one.unheld(1.0) == _EVERY_SLOT - {_SLOT}
    assert other.unheld(1.0) == frozenset()
    table.commit(other, 9.0)
    assert other.unheld(11.0) == _EVERY_SLOT - {_SLOT}, "when the node that did it has ended"


def test_a_node_is_known_when_each_that_lives_has_read_its_row() -> None:
    table = _Table()
    one, other = table.start(1), table.start(2)
    assert not one.is_known(0.0)
    table.commit(one, 0.0)
    assert one.is_known(0.0), "it is alone"
    table.commit(other, 1.0)
    assert [each.node_id for each in one.nodes(1.0)] == [1]
    assert not other.is_known(1.0)
    table.commit(one, 5.0)
    assert [each.node_id for each in one.nodes(5.0)] == [1, 2]
    assert not other.is_known(5.0), "it has not read that"
    table.commit(other, 6.0)
    assert other.is_known(6.0)
    third = table.start(3)
    table.commit(third, 7.0)
    table.commit(one, 7.5)
    table.commit(third, 8.0)
    assert not third.is_known(8.0), "node 2 has not read it"
    assert third.is_known(7.5 + 2 * _LEASE_S), "node 2 has ended"


def test_the_number_of_a_node_that_lives_is_not_given_to_another_process() -> None:
    table = _Table()
    one, second = table.start(1), table.start(1)
    table.commit(one, 0.0, _SLOT)
    table.commit(second, 1.0, _SLOT, _SLOT + 1)
    assert second.occupant == one.node
    assert second.held(1.0) == {}
    table.commit(one, 5.0)
    table.commit(second, 12.0)
    assert second.occupant == one.node
    table.commit(second, 30.0, _SLOT)
    assert second.is_registered
    assert second.held(30.0).keys() == {_SLOT}


def test_rows_that_are_not_understood_are_refused() -> None:
    table = _Table()
    table.commit(table.start(1), 0.0, _SLOT)
    rows = list(iter_rows(table.cluster))
    assert {row["topic"] for row in rows} == {"node", "slot"}
    for at, row in enumerate(rows):
        for name in ("topic", "metadata", "partition") if row["topic"] == "node" else ("topic", "partition"):
            with pytest.raises(RetriableError):
                read_cluster([*rows[:at], {**row, name: "unknown"}, *rows[at + 1 :]])


def test_the_slot_of_a_group_never_changes() -> None:
    assert [slot_of(group) for group in ("", "readers", "Lesegruppe ä")] == [0, 5, 21]


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["look", "want", "want", "claim", "write", "leave", "start"]),
        st.floats(0.0, 12.0),
        st.floats(0.0, 4.0),
    ),
    max_size=60,
)


@given(steps=_STEPS, skews=st.tuples(*[st.floats(-1e6, 1e6)] * 3))
def test_two_nodes_never_coordinate_a_slot_at_once_and_epochs_only_grow(
    steps: list[tuple[int, str, float, float]], skews: tuple[float, float, float]
) -> None:
    """A node that is paused between its claim and its write writes late; the others go on meanwhile."""
    table, now, epochs = _Table(), 0.0, [0]
    nodes = [table.start(number) for number in range(3)]
    claims: dict[int, tuple[Claim, float]] = {}
    for number, step, pause_s, took_s in steps:
        now += pause_s
        leases, local = nodes[number], now + skews[number]
        if step == "start":
            nodes[number] = table.start(number)
            claims.pop(number, None)
        elif step == "leave":
            leases.leave()
        elif step == "claim" and number not in claims:
            leases.want([_SLOT])
            claims[number] = leases.claim(local, 0), local
        elif step == "write" and number in claims:
            claim, asked_at = claims.pop(number)
            table.write(leases, claim, asked_at, local - asked_at)
        elif number not in claims:
            table.commit(leases, local, *([_SLOT] if step == "want" else []), took_s=took_s)
            now += took_s
        holders = [each for each, skew in zip(nodes, skews, strict=True) if _SLOT in each.held(now + skew)]
        assert len(holders) <= 1
        if _SLOT in table.cluster.leases:
            epochs.append(table.epoch())
    assert epochs == sorted(epochs)


def test_a_cluster_is_read_as_it_was_written() -> None:
    table = _Table()
    table.commit(table.start(1), 0.0, _SLOT)
    table.commit(table.start(2), 0.0, 0, 49)
    assert {*table.cluster.leases} == {0, 49, _SLOT}
    assert read_cluster(list(iter_rows(table.cluster))) == table.cluster
