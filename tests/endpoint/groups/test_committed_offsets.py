"""Are committed offsets kept in the warehouse before they are acknowledged?"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin as confluent
import pytest

from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.delta.small_table import SmallTable
from endpoint.conftest import Endpoint, serving
from endpoint.support.raw_client import RawClient, connected, message

_IN_TABLE = "serve.committed_offsets=table"
_NOT_AVAILABLE = 15
_CLIENTS, _COMMITS = 8, 6


@pytest.fixture
def warehouse(golden_uri: str, tmp_path: Path) -> Path:
    """The sample's, to be written."""
    return Path(shutil.copytree(golden_uri, tmp_path / "warehouse"))


def _commit(client: RawClient, group: str, offset: int) -> int:
    part = message(
        8, 5, "OffsetCommitRequestPartition", partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = message(8, 5, "OffsetCommitRequestTopic", name="archive.orders", partitions=(part,))
    asked: Any = message(
        8,
        5,
        "OffsetCommitRequest",
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(topic,),
    )
    return int(client.ask(8, 5, asked).topics[0].partitions[0].error_code)


def _serving(warehouse: Path, archive: Path, name: str = "notes") -> Any:
    prefix = "serve.topic_prefix=archive."
    return serving(warehouse.parent / name, str(warehouse), archive, _IN_TABLE, prefix)


def _committed(endpoint: Endpoint, group: str) -> dict[tuple[str, int], int]:
    asked = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
    admin = confluent.AdminClient({"bootstrap.servers": endpoint.address})
    found = admin.list_consumer_group_offsets(asked)[group].result(60)
    return {(each.topic, each.partition): each.offset for each in found.topic_partitions}


def test_offsets_outlive_the_endpoint_until_they_are_deleted(warehouse: Path, golden_archive: Path) -> None:
    with _serving(warehouse, golden_archive) as endpoint, connected(endpoint.port) as client:
        assert [_commit(client, group, 7) for group in ("kept", "deleted")] == [0, 0]
        endpoint.process.kill()  # Nothing that was acknowledged is lost.
    with _serving(warehouse, golden_archive) as endpoint:
        assert _committed(endpoint, "kept") == {("archive.orders", 0): 7}
        admin = confluent.AdminClient({"bootstrap.servers": endpoint.address})
        admin.delete_consumer_groups(["deleted"])["deleted"].result(60)
        assert endpoint.end() == 0
    with _serving(warehouse, golden_archive) as endpoint:
        assert _committed(endpoint, "kept") == {("archive.orders", 0): 7}
        assert _committed(endpoint, "deleted") == {}


def test_commits_of_many_clients_are_written_together_and_two_endpoints_lose_none(
    warehouse: Path, golden_archive: Path
) -> None:
    def commit_often(port: int, group: str) -> set[int]:
        with connected(port) as client:
            return {_commit(client, group, offset) for offset in range(_COMMITS)}

    began = time.monotonic()
    with _serving(warehouse, golden_archive) as one, _serving(warehouse, golden_archive, "others") as other:
        groups = {f"group-{number}": (one, other)[number % 2].port for number in range(_CLIENTS)}
        with ThreadPoolExecutor(_CLIENTS) as pool:
            assert list(pool.map(commit_often, groups.values(), groups)) == [{0}] * _CLIENTS
    seconds = time.monotonic() - began
    table = SmallTable(uri=str(warehouse), table=COMMITTED_OFFSETS)
    rows = {(str(row["group_id"]), str(row["topic"])): row["committed_offset"] for row in table.read()}
    assert rows == {(group, "orders"): _COMMITS - 1 for group in groups}
    version = table.version()
    assert version is not None
    assert version <= 2 * (seconds + 1)


def test_a_commit_that_cannot_be_written_is_no_commit(warehouse: Path, golden_archive: Path) -> None:
    with _serving(warehouse, golden_archive) as endpoint:
        (warehouse / "committed_offsets").write_bytes(b"no folder")
        with connected(endpoint.port) as client:
            assert _commit(client, "refused", 7) == _NOT_AVAILABLE
            assert _committed(endpoint, "refused") == {}
            (warehouse / "committed_offsets").unlink()
            assert _commit(client, "refused", 8) == 0
        assert _committed(endpoint, "refused") == {("archive.orders", 0): 8}
        assert "committed offsets cannot be written" in endpoint.said()
