"""Do consumers of a group share the partitions, and is each record read once per commit?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from endpoint.conftest import Endpoint
from endpoint.support.truth import PLACES, Place, true_records

_TESTS = Path(__file__).parents[2]
_TOPICS = ("edge-times", "payments")
SHARED = [place for place in PLACES if place[0] in _TOPICS]
_LEVEL = "read_committed"
_PATIENCE_S = 90


class Member:
    """A running `group_member`, and what it has said."""

    def __init__(self, client: str, process: subprocess.Popen[str], said: threading.Condition) -> None:
        self.process = process
        self._client = client
        self.assigned: list[Place] = []
        self.committed: list[tuple[str, int, int]] = []
        self.refused_count = 0
        self.is_stuck = False
        self._said = said
        threading.Thread(target=self._listen, daemon=True).start()

    def __str__(self) -> str:
        counts = f"{len(self.committed)} records committed, {self.refused_count} commits refused"
        return f"{self._client} has {self.assigned}, {counts}, exit code {self.process.poll()}"

    def tell(self) -> None:
        """Send the next line."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what: dict[str, Any] = json.loads(line)
            with self._said:
                if "assigned" in what:
                    self.assigned = [(topic, partition) for topic, partition in what["assigned"]]
                self.committed += [(topic, partition, offset) for topic, partition, offset in what.get("committed", ())]
                self.refused_count += "refused" in what
                self.is_stuck = self.is_stuck or "stuck" in what
                self._said.notify_all()


class Members:
    """Starts members of one group."""

    def __init__(self, stack: ExitStack, address: str, group: str) -> None:
        self._stack, self._address, self._group = stack, address, group
        self._said = threading.Condition()
        self._all: list[Member] = []

    def start(self, client: str, *options: str, address: str | None = None) -> Member:
        command = [
            sys.executable,
            "-m",
            "endpoint.support.group_member",
            client,
            address or self._address,
            self._group,
            *_TOPICS,
            *options,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS / "support")])}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=_TESTS
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        self._all.append(Member(client, process, self._said))
        return self._all[-1]

    def wait(self, until: Callable[[], bool]) -> None:
        with self._said:
            assert self._said.wait_for(until, _PATIENCE_S), [str(each) for each in self._all]


@contextmanager
def _members(endpoint: Endpoint, group: str) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(stack, endpoint.address, group)


def share_all(members: list[Member]) -> bool:
    return all(each.assigned for each in members) and sorted(p for each in members for p in each.assigned) == SHARED


@pytest.mark.shows("{clients[0]}", "groups")
@pytest.mark.parametrize(
    "clients",
    [
        ["kafka-python"] * 4,
        ["librdkafka"] * 4,
        ["aiokafka"] * 4,
        ["librdkafka", "aiokafka", "kafka-python", "librdkafka"],
    ],
    ids=["kafka-python", "librdkafka", "aiokafka", "mixed"],
)
def test_each_record_is_committed_once_though_a_member_is_killed_and_one_is_added(
    endpoint: Endpoint, clients: list[str], request: pytest.FixtureRequest
) -> None:
    with _members(endpoint, request.node.callspec.id) as group:
        first, second = (group.start(client) for client in clients[:2])
        killed = group.start(clients[2], "--stuck")
        group.wait(lambda: killed.is_stuck and bool(first.committed and second.committed))
        group.wait(lambda: share_all([first, second, killed]))
        killed.process.kill()
        group.wait(lambda: share_all([first, second]))
        added = group.start(clients[3])
        group.wait(lambda: share_all([first, second, added]))
        for each in (first, second, added):
            each.tell()
        true = [(*place, row["o"]) for place in SHARED for row in true_records(place, _LEVEL)]
        everyone = [first, second, killed, added]
        group.wait(lambda: sum(len(each.committed) for each in everyone) >= len(true))
        assert sorted(record for each in everyone for record in each.committed) == true
        assert added.committed
        for each in (first, second, added):
            each.tell()
            assert each.process.wait(_PATIENCE_S) == 0
