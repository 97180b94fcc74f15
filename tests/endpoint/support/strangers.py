"""strangers: send an endpoint what no sound client sends, in a process of its own.

    python -m endpoint.support.strangers PORT SEED REQUESTS

Most connections send requests that are sound, damaged or noise, and are cut, closed, or read a little. Beside them all
the time: connections that send a byte a second, and connections that ask for everything and read nothing. Prints how
many requests and connections there were, as JSON.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

from endpoint.support.random_requests import damaged, many_entries, random_request
from endpoint.support.raw_client import fetch, framed, message
from endpoint.support.sound_clients import beside

_POOL = 2000
_PATIENCE_S = 1.0
_HANDSHAKE = 17, 36
_SLOW, _DROPPED, _AT_A_TIME = 20, 20, 8
_LARGEST = 20_000
"""Topics of the longest requests, of which there are few."""
_PLACES = [(topic, partition, 0) for topic in ("orders", "payments", "late.events") for partition in range(3)]
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MESSAGES = (b"n,,n=user,r=abc", b"\0user\0wrong", b"c=biws,r=abc,p=AAAA", b"\0\0", b"y,,n=a=2Cb=3D,r=" + b"r" * 999)


def run(port: int, seed: int, count: int) -> dict[str, int]:
    """Send at least so many requests; return what was sent."""
    pool = [random_request(random.Random(f"{seed} {number}")) for number in range(_POOL)]
    with _slow_writers(port, pool[:_SLOW]), _slow_readers(port), ThreadPoolExecutor(_AT_A_TIME) as threads:
        chances = [random.Random(f"{seed} of {number}") for number in range(_AT_A_TIME)]
        sent = list(threads.map(lambda chance: _talk(port, pool, chance, count // _AT_A_TIME + 1), chances))
    return {"requests": sum(requests for requests, _ in sent), "connections": sum(number for _, number in sent)}


def _talk(port: int, pool: list[bytes], chance: random.Random, count: int) -> tuple[int, int]:
    """Have one conversation after another; return how many requests were sent on how many connections."""
    sent = connections = 0
    while sent < count:
        requests = _conversation(pool, chance)
        sent, connections = sent + len(requests), connections + 1
        with suppress(OSError):  # The endpoint has ended the connection, or waits.
            _send(port, requests, chance)
    return sent, connections


def _conversation(pool: list[bytes], chance: random.Random) -> list[bytes]:
    """What one connection sends; nothing at all of some."""
    kind = chance.random()
    if kind < 0.02:
        return []
    if kind < 0.06:
        return [chance.randbytes(chance.randint(1, 300))]
    if kind < 0.0602:
        return [many_entries(chance.randint(1000, _LARGEST))]
    if kind < 0.1:
        return _authentication(pool, chance)
    sound = [chance.choice(pool) for _ in range(chance.choice((0, 0, 1, 2, 8, 16)))]
    # After a handshake that it did not ask for the endpoint reads no further.
    return [each for each in sound if each[5] not in _HANDSHAKE] + [damaged(chance.choice(pool), pool, chance)]


def _authentication(pool: list[bytes], chance: random.Random) -> list[bytes]:
    """A handshake and messages, some of them damaged, and a request after them."""
    parts = [framed(17, 1, message(17, 1, "SaslHandshakeRequest", mechanism=chance.choice(_MECHANISMS)))]
    for _ in range(chance.randint(1, 3)):
        sent = bytearray(chance.choice(_MESSAGES))
        sent[chance.randrange(len(sent))] ^= chance.choice((0, 0, 1, 128))
        parts.append(framed(36, 2, message(36, 2, "SaslAuthenticateRequest", auth_bytes=bytes(sent))))
    return [damaged(part, pool, chance) if chance.random() < 0.2 else part for part in parts] + [chance.choice(pool)]


def _send(port: int, requests: list[bytes], chance: random.Random) -> None:
    with _connected(port) as connection:
        content = b"".join(requests)
        if chance.random() < 0.1:  # in the middle of a request
            content = content[: chance.randint(0, len(content))]
        connection.sendall(content)
        end = chance.random()
        if end < 0.1:  # by a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif end < 0.2:
            connection.recv(chance.randint(1, 4096))
        elif end < 0.9:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 20):
                pass


@contextmanager
def _connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S) as connection:
        yield connection


@contextmanager
def _slow_writers(port: int, requests: list[bytes]) -> Iterator[None]:
    """Connections that send a byte a second, and some that send nothing and are dropped after it."""

    def write(has_ended: threading.Event) -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(_connected(port)) for _ in requests]
            for at in range(1 << 30):
                for connection, request in zip(connections, requests, strict=True):
                    with suppress(OSError):  # It was not a request, and the endpoint has ended the connection.
                        connection.sendall(request[at % len(request) :][:1])
                with ExitStack() as dropped:
                    for _ in range(_DROPPED):
                        dropped.enter_context(_connected(port))
                if has_ended.wait(1):
                    return

    with beside(write):
        yield


@contextmanager
def _slow_readers(port: int) -> Iterator[None]:
    """Connections that ask for all records again and again, and read nothing."""
    asked = framed(1, 12, fetch(12, _PLACES, max_bytes=50 << 20, partition_max_bytes=50 << 20))
    with ExitStack() as stack:
        for _ in range(_SLOW):
            connection = stack.enter_context(_connected(port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(asked * 10)
        yield


if __name__ == "__main__":
    print(json.dumps(run(*map(int, sys.argv[1:4]))))
