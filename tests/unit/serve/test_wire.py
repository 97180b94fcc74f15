"""Test what a connection does with the bytes that arrive, and with a client that is silent or goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from coldlog.serve.wire import Wire

_LONG_S = 3600.0


@dataclass(slots=True)
class _Transport:
    """Takes what is written, and says what the protocol told it to do."""

    has_tls: bool = False
    is_reading: bool = True
    limit: int | None = None
    written: list[bytes] = field(default_factory=list)

    def get_extra_info(self, name: str) -> object:
        return {"peername": ("192.0.2.7", 4711), "sslcontext": object() if self.has_tls else None}[name]

    def set_write_buffer_limits(self, high: int) -> None:
        self.limit = high

    def write(self, piece: bytes) -> None:
        self.written.append(piece)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


def _with_wire(
    do: Callable[[Wire, _Transport], Awaitable[Any]], idle_seconds: float = _LONG_S, *, has_tls: bool = False
) -> Any:
    async def serve(_: Wire) -> None:
        """The test reads and writes itself."""

    async def run() -> Any:
        wire, transport = Wire(serve, idle_seconds), _Transport(has_tls=has_tls)
        wire.connection_made(cast(asyncio.Transport, transport))
        wire.begin()
        return await do(wire, transport)

    return asyncio.run(run())


def test_bytes_are_read_in_their_order_however_they_arrive() -> None:
    async def do(wire: Wire, _: _Transport) -> list[bytes]:
        reading = asyncio.create_task(wire.read(5))
        await asyncio.sleep(0)
        for part in (b"ab", b"c", b"defg"):
            wire.data_received(part)
        return [await reading, await wire.read(2), wire.peer[0].encode()]

    assert _with_wire(do) == [b"abcde", b"fg", b"192.0.2.7"]


def test_little_is_kept_of_what_a_client_sends_beyond_its_request() -> None:
    async def do(wire: Wire, transport: _Transport) -> list[bool]:
        states = []
        wire.data_received(bytes(200_000))
        states.append(transport.is_reading)
        await wire.read(150_000)
        states.append(transport.is_reading)
        reading = asyncio.create_task(wire.read(900_000))
        await asyncio.sleep(0)
        wire.data_received(bytes(400_000))
        states.append(transport.is_reading)
        wire.data_received(bytes(900_000))
        await reading
        return [*states, transport.is_reading]

    assert _with_wire(do) == [False, True, True, False]


@pytest.mark.parametrize("is_write", [False, True])
def test_silence_ends_a_read_and_a_write(*, is_write: bool) -> None:
    async def do(wire: Wire, _: _Transport) -> None:
        wire.pause_writing()
        with pytest.raises(TimeoutError):
            await (wire.write([b"answer"]) if is_write else wire.read(4))

    _with_wire(do, idle_seconds=0)


@pytest.mark.parametrize("is_write", [False, True])
def test_a_client_that_goes_ends_a_read_and_a_write(*, is_write: bool) -> None:
    async def do(wire: Wire, _: _Transport) -> None:
        wire.pause_writing()
        waiting = asyncio.ensure_future(wire.write([b"answer"]) if is_write else wire.read(4))
        await asyncio.sleep(0)
        wire.connection_lost(None)
        with pytest.raises(ConnectionResetError):
            await waiting
        for later in (wire.read(1), wire.write([b"answer"])):
            with pytest.raises(ConnectionResetError):
                await later

    _with_wire(do)


def test_the_next_piece_waits_until_all_before_it_is_sent() -> None:
    async def do(wire: Wire, transport: _Transport) -> list[int]:
        wire.pause_writing()
        writing = asyncio.create_task(wire.write([b"a", b"b"]))
        await asyncio.sleep(0)
        counts = [len(transport.written)]
        wire.resume_writing()
        await writing
        assert transport.limit == 0
        return [*counts, len(transport.written)]

    assert _with_wire(do) == [1, 2]


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_client_that_sends_nothing_more_may_still_read_but_for_tls(*, has_tls: bool) -> None:
    async def do(wire: Wire, transport: _Transport) -> bool:
        wire.data_received(b"last")
        is_open = wire.eof_received()
        assert await wire.read(4) == b"last"
        await wire.write([b"answer"])
        assert transport.written == [b"answer"]
        with pytest.raises(ConnectionResetError):
            await wire.read(1)
        return is_open

    assert _with_wire(do, has_tls=has_tls) is not has_tls
