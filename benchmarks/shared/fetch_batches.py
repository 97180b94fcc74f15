"""fetch_batches: how fast does a server send batches to a client that does not decode them?

    fetch_batches.py ADDRESS TOPIC [--tls CERTIFICATE] PARTITION:END [PARTITION:END ...]

Fetch requests of version 12, at most 1 MiB a partition, each after the answer to the one before. The client looks at
the header of each batch for the next offset, and at nothing else: what it costs the machine is little. The clock starts
at the first line on standard input. Prints the bytes of the answers and the seconds as JSON.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Iterator, Sequence

from endpoint.support.raw_client import fetch, framed

_FETCH, _VERSION, _MAX_BYTES, _MAX_WAIT_MS = 1, 12, 50 << 20, 500
_BATCH = struct.Struct(">qi4xbIhi")
"""Offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_BATCH_START_BYTES, _HEADER_BYTES = 12, 61


def main(arguments: Sequence[str]) -> None:
    """Read and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--tls")
    parser.add_argument("places", nargs="+")
    given = parser.parse_args(arguments)
    left = {int(partition): int(end) for partition, _, end in (place.partition(":") for place in given.places)}
    next_offset = dict.fromkeys(left, 0)
    memory, read_bytes = memoryview(bytearray(_MAX_BYTES + (8 << 20))), 0
    with _connected(given.address, given.tls) as connection:
        print("ready", flush=True)
        sys.stdin.readline()
        started = time.perf_counter()
        while left:
            asked = [(given.topic, partition, next_offset[partition]) for partition in left]
            body = fetch(_VERSION, asked, max_wait_ms=_MAX_WAIT_MS, max_bytes=_MAX_BYTES)
            connection.sendall(framed(_FETCH, _VERSION, body))
            answer = _receive(connection, memory)
            read_bytes += len(answer)
            next_offset.update(_next_offsets(answer))
            left = {partition: end for partition, end in left.items() if next_offset[partition] < end}
        print(json.dumps({"bytes": read_bytes, "seconds": time.perf_counter() - started}))


def _connected(address: str, certificate: str | None) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    if certificate is None:
        return connection
    return ssl.create_default_context(cafile=certificate).wrap_socket(connection, server_hostname=host)


def _receive(connection: socket.socket, memory: memoryview) -> memoryview:
    size_bytes = struct.unpack(">i", _filled(connection, memory[:4]))[0]
    return _filled(connection, memory[:size_bytes])


def _filled(connection: socket.socket, window: memoryview) -> memoryview:
    received = 0
    while received < len(window):
        count = connection.recv_into(window[received:])
        if count == 0:
            raise ConnectionError("the server has ended the connection")
        received += count
    return window


def _next_offsets(answer: memoryview) -> Iterator[tuple[int, int]]:
    """Yield partition and next offset for each partition of the answer that has batches."""
    topics, at = _varint(answer, 4 + 1 + 4 + 2 + 4)  # Correlation id, tags, throttle time, error, session id.
    for _ in range(topics - 1):
        name, at = _varint(answer, at)
        partitions, at = _varint(answer, at + name - 1)
        for _ in range(partitions - 1):
            partition, error = struct.unpack_from(">ih", answer, at)
            if error:
                raise ValueError(f"partition {partition}: error {error}")
            aborted, at = _varint(answer, at + 4 + 2 + 3 * 8)
            if aborted > 1:
                raise ValueError(f"partition {partition} has aborted transactions")
            size_bytes, at = _varint(answer, at + 4)
            end = at + size_bytes - 1
            while at + _HEADER_BYTES <= end:
                base_offset, length, _, _, _, last_delta = _BATCH.unpack_from(answer, at)
                at += _BATCH_START_BYTES + length
                if at <= end:
                    yield partition, base_offset + last_delta + 1
            at = end + 1
        at += 1


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """Return a number in groups of 7 bits, the lowest first, and where the next field begins."""
    value = shift = 0
    while content[at] > 0x7F:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | content[at] << shift, at + 1


if __name__ == "__main__":
    main(sys.argv[1:])
