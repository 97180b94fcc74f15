"""Do two endpoints over one warehouse share groups, and does one go on where the other ended?"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka.admin as confluent
import pytest

from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.delta.small_table import Row, SmallTable
from endpoint.conftest import Endpoint, serving
from endpoint.groups.test_groups import SHARED, Members, share_all
from endpoint.support.raw_client import RawClient, connected, framed, message
from endpoint.support.truth import true_records
from endpoint.test_metrics import OBSERVED, metrics_address, wait_for

_NOT_COORDINATOR = 16
_PATIENCE_S = 60


class Nodes:
    """Endpoints 1 and 2 of one warehouse; `place` is a folder for what they say."""

    def __init__(self, stack: ExitStack, warehouse: str, place: Path, archive: Path, lease_s: float) -> None:
        self.table = SmallTable(uri=warehouse, table=COMMITTED_OFFSETS)
        self._by_id: dict[int, Endpoint] = {}
        for number in (1, 2):
            settings = (
                "serve.committed_offsets=table",
                f"serve.node_id={number}",
                f"serve.group_lease_seconds={lease_s}",
                OBSERVED,
            )
            notes = place / f"notes-{number}"
            self._by_id[number] = stack.enter_context(serving(notes, warehouse, archive, *settings))
            # From now on each node names all of them.
            wait_for(metrics_address(self[number]), "/readyz", 200)

    def __getitem__(self, number: int) -> Endpoint:
        return self._by_id[number]

    def coordinator(self, asked: int, group: str) -> int:
        """The node that an endpoint names; -1 with an error."""
        with connected(self[asked].port) as client:
            found = client.ask(10, 3, message(10, 3, "FindCoordinatorRequest", key=group, key_type=0))
        if found.error_code == 0:
            assert found.port == self[found.node_id].port
        return int(found.node_id)

    def wait_for(self, number: int, group: str) -> float:
        """Wait until an endpoint coordinates a group; return the seconds."""
        began = time.monotonic()
        while self.coordinator(number, group) != number:
            assert time.monotonic() < began + _PATIENCE_S
            time.sleep(0.1)
        return time.monotonic() - began

    def offsets(self, group: str) -> dict[tuple[Any, Any], Any]:
        """What the table has of a group."""
        rows: list[Row] = [row for row in self.table.read() if row["group_id"] == group]
        return {(row["topic"], row["partition"]): row["committed_offset"] for row in rows}


@pytest.fixture
def nodes(golden_uri: str, golden_archive: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Two endpoints; the parameter is the time of their leases."""
    shutil.copytree(golden_uri, tmp_path / "warehouse")
    with ExitStack() as stack:
        yield Nodes(stack, str(tmp_path / "warehouse"), tmp_path, golden_archive, request.param)


def _commit(group: str, offset: int) -> object:
    part = message(
        8, 5, "OffsetCommitRequestPartition", partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = message(8, 5, "OffsetCommitRequestTopic", name="orders", partitions=(part,))
    return message(
        8, 5, "OffsetCommitRequest", group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(topic,)
    )


def _error(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _committing(client: RawClient, group: str, offset: int) -> int:
    return _error(client.ask(8, 5, _commit(group, offset)))


def _listed(node: Endpoint) -> list[str]:
    admin = confluent.AdminClient({"bootstrap.servers": node.address})
    return sorted(each.group_id for each in admin.list_consumer_groups().result(_PATIENCE_S).valid)


def _brokers(node: Endpoint) -> set[int]:
    admin = confluent.AdminClient({"bootstrap.servers": node.address})
    return set(admin.list_topics(timeout=_PATIENCE_S).brokers)


@pytest.mark.parametrize("nodes", [6.0], indirect=True)
def test_a_group_goes_on_at_the_other_endpoint_when_its_coordinator_is_killed(nodes: Nodes) -> None:
    group = "of both"
    with ExitStack() as stack:
        members = Members(stack, nodes[1].address, group)
        clients = [members.start("librdkafka"), members.start("aiokafka", address=nodes[2].address)]
        members.wait(lambda: all(each.committed for each in clients) and share_all(clients))
        coordinator = nodes.coordinator(1, group)
        assert coordinator == nodes.coordinator(2, group)
        before = nodes.offsets(group)
        nodes[coordinator].process.kill()
        assert nodes.wait_for(3 - coordinator, group) < _PATIENCE_S
        # A member that gets other partitions reads a batch of these before it pauses.
        now = nodes.offsets(group)
        assert all(now[place] >= offset for place, offset in before.items())
        counts = [len(each.committed) for each in clients]
        for each in clients:
            each.tell()
        members.wait(lambda: all(len(each.committed) > count + 50 for each, count in zip(clients, counts, strict=True)))
        committed = [record for each in clients for record in each.committed]
    for place in SHARED:
        offsets = sorted(offset for *read, offset in committed if tuple(read) == place)
        true = [row["o"] for row in true_records(place, "read_committed")]
        assert offsets == true[: len(offsets)], "each once, and none is passed over"


@pytest.mark.parametrize("nodes", [30.0], indirect=True)
def test_an_endpoint_that_is_stopped_hands_its_groups_over_at_once(nodes: Nodes) -> None:
    assert _brokers(nodes[1]) == _brokers(nodes[2]) == {1, 2}
    assert nodes.coordinator(1, "first") == nodes.coordinator(2, "first") == nodes.coordinator(1, "left") == 1
    assert nodes.coordinator(2, "second") == nodes.coordinator(1, "second") == 2
    with connected(nodes[1].port) as one, connected(nodes[2].port) as other:
        assert [_committing(one, group, 7) for group in ("first", "left", "second")] == [0, 0, _NOT_COORDINATOR]
        assert [_committing(other, group, 8) for group in ("first", "second")] == [_NOT_COORDINATOR, 0]
    assert _listed(nodes[1]) == _listed(nodes[2]) == ["first", "left", "second"]
    assert nodes[1].end() == 0
    assert nodes.wait_for(2, "first") < 10
    assert _brokers(nodes[2]) == {2}
    assert _listed(nodes[2]) == ["first", "left", "second"], "also what nobody coordinates"
    with connected(nodes[2].port) as other:
        assert _committing(other, "first", 9) == 0
    assert nodes.offsets("first") == {("orders", 0): 9}
    assert nodes.offsets("left") == {("orders", 0): 7}


@pytest.mark.parametrize("nodes", [3.0], indirect=True)
def test_a_coordinator_that_was_paused_overwrites_no_newer_offset(nodes: Nodes) -> None:
    group = "paused"
    assert nodes.coordinator(1, group) == nodes.coordinator(2, group) == 1
    with connected(nodes[1].port) as one, connected(nodes[2].port) as other:
        assert _committing(one, group, 7) == 0
        # It is accepted, and waits for the next commit of the table, which is a second after the last one.
        one.connection.sendall(framed(8, 5, _commit(group, 8)))
        time.sleep(0.2)
        nodes[1].process.send_signal(signal.SIGSTOP)
        nodes.wait_for(2, group)
        assert _committing(other, group, 9) == 0
        nodes[1].process.send_signal(signal.SIGCONT)
        assert _error(one.answer(8, 5)) == _NOT_COORDINATOR
        assert _committing(one, group, 8) == _NOT_COORDINATOR
        assert nodes.coordinator(1, group) == nodes.coordinator(2, group) == 2
    assert nodes.offsets(group) == {("orders", 0): 9}
