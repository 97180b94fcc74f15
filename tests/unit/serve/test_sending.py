"""Test that parts of files arrive as they are, whatever the client and the file do meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
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
from servers.certificates import write_certificate
from stores.telling_folder import telling_folder

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


@pytest.fixture(params=["thread", "event loop"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where a file is sent by a thread, or by the event loop, if a file system tells what is in memory."""
    if request.param == "thread":
        yield tmp_path  # In memory, if there is room.
        return
    with telling_folder() as found:
        yield found or tmp_path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A connection, and its client."""

    wire: Wire
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def receive(self, size_bytes: int) -> bytes:
        """Read so many bytes, in small pieces, so that the connection is full again and again."""
        content = b""
        while len(content) < size_bytes:
            content += await self.reader.read(min(10_000, size_bytes - len(content)))
        return content


_Run = Callable[..., Any]


@pytest.fixture(params=["plain", "TLS"])
def with_client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Run:
    """A function that does something with a connection and its client."""
    contexts: list[ssl.SSLContext | None] = [None, None]
    if request.param == "TLS":
        certificate = write_certificate(tmp_path_factory.mktemp("certificate"))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate)
        contexts = [server, ssl.create_default_context(cafile=str(certificate))]

    async def serve(_: Wire) -> None:
        """The test writes itself."""

    async def run(do: Callable[[_Sent], Awaitable[Any]], threads: Threads, idle_seconds: float) -> Any:
        ours, theirs = socket.socketpair()
        wire = Wire(serve, idle_seconds, threads)
        loop, host = asyncio.get_running_loop(), None if contexts[1] is None else "127.0.0.1"
        accepting = loop.create_task(loop.connect_accepted_socket(lambda: wire, ours, ssl=contexts[0]))
        reader, writer = await asyncio.open_connection(sock=theirs, ssl=contexts[1], server_hostname=host, limit=10_000)
        await accepting
        wire.begin()
        try:
            return await do(_Sent(wire=wire, reader=reader, writer=writer))
        finally:
            wire.end()
            writer.transport.abort()

    def with_client(do: Callable[[_Sent], Awaitable[Any]], idle_seconds: float = _LONG_S) -> Any:
        with closing(Threads("test", 1)) as threads:
            return asyncio.run(run(do, threads, idle_seconds))

    return with_client


def test_parts_of_files_arrive_between_other_bytes_however_slowly_the_client_reads(
    folder: Path, with_client: _Run
) -> None:
    pieces: Sequence[Piece] = [
        b"length and header",
        _part(folder, 5, 1 << 20),
        b"next partition",
        _part(folder, 1 << 20, 2 << 20),
        b"end",
    ]
    expected = b"".join((
        b"length and header", CONTENT[5 : 5 + (1 << 20)], b"next partition", CONTENT[1 << 20 : 3 << 20], b"end",
    ))  # fmt: skip

    async def do(client: _Sent) -> list[bytes]:
        found = []
        for sent in (pieces, [b"an answer without files"], pieces):
            writing = asyncio.create_task(client.wire.write(sent))
            found.append(await client.receive(sum(map(len, sent))))
            await writing
        return found

    assert with_client(do) == [expected, b"an answer without files", expected]


def test_files_are_closed_when_they_are_sent(folder: Path, with_client: _Run) -> None:
    before = OwnedDescriptor.open_count

    async def do(client: _Sent) -> None:
        pieces = [_part(folder, 0, 1000)]
        await client.wire.write(pieces)
        await client.receive(1000)
        assert OwnedDescriptor.open_count > before
        pieces.clear()
        async with asyncio.timeout(30):  # The thread is about to return.
            while OwnedDescriptor.open_count > before:
                await asyncio.sleep(0)

    with_client(do)


def test_a_log_that_was_cut_meanwhile_ends_the_connection(folder: Path, with_client: _Run) -> None:
    async def do(client: _Sent) -> None:
        part = _part(folder, 0, 3 << 20)
        os.truncate(folder / "log", 1000)
        with pytest.raises(RetriableError, match="a log was cut while it was sent"):
            await client.wire.write([b"header", part])

    with_client(do)


def test_a_client_that_goes_ends_the_sending(folder: Path, with_client: _Run) -> None:
    async def do(client: _Sent) -> None:
        writing = asyncio.create_task(client.wire.write([b"header", _part(folder, 0, 3 << 20)]))
        await client.receive(6)
        client.writer.transport.abort()
        with pytest.raises(ConnectionError):
            await writing

    with_client(do)


def test_a_client_that_takes_nothing_is_given_up(folder: Path, with_client: _Run) -> None:
    async def do(client: _Sent) -> None:
        with pytest.raises(TimeoutError):
            await client.wire.write([b"header", _part(folder, 0, 3 << 20)])

    with_client(do, idle_seconds=0.2)
