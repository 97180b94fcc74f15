"""Read the bytes of one connection, and write to it.

asyncio's streams make a timer and several futures for each request. Here a connection has one timer, which looks now
and then whether the client has been silent for too long. `sending` sends answers with parts of files, in a thread if
these are not in memory; asyncio's transport sends everything else. What a client sends beyond its request waits in
memory up to `_AHEAD_BYTES`; then nothing more is read from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TypeVar, cast

from coldlog.records.fetch.stored_slices import StoredRange
from coldlog.serve.answer_writer import Piece
from coldlog.serve.presence import Presence
from coldlog.serve.sending import Outlet, Sending, read_part
from coldlog.serve.threads import Threads

_AHEAD_BYTES = 128 * 1024
_COPIED_BYTES, _TURN_BYTES = 256 * 1024, 4 << 20
_Found = TypeVar("_Found")


class Wire(asyncio.Protocol):
    """One connection. `serve` is run as a task for it; reads and writes end with `TimeoutError` if nothing moves for
    `idle_seconds`, and with `ConnectionError` when the client goes."""

    def __init__(
        self,
        serve: Callable[[Wire], Coroutine[None, None, None]],
        idle_seconds: float,
        send_threads: Threads | None = None,
    ) -> None:
        self.presence = Presence()
        self.peer = "", ""
        """Host and port of the client."""
        self._serve = serve
        self._idle_seconds = idle_seconds
        self._send_threads = send_threads
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._wanted = 0
        self._has_ended = self._is_lost = self._is_full = self._is_paused = False
        self._arrival: asyncio.Future[None] | None = None
        self._flush: asyncio.Future[None] | None = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._has_tls = False
        self.outlet = Outlet()
        """Where threads may send answers; not with TLS, which must encrypt what is sent."""

    @property
    def transport(self) -> asyncio.Transport:
        """What asyncio connects the protocol with."""
        assert self._transport is not None
        return self._transport

    @property
    def has_received(self) -> bool:
        """Whether the next request has begun to arrive."""
        return bool(self._received)

    def begin(self) -> None:
        """From now on the client has `idle_seconds` for what is read or written next."""
        self._since = self._loop.time()

    async def read(self, size: int) -> bytes:
        """Return the next bytes."""
        if len(self._received) < size:
            self._wanted = size
            if self._is_paused:
                self._resume()
            if self._has_ended:
                raise ConnectionResetError("the client has gone")
            self._arrival = self._loop.create_future()
            try:
                await self._in_time(self._arrival)
            finally:
                self._arrival, self._wanted = None, 0
        content = bytes(memoryview(self._received)[:size])
        del self._received[:size]
        if self._is_paused and len(self._received) <= _AHEAD_BYTES // 2:
            self._resume()
        return content

    async def write(self, pieces: Sequence[Piece]) -> None:
        """Send pieces one after another. Return when the system has them all."""
        if not self._has_tls and any(isinstance(piece, StoredRange) for piece in pieces):
            sending = Sending(self._number())
            await self._in_thread(lambda: sending.begin(pieces))
            await self.finish(sending)
            return
        for piece in pieces:
            if isinstance(piece, StoredRange):
                await self._write_from_file(piece)
            else:
                await self._write_some(piece)

    async def _write_some(self, content: bytes | memoryview) -> None:
        if self._is_lost:
            raise ConnectionResetError("the client has gone")
        self.transport.write(content)
        if self._is_full:
            await self._flushed()

    async def _write_from_file(self, piece: StoredRange) -> None:
        """Write copies of a part of a file, which TLS encrypts. Of a slow client at most three are in memory."""
        for at in range(0, len(piece), _COPIED_BYTES):
            if at % _TURN_BYTES == 0:
                await asyncio.sleep(0)  # Others have their turn.
            part = piece.part(at, min(_COPIED_BYTES, len(piece) - at))
            if part.is_in_memory:
                content = read_part(part)
            else:
                content = await self._in_thread(partial(read_part, part))
            await self._write_some(content)

    async def finish(self, sending: Sending) -> None:
        """Send what is left of an answer. It goes past the transport, which has nothing to send itself: all was sent
        that was written before."""
        while not sending.has_ended:
            if self._is_lost:
                raise ConnectionResetError("the client has gone")
            self._loop.add_writer(sending.descriptor, self.resume_writing)
            try:
                await self._flushed()
            finally:
                self._loop.remove_writer(sending.descriptor)
            if not sending.send_from_memory():
                await self._in_thread(sending.send)

    async def _in_thread(self, call: Callable[[], _Found]) -> _Found:
        assert self._send_threads is not None
        return await self._send_threads.run(call, self._idle_seconds)

    async def _flushed(self) -> None:
        self._flush = self._loop.create_future()
        try:
            await self._in_time(self._flush)
        finally:
            self._flush = None

    def end(self) -> None:
        """Close the connection; what was not sent is dropped."""
        if self._timer is not None:
            self._timer.cancel()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = (str(address[0]), str(address[1])) if isinstance(address, tuple) else ("", "")
        self._has_tls = transport.get_extra_info("sslcontext") is not None
        if self._send_threads is not None and not self._has_tls:
            self.outlet = Outlet(self._number)
        # So that `write` waits until all is sent. With 0, TLS (asyncio's SSLProtocol) would never go on.
        self._transport.set_write_buffer_limits(1 if self._has_tls else 0)
        self._task = self._loop.create_task(self._serve(self))

    def data_received(self, data: bytes) -> None:
        """Take what arrived."""
        self._received += data
        if self._arrival is not None and len(self._received) >= self._wanted:
            _finish(self._arrival)
        if not self._is_paused and len(self._received) > self._wanted + _AHEAD_BYTES:
            self._is_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Nothing more comes. Without TLS, the client may still read."""
        self._end_reading()
        return not self._has_tls

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._is_lost = True
        self._end_reading()
        _finish(self._flush, ConnectionResetError("the client has gone"))

    def pause_writing(self) -> None:
        """The system takes nothing more now."""
        self._is_full = True

    def resume_writing(self) -> None:
        """All is sent."""
        self._is_full = False
        _finish(self._flush)

    def _number(self) -> int:
        """The descriptor of the socket."""
        return int(self.transport.get_extra_info("socket").fileno())

    def _end_reading(self) -> None:
        self._has_ended = True
        _finish(self._arrival, ConnectionResetError("the client has gone"))
        self.presence.end()

    def _resume(self) -> None:
        self._is_paused = False
        self.transport.resume_reading()

    async def _in_time(self, waited: asyncio.Future[None]) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._idle_seconds, self._check_idle)
        await waited

    def _check_idle(self) -> None:
        """End what has waited for too long; look again when the current wait would have."""
        self._timer = None
        waited = self._arrival or self._flush
        if waited is None:
            return
        left_s = self._since + self._idle_seconds - self._loop.time()
        if left_s <= 0:
            _finish(waited, TimeoutError("the client is silent"))
        else:
            self._timer = self._loop.call_later(left_s, self._check_idle)


def _finish(waited: asyncio.Future[None] | None, failure: Exception | None = None) -> None:
    if waited is None or waited.done():
        return
    if failure is None:
        waited.set_result(None)
    else:
        waited.set_exception(failure)
