"""Test which complete answers of S3 are accepted, and how an endpoint without an answer is reported.

A test server answers like S3 for a bucket with one object and one directory, in the form of AWS's reference. Each test
changes these answers.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest

from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_environment import shown_address
from coldlog.archive.stores.s3_store import S3Store, open_s3_store
from coldlog.errors import ColdlogError, RetriableError, UsageError
from servers.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

CONTENT = bytes(range(256)) * 64
SIZE = len(CONTENT)
ETAG = '"0123456789abcdef0123456789abcdef"'
DATE = "Mon, 23 Feb 2026 03:21:42 GMT"
LISTING = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>arc</Name><Prefix>p/</Prefix>'
    "<KeyCount>2</KeyCount><MaxKeys>1000</MaxKeys><Delimiter>/</Delimiter><IsTruncated>false</IsTruncated>"
    "<Contents><Key>p/log</Key><LastModified>2026-02-23T03:21:42.000Z</LastModified>"
    f"<ETag>&quot;{ETAG[1:-1]}&quot;</ETag><Size>{SIZE}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    "<CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes></ListBucketResult>"
)
TWICE = S3Options(first_delay_ms=1, max_delay_ms=2, max_attempts=2, read_timeout_ms=5000, part_bytes=4096)
PAGE = b"<html><body>log in with SECRET-OF-A-PAGE</body></html>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer; without `Content-Length` its body ends with the connection."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def with_headers(self, **headers: str) -> Answer:
        """The answer with other headers; an empty header is removed."""
        changed = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        return replace(self, headers={name: value for name, value in changed.items() if value})

    def with_body(self, body: bytes) -> Answer:
        """The answer with another body and its length."""
        return replace(self.with_headers(Content_Length=str(len(body))), body=body)


Bend = Callable[[Answer], Answer]
Ask = Callable[[S3Store], object]


@dataclass(slots=True)
class BentServer:
    """`bends`: changes of the answers to listings (`list`), GET (`get`) and HEAD (`head`); `asked` has the requests."""

    endpoint: str = ""
    bends: dict[str, Bend] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def answer(self, kind: str, wanted: str) -> Answer:
        """The answer to a request for the bytes `wanted`."""
        self.asked.append(kind)
        answer, bend = _true_answer(kind, wanted), self.bends.get(kind)
        return bend(answer) if bend else answer


def _true_answer(kind: str, wanted: str) -> Answer:
    if kind == "list":
        return Answer(headers={"Content-Type": "application/xml"}).with_body(LISTING.encode())
    headers = {"ETag": ETAG, "Last-Modified": DATE, "Accept-Ranges": "bytes", "Content-Length": str(SIZE)}
    if kind == "head":
        return Answer(headers=headers)
    first, last = (int(each) for each in wanted.removeprefix("bytes=").split("-"))
    body = CONTENT[first : last + 1]
    ranged = Answer(status=206, headers=headers).with_headers(
        Content_Range=f"bytes {first}-{first + len(body) - 1}/{SIZE}"
    )
    return ranged.with_body(body)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    bent: BentServer

    def do_GET(self) -> None:
        kind = "list" if "list-type" in self.path else "get" if self.command == "GET" else "head"
        answer = self.bent.answer(kind, self.headers.get("Range", ""))
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Connection", "close")
        self.end_headers()
        if kind != "head":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a client that rejects an answer closes the connection."""


@contextmanager
def _running() -> Iterator[BentServer]:
    bent = BentServer()
    server = _Server(("127.0.0.1", 0), type("_BentHandler", (_Handler,), {"bent": bent}))
    bent.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield bent
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def module_server() -> Iterator[BentServer]:
    """One server for all tests, because a client is created for each endpoint."""
    with _running() as bent:
        yield bent


@pytest.fixture
def server(module_server: BentServer, monkeypatch: pytest.MonkeyPatch) -> BentServer:
    """The server with unchanged answers."""
    for name, value in S3Server(endpoint=module_server.endpoint).environment().items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        monkeypatch.delenv(name, raising=False)
    module_server.bends, module_server.asked = {}, []
    return module_server


