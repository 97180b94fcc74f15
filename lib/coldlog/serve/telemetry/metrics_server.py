"""Answer Prometheus and whoever supervises the endpoint, over HTTP: /metrics, /healthz, /readyz.

/healthz says that the process serves connections; /readyz that it takes new ones, could open the newest tables when it
looked for them last, and is known to the endpoints that it shares groups with. Every connection is for one request.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from coldlog.serve.context import Context

_MOST_HEADER_BYTES = 16 * 1024
_PATIENCE_S = 10.0
_TEXT = "text/plain; charset=utf-8"


async def start_metrics_server(context: Context, host: str, port: int) -> int:
    """Listen, and return the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PATIENCE_S):
                line, _, _ = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
                writer.write(_answer(context, line.decode("latin-1").split(" ")))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, port, limit=_MOST_HEADER_BYTES)
    return int(server.sockets[0].getsockname()[1])


def _answer(context: Context, asked: list[str]) -> bytes:
    method, path = (asked[0], asked[1].partition("?")[0]) if len(asked) == 3 else ("", "")
    unready = context.unready
    kind, status, body = _TEXT, "200 OK", b"ok\n"
    if method not in ("GET", "HEAD"):
        status, body = "405 Method Not Allowed", b"GET only\n"
    elif path == "/metrics":
        kind, body = CONTENT_TYPE_LATEST, generate_latest(context.metrics.registry)
    elif path == "/readyz" and unready:
        status, body = "503 Service Unavailable", f"{unready}\n".encode()
    elif path not in ("/readyz", "/healthz"):
        status, body = "404 Not Found", b"/metrics, /healthz, /readyz\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if method == "HEAD" else body)
