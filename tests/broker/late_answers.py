"""A port in front of a broker whose answers arrive late: bytes and the end of a connection then arrive together."""

from __future__ import annotations

import contextlib
import select
import socketserver
import threading
import time
from collections.abc import Iterator
from socket import MSG_MORE, MSG_PEEK, SHUT_WR, create_connection, socket

_LATE_S = 0.3
"""Longer than a broker waits between a refusal and the end (`connection.failed.authentication.delay.ms`, 100)."""


@contextlib.contextmanager
def late_answers(broker_port: int) -> Iterator[int]:
    """Forward connections to the broker's port; give the port to connect to."""

    class Forwarded(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with create_connection(("127.0.0.1", broker_port)) as broker:
                threading.Thread(target=_forward, args=(self.request, broker, 0.0), daemon=True).start()
                _forward(broker, self.request, _LATE_S)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forwarded) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def _forward(source: socket, target: socket, late_s: float) -> None:
    """Send on what the source sends; its last bytes together with its end. Either side may break the connection."""
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 20):
            time.sleep(late_s)
            is_last = _is_readable(source) and not source.recv(1, MSG_PEEK)
            target.sendall(piece, MSG_MORE if is_last else 0)
        target.shutdown(SHUT_WR)


def _is_readable(source: socket) -> bool:
    """Whether bytes or the end can be read at once."""
    return bool(select.select([source], [], [], 0)[0])
