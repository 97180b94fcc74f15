"""Do Kafka's tools find a group of two endpoints by either of them, with the warehouse in a folder or in a bucket?"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from endpoint.apart.test_kafka_tools import run_kafka_tool
from endpoint.conftest import Endpoint
from endpoint.groups.test_shared_groups import Nodes
from endpoint.support.truth import PLACES, end_offset

_GROUP = "of-two"
_PLACE = ("orders", 0)
_END = end_offset(_PLACE, "read_uncommitted")
_GROUPS = "consumer.group.ConsumerGroupCommand"


@pytest.fixture(params=["folder", "bucket"])
def nodes(request: pytest.FixtureRequest, golden_uri: str, golden_archive: Path, tmp_path: Path) -> Iterator[Nodes]:
    """Two endpoints."""
    if request.param == "bucket":
        bucket = request.getfixturevalue("bucket")
        bucket.put_directory(Path(golden_uri), "warehouse")
        warehouse = bucket.uri("warehouse")
    else:
        warehouse = str(tmp_path / "warehouse")
        shutil.copytree(golden_uri, warehouse)
    with ExitStack() as stack:
        yield Nodes(stack, warehouse, tmp_path, golden_archive, 6.0)


def _described(endpoint: Endpoint) -> list[int]:
    """Committed offset, end and lag of the partition, as a tool prints them."""
    printed = run_kafka_tool(endpoint, _GROUPS, "--group", _GROUP, "--describe")
    (row,) = re.findall(rf"{_PLACE[0]}\s+{_PLACE[1]}\s+(\d+)\s+(\d+)\s+(\d+)", printed)
    return list(map(int, row))


def test_a_group_is_seen_and_changed_through_either_endpoint_and_by_the_one_that_is_left(nodes: Nodes) -> None:
    assert _PLACE in PLACES
    asked = ["--topic", _PLACE[0], "--group", _GROUP, "--from-beginning", "--max-messages", "1000"]
    assert len(run_kafka_tool(nodes[1], "consumer.ConsoleConsumer", *asked).splitlines()) == 1000
    read = _described(nodes[1])
    assert read == _described(nodes[2])
    assert read[0] >= 1000
    assert read[1:] == [_END, _END - read[0]]
    coordinator = nodes.coordinator(1, _GROUP)
    other = 3 - coordinator
    nodes[coordinator].process.kill()
    nodes.wait_for(other, _GROUP)
    assert _described(nodes[other]) == read
    reset = ["--reset-offsets", "--topic", f"{_PLACE[0]}:{_PLACE[1]}", "--to-offset", "7", "--execute"]
    run_kafka_tool(nodes[other], _GROUPS, "--group", _GROUP, *reset)
    assert _described(nodes[other]) == [7, _END, _END - 7]
    assert nodes.offsets(_GROUP) == {_PLACE: 7}
