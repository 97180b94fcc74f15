"""Do bytes of a stranger end a connection, and nothing else?"""

from __future__ import annotations

import random
import socket
from datetime import timedelta
from pathlib import Path

from endpoint.conftest import Endpoint, serving
from endpoint.raw_client import connected, fetch, framed, list_offsets, message

_TRIALS = 4000


def _requests() -> list[bytes]:
    """One request of each kind that takes more than a name."""
    return [
        framed(18, 3, message(18, 3, "ApiVersionsRequest", client_software_name="a", client_software_version="1")),
        framed(3, 12, message(3, 12, "MetadataRequest", topics=None, include_topic_authorized_operations=False)),
        framed(2, 11, list_offsets([("orders", 0, 1), ("payments", 1, -1)], timeout_ms=1000)),
        framed(1, 12, fetch(12, [("orders", 0, 0), ("payments", 1, 3)], max_wait_ms=0)),
        framed(1, 4, fetch(4, [("orders", 0, 5)], max_wait_ms=0)),
        framed(22, 3, message(22, 3, "InitProducerIdRequest", transactional_id=None, transaction_timeout=timedelta(1))),
        framed(60, 1, message(60, 1, "DescribeClusterRequest", include_cluster_authorized_operations=False)),
        *_group_requests(),
    ]


def _group_requests() -> list[bytes]:
    """Requests of groups; the member joins without being given an id first."""
    protocol = {"name": "range", "metadata": b"\0\0\0\0\0\1\0\6orders"}
    joining = {"group_id": "group", "member_id": "", "protocol_type": "consumer"}
    session = {"session_timeout": timedelta(seconds=6), "rebalance_timeout": timedelta(seconds=6)}
    member = {"group_id": "group", "generation_id": 1, "member_id": "raw", "group_instance_id": None}
    committed = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "note"}
    commit = message(8, 9, "OffsetCommitRequestPartition", **committed)
    commits = message(8, 9, "OffsetCommitRequestTopic", name="orders", partitions=(commit,))
    identity = {"member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
    removal = message(47, 0, "OffsetDeleteRequestPartition", partition_index=0)
    removals = message(47, 0, "OffsetDeleteRequestTopic", name="orders", partitions=(removal,))
    return [
        framed(10, 4, message(10, 4, "FindCoordinatorRequest", key_type=0, coordinator_keys=("group",))),
        framed(
            11,
            2,
            message(
                11,
                2,
                "JoinGroupRequest",
                **joining,
                **session,
                protocols=(message(11, 2, "JoinGroupRequestProtocol", **protocol),),
            ),
        ),
        framed(12, 4, message(12, 4, "HeartbeatRequest", **member)),
        framed(13, 0, message(13, 0, "LeaveGroupRequest", group_id="group", member_id="raw")),
        framed(
            14, 5, message(14, 5, "SyncGroupRequest", **member, protocol_type=None, protocol_name=None, assignments=())
        ),
        framed(8, 9, message(8, 9, "OffsetCommitRequest", group_id="group", **identity, topics=(commits,))),
        framed(9, 5, message(9, 5, "OffsetFetchRequest", group_id="group", topics=None)),
        framed(15, 5, message(15, 5, "DescribeGroupsRequest", groups=("group",), include_authorized_operations=False)),
        framed(16, 5, message(16, 5, "ListGroupsRequest", states_filter=(), types_filter=())),
        framed(42, 2, message(42, 2, "DeleteGroupsRequest", groups_names=("group",))),
        framed(47, 0, message(47, 0, "OffsetDeleteRequest", group_id="group", topics=(removals,))),
        framed(17, 1, message(17, 1, "SaslHandshakeRequest", mechanism="PLAIN")),
        framed(36, 2, message(36, 2, "SaslAuthenticateRequest", auth_bytes=b"\0user\0password")),
    ]


def _mutated(request: bytes, chance: random.Random) -> bytes:
    content = bytearray(request)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(content))
        match chance.randrange(5):
            case 0:
                content[at] = chance.randrange(256)
            case 1:
                content[at : at + 4] = chance.choice(
                    (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0")
                )
            case 2:
                del content[at : at + chance.randint(1, 8)]
            case 3:
                content[at:at] = chance.randbytes(chance.randint(1, 8))
            case _:
                content[at] ^= 1 << chance.randrange(8)
        if len(content) < 4:
            break
    if chance.random() < 0.8:  # else the length is wrong too
        content[:4] = (len(content) - 4).to_bytes(4, "big", signed=True)
    return bytes(content)


def _send(port: int, content: bytes, chance: random.Random) -> None:
    """Send, perhaps read a little, and go."""
    with socket.create_connection(("127.0.0.1", port), timeout=0.05) as connection:
        try:
            connection.sendall(content)
            if chance.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(chance.randint(1, 4096))
        except OSError:
            pass  # It has ended the connection, or waits.


def test_any_bytes_are_answered_or_end_their_connection(endpoint: Endpoint) -> None:
    chance, requests = random.Random(1), _requests()
    for _ in range(_TRIALS):
        is_noise = chance.random() < 0.1
        content = chance.randbytes(chance.randint(0, 200)) if is_noise else _mutated(chance.choice(requests), chance)
        _send(endpoint.port, content, chance)
    assert "error of coldlog" not in endpoint.said()
    with connected(endpoint.port) as client:
        assert client.ask(2, 11, list_offsets([("orders", 0, -1)])).topics[0].partitions[0].offset == 3953


def test_lengths_out_of_bounds_and_apis_that_are_not_offered_end_the_connection(endpoint: Endpoint) -> None:
    header = b"\0\0\0\0\0\0\0\7\xff\xff"
    for content in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x0a" + b"\x03\xe7" + header[2:]):
        with connected(endpoint.port) as client:
            client.connection.sendall(content)
            assert client.is_closed()


def test_a_newer_version_of_api_versions_is_told_the_offered_ones(endpoint: Endpoint) -> None:
    with connected(endpoint.port) as client:
        client.connection.sendall(b"\0\0\0\x0a" + b"\0\x12\0\x63\0\0\0\7\xff\xff")
        answer = client.receive()
    assert answer[:6] == b"\0\0\0\7\0\x23"
    assert b"\0\x01\0\x04\0\x12" in answer  # Fetch, 4 to 18


def test_a_silent_connection_and_one_too_many_are_closed(golden_uri: str, golden_archive: Path, tmp_path: Path) -> None:
    limits = "serve.max_connections=1", "serve.idle_seconds=0.5"
    with (
        serving(tmp_path / "notes", golden_uri, golden_archive, *limits) as endpoint,
        connected(endpoint.port) as first,
    ):
        first.ask(2, 11, list_offsets([("orders", 0, -1)]))
        with connected(endpoint.port) as second:
            assert second.is_closed()
        assert first.is_closed()
        assert "more than 1 connections" in endpoint.said()
