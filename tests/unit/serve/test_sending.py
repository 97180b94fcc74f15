"""Test that parts of files arrive as they are, whatever the client and the file do meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.stored_file import OwnedDescriptor
from coldlog.errors import RetriableError
from coldlog.records.fetch.stored_slices import StoredRange
from coldlog.serve.answer_writer import Piece
from coldlog.serve.threads import Threads
from coldlog.serve.wire import Wire

CONTENT = random.Random(3).randbytes(3 << 20)
_LONG_S = 3600.0


def _part(folder: Path, position: int, size_bytes: int) -> StoredRange:
    """A part of a file with `CONTENT`."""
    log = folder / "log"
    if not log.exists():
        log.write_bytes(CONTENT)
    file = LocalStore(root=str(folder), uri=str(folder)).open_file("log")
    assert file is not None
    return StoredRange(file=file, position=position, size_bytes=size_bytes)


def _with_client(do: Callable[[Wire, socket.socket], Awaitable[Any]], idle_seconds: float = _LONG_S) -> Any:
    """Do something with a connection and its client, whose socket does not block."""

    async def serve(_: Wire) -> None:
        """The test writes itself."""

    async def run(threads: Threads) -> Any:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        wire = Wire(serve, idle_seconds, threads)
        await asyncio.get_running_loop().create_connection(lambda: wire, sock=ours)
        wire.begin()
        with closing(theirs):
            try:
                return await do(wire, theirs)
            finally:
                wire.end()

    with closing(Threads("test", 1)) as threads:
        return asyncio.run(run(threads))


async def _receive(client: socket.socket, size_bytes: int) -> bytes:
    """Read so many bytes, in small pieces, so that the connection is full again and again."""
    content = b""
    while len(content) < size_bytes:
        content += await asyncio.get_running_loop().sock_recv(client, 10_000)
    return content


def test_parts_of_files_arrive_between_other_bytes_however_slowly_the_client_reads(tmp_path: Path) -> None:
    pieces: Sequence[Piece] = [
        b"length and header",
        _part(tmp_path, 5, 1 << 20),
        b"next partition",
        _part(tmp_path, 1 << 20, 2 << 20),
        b"end",
    ]
    expected = b"".join((
        b"length and header", CONTENT[5 : 5 + (1 << 20)], b"next partition", CONTENT[1 << 20 : 3 << 20], b"end",
    ))  # fmt: skip

    async def do(wire: Wire, client: socket.socket) -> list[bytes]:
        found = []
        for sent in (pieces, [b"an answer without files"], pieces):
            writing = asyncio.create_task(wire.write(sent))
            found.append(await _receive(client, sum(map(len, sent))))
            await writing
        return found

    assert _with_client(do) == [expected, b"an answer without files", expected]


def test_files_are_closed_when_they_are_sent(tmp_path: Path) -> None:
    before = OwnedDescriptor.open_count

    async def do(wire: Wire, client: socket.socket) -> None:
        pieces = [_part(tmp_path, 0, 1000)]
        await wire.write(pieces)
        await _receive(client, 1000)
        assert OwnedDescriptor.open_count > before
        pieces.clear()
        async with asyncio.timeout(30):  # The thread is about to return.
            while OwnedDescriptor.open_count > before:
                await asyncio.sleep(0)

    _with_client(do)


def test_a_log_that_was_cut_meanwhile_ends_the_connection(tmp_path: Path) -> None:
    async def do(wire: Wire, _: socket.socket) -> None:
        part = _part(tmp_path, 0, 3 << 20)
        os.truncate(tmp_path / "log", 1000)
        with pytest.raises(RetriableError, match="a log was cut while it was sent"):
            await wire.write([b"header", part])

    _with_client(do)


def test_a_client_that_goes_ends_the_sending(tmp_path: Path) -> None:
    async def do(wire: Wire, client: socket.socket) -> None:
        writing = asyncio.create_task(wire.write([b"header", _part(tmp_path, 0, 3 << 20)]))
        await _receive(client, 6)
        client.close()
        with pytest.raises(ConnectionError):
            await writing

    _with_client(do)


def test_a_client_that_takes_nothing_is_given_up(tmp_path: Path) -> None:
    async def do(wire: Wire, _: socket.socket) -> None:
        with pytest.raises(TimeoutError):
            await wire.write([b"header", _part(tmp_path, 0, 3 << 20)])

    _with_client(do, idle_seconds=0.2)
