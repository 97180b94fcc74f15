"""s3_proxy: what did a client ask of S3, and what if S3 had answered otherwise?

A proxy before an S3 server that remembers every request, and does to those that are told what networks and servers do:
another answer, a connection that is reset, a body that ends early, no answer at all, an answer that takes its time.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    range: str
    authorization: str

    @property
    def is_listing(self) -> bool:
        """ListObjectsV2."""
        return "list-type" in self.query

    @property
    def is_get(self) -> bool:
        """Of an object."""
        return self.method == "GET" and not self.is_listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What becomes of a request: an answer of its own (`status`), the server's up to `body_bytes` of its body, behind
    which the connection ends (`is_reset`: by a reset; without `body_bytes` at once), or nothing at all (`hangs`)."""

    status: int = 0
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body_bytes: int = -1
    is_reset: bool = False
    hangs: bool = False
    is_done: bool = False


@dataclass(slots=True)
class S3Proxy:
    """`faults` are for the next requests that `strikes` chooses, one each; `delay_s` is before every answer."""

    upstream: str
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    strikes: Callable[[Request], bool] = field(default_factory=lambda: _every)
    delay_s: float = 0.0
    most_under_way: int = 0
    endpoint: str = ""
    closing: threading.Event = field(default_factory=threading.Event)
    _under_way: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def listings(self) -> list[Request]:
        """Those of listings."""
        return [each for each in self.requests if each.is_listing]

    @property
    def gets(self) -> list[Request]:
        """Those for bytes of objects."""
        return [each for each in self.requests if each.is_get]

    def begin(self) -> None:
        """As if it were new: nothing asked, nothing broken; who hangs is let go."""
        self.closing.set()
        self.closing = threading.Event()
        self.faults, self.strikes, self.delay_s = [], _every, 0.0
        self.forget()

    def forget(self) -> None:
        """What was asked so far."""
        self.requests = []
        self.most_under_way = 0

    def enter(self, request: Request) -> Fault | None:
        """Remembers a request; what is to become of it."""
        with self._lock:
            self.requests.append(request)
            self._under_way += 1
            self.most_under_way = max(self.most_under_way, self._under_way)
            return self.faults.pop(0) if self.faults and self.strikes(request) else None

    def leave(self) -> None:
        """Behind the answer."""
        with self._lock:
            self._under_way -= 1


def _every(_: Request) -> bool:
    return True


@contextmanager
def running_proxy(upstream: str, port: int = 0) -> Iterator[S3Proxy]:
    """A proxy before `upstream`, until the end of the block; `port`: where one was before, as if it came up again."""
    proxy = S3Proxy(upstream)
    server = _Server(("127.0.0.1", port), _Handler)
    server.proxy = proxy
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    proxy: S3Proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is several writes: each would wait 40 ms for the client's delayed acknowledgement of the one before.
    disable_nagle_algorithm = True
    server: _Server
    _is_under_way = False

    def do_GET(self) -> None:
        proxy = self.server.proxy
        parts = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=parts.path,
            query=parse_qs(parts.query, keep_blank_values=True),
            range=self.headers.get("Range", ""),
            authorization=self.headers.get("Authorization", ""),
        )
        # Whatever becomes of the request, the connection is at the next one.
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = proxy.enter(request)
        self._is_under_way = True
        try:
            if fault is not None and fault.hangs:
                proxy.closing.wait()
                self.close_connection = True
            elif fault is not None and fault.status:
                if fault.is_done:
                    self._ask(body)
                self._answer(fault)
            elif fault is not None and fault.body_bytes < 0:
                self._hang_up(fault)
            else:
                proxy.closing.wait(proxy.delay_s)
                self._forward(body, fault)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._is_under_way:
            self._is_under_way = False
            self.server.proxy.leave()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the base class's names

    def log_message(self, *_: object) -> None:
        """Silent."""

    def _answer(self, fault: Fault) -> None:
        text = (
            f"<Error><Code>{fault.code}</Code><Message>the key AKIAREADERSKEYISHERE</Message>"
            "<AWSAccessKeyId>AKIAREADERSKEYISHERE</AWSAccessKeyId></Error>"
        )
        body = text.encode() if fault.code and self.command != "HEAD" else b""
        self.send_response(fault.status)
        for name, value in (*fault.headers, ("Content-Type", "application/xml"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        """The server's answer and its body."""
        connection = http.client.HTTPConnection(urlsplit(self.server.proxy.upstream).netloc)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        answer, content = self._ask(body)
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        told = content if fault is None else content[: fault.body_bytes]
        # Whoever has the last byte may ask for more before this thread comes to its next line.
        self.wfile.write(told[:-1])
        self._leave()
        self.wfile.write(told[-1:])
        if fault is not None:
            self._hang_up(fault)

    def _hang_up(self, fault: Fault) -> None:
        self.wfile.flush()
        self.close_connection = True
        if fault.is_reset:
            # Nothing lingers: what is sent instead of an end is a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