@pytest.fixture
def store(server: BentServer) -> S3Store:
    return open_s3_store("s3://arc/p", TWICE)


def refusal(ask: Ask, store: S3Store) -> ColdlogError:
    """The error; its traceback contains neither secrets nor words of the answer."""
    with pytest.raises(ColdlogError) as refused:
        ask(store)
    shown = "".join(traceback.format_exception(refused.value)) + repr(refused.value.__dict__)
    for secret in (ACCESS_KEY, SECRET_KEY, "SECRET-OF-A-PAGE", "://127.0.0.1", "botocore.exceptions"):
        assert secret not in shown
    return refused.value


def list_all(store: S3Store) -> object:
    return [*store.iter_directories(""), *((each.name, each.size_bytes) for each in store.iter_objects(""))]


def read(position: int, length: int) -> Ask:
    return lambda store: store.read_range("log", position, length)


def ask_size(store: S3Store) -> object:
    return store.size_bytes("log")


def in_listing(pattern: str, changed: str) -> Bend:
    """The listing with this pattern replaced."""

    def bend(answer: Answer) -> Answer:
        text, count = re.subn(pattern, changed, answer.body.decode())
        assert count == 1
        return answer.with_body(text.encode())

    return bend


def test_correct_answers_are_accepted(store: S3Store, server: BentServer) -> None:
    assert list_all(store) == ["d", ("log", SIZE)]
    assert ask_size(store) == SIZE
    for position, length in ((0, 100), (0, SIZE), (5, 5), (1000, 2 * SIZE)):
        assert store.read_range("log", position, length) == CONTENT[position : position + length]
    assert "head" not in server.asked[3:], "a range needs no other question"


# Listings

