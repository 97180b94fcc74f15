"""Accept connections, read requests from them and send the answers.

A request is a length of four bytes and so many bytes. The requests of a connection are answered one after another, as a
broker does it; other connections go on meanwhile. The length is checked before anything is read. A length out of
bounds, bytes that are no request, an API that is not offered, or silence for too long end that connection and nothing
else. A request of more than `_LARGE_BYTES` is read, and its answer written, in a thread, one at a time: that may take a
second, in which the others are answered.

`stop` ends the endpoint: nothing new is accepted, connections without a request end at once, the others after their
answer or the time that is given.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from coldlog.errors import RetriableError
from coldlog.serve.answer_writer import Pieces
from coldlog.serve.answers.offered import ANSWERS, VERSIONS
from coldlog.serve.context import Context
from coldlog.serve.line_limit import LineLimit
from coldlog.serve.messages import MalformedRequestError, api_name, read_request, write_answer
from coldlog.serve.read_ahead import ReadAhead
from coldlog.serve.security.session import Session
from coldlog.serve.threads import Threads
from coldlog.serve.wire import Wire

_LEAST_BYTES = 8
_LARGE_BYTES = 16 * 1024
_UNKNOWN_CLIENT_BYTES = 512 * 1024
"""Of a request before the client has authenticated, as sasl.server.max.receive.size is by default."""
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What clients may use."""

    max_request_bytes: int
    max_connections: int
    idle_seconds: float


class Server:
    """Answers on one address."""

    def __init__(self, context: Context, limits: Limits) -> None:
        self._context = context
        self._limits = limits
        self._busy: dict[asyncio.Task[None], bool] = {}
        self._malformed, self._failures = LineLimit(context.console), LineLimit(context.console)
        self._large = Threads("large requests", 1)
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._busy)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port."""
        idle_seconds = self._limits.idle_seconds
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Wire(self._serve, idle_seconds, self._context.send_threads), host, port, ssl=tls
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, seconds: float) -> None:
        """End all connections."""
        self._context.is_stopping = True
        if self._server is not None:
            self._server.close()
        self._context.announce()
        self._context.groups.end()
        for task, is_busy in list(self._busy.items()):
            if not is_busy:
                task.cancel()
        if self._busy:
            await asyncio.wait(list(self._busy), timeout=seconds)
        for task in list(self._busy):
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)
        self._large.close()

    async def _serve(self, wire: Wire) -> None:
        task = asyncio.current_task()
        assert task is not None
        ahead = ReadAhead(self._context)
        try:
            if len(self._busy) >= self._limits.max_connections or self._context.is_stopping:
                self._context.metrics.refused.inc()
                self._context.report_once(
                    "connections", f"more than {self._limits.max_connections} connections: refused"
                )
                return
            self._busy[task] = False
            session = Session(self._context)
            while not session.has_ended:
                content = await self._read(wire, session)
                self._busy[task] = True
                await self._answer(content, wire, session, ahead)
                self._busy[task] = False
                if wire.has_received:  # A client that sends many requests at once takes turns with the others.
                    await asyncio.sleep(0)
        except (asyncio.CancelledError, TimeoutError, OSError):
            pass  # The client has gone, was silent, or the endpoint stops.
        except MalformedRequestError as malformed:
            self._context.metrics.malformed.inc()
            self._malformed.warn(f"{_name(wire)}: connection closed: {malformed}")
        except RetriableError as failed:
            self._failures.warn(f"{_name(wire)}: connection closed: {failed}")
        except Exception:  # noqa: BLE001 - the edge of a connection: whatever is wrong ends it alone
            self._failures.warn(
                f"{_name(wire)}: connection closed because of an error of coldlog\n{traceback.format_exc()}"
            )
        finally:
            ahead.end()
            self._busy.pop(task, None)
            wire.end()

    async def _read(self, wire: Wire, session: Session) -> bytes:
        wire.begin()
        size = int.from_bytes(await wire.read(4), "big", signed=True)
        most = self._limits.max_request_bytes
        if not session.is_known:
            most = min(most, _UNKNOWN_CLIENT_BYTES)
        if not _LEAST_BYTES <= size <= most:
            raise MalformedRequestError(f"a request of {size} bytes")
        return await wire.read(size)

    async def _answer(self, content: bytes, wire: Wire, session: Session, ahead: ReadAhead) -> None:
        session.check(int.from_bytes(content[:2], "big", signed=True))
        host, rights, presence, outlet = wire.peer[0], session.rights, wire.presence, wire.outlet
        request = await self._make(
            lambda: read_request(content, VERSIONS, host, rights, presence, ahead, outlet), content
        )
        began = time.monotonic()
        answering = ANSWERS.get(request.api_key)
        values = await (answering(self._context, request) if answering else session.answer(request))
        seconds, metrics = time.monotonic() - began, self._context.metrics
        wire.begin()
        if (sending := outlet.take()) is not None:
            metrics.count(api_name(request), seconds, values, sending.size_bytes)
            await wire.finish(sending)
            return

        def write() -> Pieces:
            pieces = write_answer(request, values)
            metrics.count(api_name(request), seconds, values, sum(map(len, pieces)))
            return pieces

        pieces = await self._make(write, content)
        wire.begin()
        await wire.write(pieces)

    async def _make(self, make: Callable[[], _Made], content: bytes) -> _Made:
        if len(content) <= _LARGE_BYTES:
            return make()
        return await self._large.run(make, self._context.request_seconds)


def _name(wire: Wire) -> str:
    host, port = wire.peer
    return f"{host}:{port}" if host else "client"
