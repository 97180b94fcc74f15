"""Do bytes of a stranger end a connection, and nothing else?"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from endpoint.conftest import Endpoint, serving
from endpoint.each_request import each_request
from endpoint.raw_client import connected, list_offsets

_TRIALS = 4000


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
    chance, requests = random.Random(1), each_request()
    for _ in range(_TRIALS):
        is_noise = chance.random() < 0.1
        content = chance.randbytes(chance.randint(0, 200)) if is_noise else _mutated(chance.choice(requests), chance)
        _send(endpoint.port, content, chance)
    assert "error of coldlog" not in endpoint.said()
    with connected(endpoint.port) as client:
        assert client.ask(2, 11, list_offsets([("orders", 0, -1)])).topics[0].partitions[0].offset == 3953


def test_lengths_out_of_bounds_and_apis_that_are_not_offered_end_the_connection(endpoint: Endpoint) -> None:
    header = b"\0\0\0\0\0\0\0\7\xff\xff"
    lengths = b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0"
    unknown_api, list_offsets_0 = (b"\0\0\0\x0a" + key + header[2:] for key in (b"\x03\xe7", b"\0\x02"))
    for content in (*lengths, unknown_api, list_offsets_0):
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