NO_LISTINGS: dict[str, Bend] = {
    "an empty body": lambda answer: answer.with_body(b""),
    "no content": lambda _: Answer(status=204),
    "a page": lambda answer: answer.with_body(PAGE),
    "a document of S3": lambda answer: answer.with_body(b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>"),
    "no word of more": in_listing("<IsTruncated>false</IsTruncated>", ""),
    "a part without a way on": in_listing("<IsTruncated>false", "<IsTruncated>true"),
    "no name": in_listing("<Key>p/log</Key>", ""),
    "no size": in_listing(f"<Size>{SIZE}</Size>", ""),
    "no date": in_listing("<LastModified>.*</LastModified>", ""),
    "a negative size": in_listing(f"<Size>{SIZE}", "<Size>-5"),
    "a size that is no number": in_listing(f"<Size>{SIZE}", "<Size>much"),
    "two sizes": in_listing("<Size>", "<Size>1</Size><Size>"),
    "a date that is none": in_listing("<LastModified>[^<]*", "<LastModified>never"),
    "a key outside the prefix": in_listing("<Key>p/", "<Key>q/"),
    "a directory outside the prefix": in_listing("<Prefix>p/d/", "<Prefix>q/d/"),
    "a directory without a name": in_listing("<Prefix>p/d/</Prefix>", ""),
}


@pytest.mark.parametrize("damage", NO_LISTINGS)
def test_damaged_listing_is_not_an_empty_directory(store: S3Store, server: BentServer, damage: str) -> None:
    server.bends = {"list": NO_LISTINGS[damage]}
    for ask in (list_all, lambda each: each.has_any_object()):
        server.asked.clear()
        error = refusal(ask, store)
        assert isinstance(error, RetriableError), error
        assert server.asked == ["list"] * TWICE.max_attempts
        assert "the request for s3://arc/p was answered with" in str(error)
        assert f"from {urlsplit(server.endpoint).netloc}; if that is the wrong server, correct AWS_EN" in str(error)


@pytest.mark.parametrize(
    "body", [b"<html><p>SECRET-OF-A-PAGE", LISTING[:300].encode(), b"<Error><Code>InternalError</Code></Error>"]
)
def test_cut_listing_and_listing_with_an_error_are_failures_of_the_server(
    store: S3Store, server: BentServer, body: bytes
) -> None:
    server.bends = {"list": lambda answer: answer.with_body(body)}
    error = refusal(list_all, store)
    assert isinstance(error, RetriableError)
    assert "was answered HTTP 500" in str(error)


@pytest.mark.timeout(60)
def test_listing_with_a_repeated_token_ends_with_an_error(store: S3Store, server: BentServer) -> None:
    server.bends = {
        "list": in_listing(
            "<IsTruncated>false</IsTruncated>",
            "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>",
        )
    }
    assert isinstance(refusal(list_all, store), RetriableError)
    assert len(server.asked) == 1 + TWICE.max_attempts


# Ranges


def in_range(changed: str) -> Bend:
    """The answer with another `Content-Range`, or without it if empty."""
    return lambda answer: answer.with_headers(Content_Range=changed.format(size=SIZE, last=len(answer.body) - 1))


def without_length(more: bytes) -> Bend:
    """The answer with a body that ends with the connection and is longer than requested."""
    return lambda answer: replace(answer.with_headers(Content_Length=""), body=answer.body + more)


NO_RANGES: dict[str, Bend] = {
    "no range": in_range(""),
    "of an unknown size": lambda answer: answer.with_headers(
        Content_Range=answer.headers["Content-Range"].replace(f"/{SIZE}", "/*")
    ),
    "one byte further": lambda answer: answer.with_headers(
        Content_Range=re.sub(r"\d+", lambda found: str(int(found[0]) + 1), answer.headers["Content-Range"])
    ),
    "of a huge object": in_range("bytes 0-{last}/99999999999999999999999"),
    "after the end": in_range("bytes 0-1/1"),
    "with a longer body": lambda answer: answer.with_body(answer.body + b"more"),
    "with a shorter body": lambda answer: answer.with_body(answer.body[:-1]),
    "with more bytes than it says": without_length(b"more"),
    "a page": lambda _: Answer().with_body(PAGE),
    "a page that is tagged": lambda _: Answer(headers={"ETag": '"page"'}).with_body(PAGE),
    "a page with a range": lambda answer: replace(answer, status=200).with_body(PAGE),
    "no content": lambda _: Answer(status=204),
    "an empty body": lambda _: Answer().with_body(b""),
    "a date that is none": lambda answer: answer.with_headers(Last_Modified="never"),
}


@pytest.mark.parametrize(("position", "length"), [(0, 100), (0, SIZE), (1000, 100), (1000, 9000)])
@pytest.mark.parametrize("damage", NO_RANGES)
def test_wrong_answer_to_a_range_request_is_retriable(
    store: S3Store, server: BentServer, damage: str, position: int, length: int
) -> None:
    server.bends = {"get": NO_RANGES[damage]}
    error = refusal(read(position, length), store)
    assert isinstance(error, RetriableError), error
    assert server.asked.count("get") == TWICE.max_attempts
    assert "the request for log of s3://arc/p was answered with" in str(error)
    server.bends = {}
    assert store.read_range("log", position, length) == CONTENT[position : position + length]


@pytest.mark.parametrize("damage", NO_RANGES)
def test_every_part_of_a_range_is_checked(store: S3Store, server: BentServer, damage: str) -> None:
    first = f"bytes 0-{TWICE.part_bytes - 1}/"

    def bend(answer: Answer) -> Answer:
        return answer if answer.headers["Content-Range"].startswith(first) else NO_RANGES[damage](answer)

    server.bends = {"get": bend}
    assert isinstance(refusal(read(0, SIZE), store), RetriableError)


def test_body_without_a_length_is_read_to_its_end(store: S3Store, server: BentServer) -> None:
    server.bends = {"get": without_length(b"")}
    assert store.read_range("log", 1000, 9000) == CONTENT[1000:10_000]


def whole(accepts: str) -> Bend:
    """The whole object instead of a range."""
    return lambda answer: (
        replace(answer, status=200).with_headers(Content_Range="", Accept_Ranges=accepts).with_body(CONTENT)
    )


def test_whole_object_is_accepted_for_its_beginning_if_head_agrees(store: S3Store, server: BentServer) -> None:
    server.bends = {"get": whole("bytes")}
    assert store.read_range("log", 0, 100) == CONTENT[:100]
    assert server.asked == ["get", "head"]
    server.bends["head"] = lambda answer: answer.with_headers(ETag='"another"')
    assert isinstance(refusal(read(0, 100), store), RetriableError)


def test_only_a_server_without_accept_ranges_is_a_usage_error(store: S3Store, server: BentServer) -> None:
    server.bends = {"get": whole("bytes")}
    error = refusal(read(1000, 100), store)
    assert isinstance(error, RetriableError)
    assert "the whole object to a range request" in str(error)
    server.bends = {"get": whole(""), "head": lambda answer: answer.with_headers(Accept_Ranges="none")}
    error = refusal(read(1000, 100), store)
    assert isinstance(error, UsageError)
    assert "does not support range requests" in str(error)


# Sizes

NO_SIZES: dict[str, Bend] = {
    "no length": lambda answer: answer.with_headers(Content_Length=""),
    "a length below 0": lambda answer: answer.with_headers(Content_Length="-5"),
    "a page": lambda _: Answer().with_body(PAGE),
    "no content": lambda _: Answer(status=204),
    "a date that is none": lambda answer: answer.with_headers(Last_Modified="never"),
}


@pytest.mark.parametrize("damage", NO_SIZES)
def test_damaged_answer_to_head_is_not_a_size(store: S3Store, server: BentServer, damage: str) -> None:
    server.bends = {"head": NO_SIZES[damage]}
    assert isinstance(refusal(ask_size, store), RetriableError)
    server.bends = {}
    assert ask_size(store) == SIZE


# Endpoints


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
@pytest.mark.parametrize("ask", [list_all, ask_size, read(0, 9)])
def test_endpoint_without_answer_is_named_with_its_variable(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, variable: str, ask: Ask
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv(variable, "http://127.0.0.1:1/SECRET-OF-A-PAGE")
    error = refusal(ask, store)
    assert isinstance(error, RetriableError)
    assert str(error).endswith(
        f"got no answer (EndpointConnectionError) from 127.0.0.1:1; if that is the wrong server, correct {variable}; "
        "try again (attempts: 2)"
    )


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_missing_bucket_is_reported_with_the_endpoint_variable(
    store: S3Store, server: BentServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv(variable, server.endpoint)
    server.bends = {"list": lambda _: Answer(status=404).with_body(b"<Error><Code>NoSuchBucket</Code></Error>")}
    assert str(refusal(list_all, store)) == f"no bucket arc: correct s3://arc/p, or the endpoint ({variable})"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:5999", "localhost:5999", "http://", "ftp://host", "http://h:port", "AKIA:SECRET-OF-A-PAGE@host"]
)
@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_endpoint_that_is_not_an_address_is_refused(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, variable: str, url: str
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv(variable, url)
    error = refusal(list_all, store)
    assert isinstance(error, UsageError)
    assert str(error) == f"{variable} is not the address of an S3 server; use http://host:port or https://host"


def test_endpoint_of_a_profile_that_is_not_an_address_is_refused(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = tmp_path_factory.mktemp("aws") / "config"
    config.write_text("[default]\nendpoint_url = 127.0.0.1:5999\n")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert "endpoint_url of the profile is not the address of an S3 server" in str(refusal(list_all, store))


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:5999/arc?list-type=2", "127.0.0.1:5999"),
        ("https://arc.s3.eu-north-1.amazonaws.com/p", "arc.s3.eu-north-1.amazonaws.com"),
        ("https://[::1]:9000/", "[::1]:9000"),
        ("http://user:S3CRET@host:9000/", "host:9000"),
        ("http://user:p@ss@host:9000/", "host:9000"),
        ("http://S3C/RET@host:9000", ""),
        ("http://S3C?RET@host", ""),
        ("http://S3C#RET@host", ""),
        ("http://user:S3C/RET@host", ""),
        ("http://S3C RET", ""),
        ("127.0.0.1:5999", ""),
        ("", ""),
    ],
)
def test_only_host_and_port_of_an_endpoint_are_shown(url: str, address: str) -> None:
    assert shown_address(url) == address
