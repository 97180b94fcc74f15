"""Test every failure of S3: how often the request is repeated, and which error is raised."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from coldlog.archive.stores.s3_client import S3Client, S3Options, delay_s
from coldlog.archive.stores.s3_failures import S3Target
from coldlog.archive.stores.s3_store import S3Store, open_s3_store
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError, UsageError
from servers.s3_proxy import Fault, S3Proxy
from servers.s3_server import ACCESS_KEY, SECRET_KEY, Bucket

FAST = S3Options(first_delay_ms=1, max_delay_ms=2, max_attempts=4)
IMPATIENT = S3Options(first_delay_ms=1, max_delay_ms=2, max_attempts=3, read_timeout_ms=100)
CONTENT = bytes(range(256)) * 2000
Ask = Callable[[S3Store], object]


def read_all(store: S3Store) -> object:
    return store.read_range("log", 0, len(CONTENT)).tobytes() == CONTENT


def ask_size(store: S3Store) -> object:
    return store.size_bytes("log") == len(CONTENT)


def list_all(store: S3Store) -> object:
    return [each.name for each in store.iter_objects("")] == ["log"]


@pytest.fixture
def store(bucket: Bucket, s3_proxy: S3Proxy) -> S3Store:
    bucket.put({"p/log": CONTENT})
    s3_proxy.forget()
    return open_s3_store(bucket.uri("p"), FAST)


def refusal(ask: Ask, store: S3Store) -> ColdlogError:
    """The error; its traceback contains no word of S3's answer."""
    with pytest.raises(ColdlogError) as refused:
        ask(store)
    shown = "".join(traceback.format_exception(refused.value)) + repr(refused.value.__dict__)
    for secret in (ACCESS_KEY, SECRET_KEY, "Signature=", "AWSAccessKeyId", "://127.0.0.1"):
        assert secret not in shown
    assert "botocore.exceptions" not in shown
    return refused.value


TROUBLES = {
    "throttled": Fault(status=503, code="SlowDown"),
    "too many": Fault(status=429, code="TooManyRequestsException"),
    "internal": Fault(status=500, code="InternalError"),
    "no body": Fault(status=500),
    "gateway": Fault(status=502),
    "time-out of a gateway": Fault(status=504),
    "time-out of the server": Fault(status=400, code="RequestTimeout"),
    "reset at once": Fault(is_reset=True),
}
BROKEN_BODIES = {
    "reset before the body": Fault(body_bytes=0, is_reset=True),
    "reset in the body": Fault(body_bytes=100, is_reset=True),
    "cut before the body": Fault(body_bytes=0),
    "cut in the body": Fault(body_bytes=100),
}


@pytest.mark.parametrize("ask", [read_all, list_all, ask_size])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_temporary_failures_are_retried_until_the_request_succeeds(
    store: S3Store, s3_proxy: S3Proxy, trouble: str, ask: Ask
) -> None:
    s3_proxy.faults = [TROUBLES[trouble]] * 3
    assert ask(store)
    assert len(s3_proxy.requests) == 4


@pytest.mark.parametrize("ask", [read_all, list_all])
@pytest.mark.parametrize("trouble", BROKEN_BODIES)
def test_cut_body_is_requested_again(store: S3Store, s3_proxy: S3Proxy, trouble: str, ask: Ask) -> None:
    s3_proxy.faults = [BROKEN_BODIES[trouble]] * 3
    assert ask(store)
    assert len(s3_proxy.requests) == 4


@pytest.mark.parametrize("ask", [read_all, list_all, ask_size])
@pytest.mark.parametrize(("trouble", "sent_each_time"), [("throttled", 1), ("internal", 1), ("reset at once", 2)])
def test_permanent_failures_are_retriable_after_a_bounded_number_of_attempts(
    store: S3Store, s3_proxy: S3Proxy, trouble: str, sent_each_time: int, ask: Ask
) -> None:
    """aiohttp repeats a request at once if its connection ends without an answer: the connection may have been old."""
    s3_proxy.faults = [TROUBLES[trouble]] * 99
    error = refusal(ask, store)
    assert isinstance(error, RetriableError)
    assert len(s3_proxy.requests) == FAST.max_attempts * sent_each_time
    assert "try again (attempts: 4)" in str(error)
    assert store.uri in str(error)
    if trouble == "throttled":
        assert "HTTP 503" in str(error)


def test_request_to_a_hanging_server_ends_at_the_time_out(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put({"p/log": CONTENT})
    store = open_s3_store(bucket.uri("p"), IMPATIENT)
    s3_proxy.faults = [Fault(hangs=True)]
    assert read_all(store)
    s3_proxy.forget()
    s3_proxy.faults = [Fault(hangs=True)] * 99
    for ask in (read_all, list_all, ask_size):
        s3_proxy.forget()
        assert isinstance(refusal(ask, store), RetriableError)
        assert len(s3_proxy.requests) == IMPATIENT.max_attempts


def test_missing_server_is_retriable(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    error = refusal(list_all, open_s3_store(bucket.uri("p"), FAST))
    assert isinstance(error, RetriableError)
    assert "got no answer (EndpointConnectionError)" in str(error)


def test_pauses_double_up_to_a_limit_and_are_randomly_shortened(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    bucket.put({"p/log": CONTENT})
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    jitters = iter([0.0, 0.5, 0.999, 0.0, 0.0, 0.0, 0.0])
    client = S3Client(S3Options(), pause=pause, jitter=lambda: next(jitters))
    s3_proxy.faults = [Fault(status=503, code="SlowDown")] * 99
    target = S3Target(uri=bucket.uri("p"), bucket=bucket.name, object_name="log")
    with pytest.raises(RetriableError):
        client.start(client.fetch_range(target, "p/log", 0, 10)).result(60)
    client.close()
    assert pauses == [0.25, 0.375, pytest.approx(0.5, rel=0.01), 2.0, 4.0, 8.0, 16.0]
    assert delay_s(S3Options(), 50, 0.0) == 20.0
    assert delay_s(S3Options(), 50, 1.0) == 10.0


def refused_with(status: int, code: str = "", **headers: str) -> Fault:
    return Fault(
        status=status, code=code, headers=tuple((name.replace("_", "-"), each) for name, each in headers.items())
    )


@pytest.mark.parametrize("ask", [read_all, ask_size])
@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        (refused_with(404, "NoSuchKey"), Reason.OBJECT_MISSING, ["the archive has no such object in log"]),
        (refused_with(404), Reason.OBJECT_MISSING, ["the archive has no such object in log"]),
        (
            refused_with(403, "AccessDenied"),
            Reason.OBJECT_UNREADABLE,
            ["s3:GetObject", "AWS_PROFILE", "HTTP 403 AccessD"],
        ),
        (refused_with(403), Reason.OBJECT_UNREADABLE, ["s3:GetObject", "s3:ListBucket", "HTTP 403"]),
        (refused_with(403, "InvalidObjectState"), Reason.OBJECT_UNREADABLE, ["cold storage class", "restored"]),
        (refused_with(400, "InvalidRequest"), Reason.OBJECT_UNREADABLE, ["S3 answers HTTP 400 InvalidRequest"]),
    ],
)
def test_refused_object_is_an_archive_error_after_one_request(
    store: S3Store, s3_proxy: S3Proxy, fault: Fault, reason: Reason, words: list[str], ask: Ask
) -> None:
    s3_proxy.faults = [fault] * 99
    error = refusal(ask, store)
    assert isinstance(error, ArchiveError)
    assert (error.reason, error.object_name) == (reason, "log")
    for word in words:
        assert word in str(error)
    assert len(s3_proxy.gets) == 1
    if ask is read_all:
        assert len(s3_proxy.requests) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (refused_with(403, "AccessDenied"), ["no permission to list", "s3:ListBucket", "AWS_ACCESS_KEY_ID"]),
        (refused_with(404, "NoSuchBucket"), ["no bucket bucket-", "AWS_ENDPOINT_URL_S3"]),
        (refused_with(404), ["no bucket bucket-"]),
        (refused_with(501, "NotImplemented"), ["cannot be listed", "HTTP 501 NotImplemented"]),
    ],
)
def test_refused_listing_is_a_usage_error_after_one_request(
    store: S3Store, s3_proxy: S3Proxy, fault: Fault, words: list[str]
) -> None:
    s3_proxy.faults = [fault] * 99
    error = refusal(list_all, store)
    assert isinstance(error, UsageError)
    for word in words:
        assert word in str(error)
    assert len(s3_proxy.requests) == 1


@pytest.mark.parametrize("ask", [read_all, list_all, ask_size])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (refused_with(404, "NoSuchBucket"), ["no bucket bucket-"]),
        (refused_with(400, "ExpiredToken"), ["have expired (ExpiredToken)", "AWS_PROFILE"]),
        (refused_with(403, "InvalidAccessKeyId"), ["are not accepted (InvalidAccessKeyId)"]),
        (refused_with(404, "XAdminUserNotFound"), ["are not accepted (XAdminUserNotFound)"]),
        (refused_with(404, "SomethingElse"), ["HTTP 404 SomethingElse"]),
        (refused_with(403, "SignatureDoesNotMatch"), ["are not accepted (SignatureDoesNotMatch)"]),
        (refused_with(403, "RequestTimeTooSkewed"), ["correct the clock of this machine"]),
        (
            refused_with(301, "PermanentRedirect", x_amz_bucket_region="ap-east-1"),
            ["in another region (ap-east-1)", "AWS_REGION"],
        ),
        (refused_with(400, "AuthorizationHeaderMalformed"), ["in another region;", "AWS_REGION"]),
    ],
)
def test_mistakes_of_the_caller_are_usage_errors(
    store: S3Store, s3_proxy: S3Proxy, fault: Fault, words: list[str], ask: Ask
) -> None:
    s3_proxy.faults = [fault] * 99
    error = refusal(ask, store)
    assert isinstance(error, UsageError)
    for word in words:
        assert word in str(error)
    assert len(s3_proxy.requests) < FAST.max_attempts


def test_renewed_credentials_are_used(
    store: S3Store, s3_proxy: S3Proxy, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request after the refused one reads the new credentials file."""
    credentials = tmp_path_factory.mktemp("aws") / "credentials"
    credentials.write_text("[default]\naws_access_key_id = AKIAOLD\naws_secret_access_key = x\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    s3_proxy.faults = [refused_with(400, "ExpiredToken")]
    assert isinstance(refusal(read_all, store), UsageError)
    credentials.write_text("[default]\naws_access_key_id = AKIANEW\naws_secret_access_key = x\n")
    assert read_all(store)
    assert ["Credential=AKIANEW/" in each.authorization for each in s3_proxy.requests] == [False, True]


def test_sequential_read_continues_after_failures_of_fetches_ahead(bucket: Bucket, s3_proxy: S3Proxy) -> None:
    content = CONTENT * 16
    bucket.put({"p/log": content})
    mib = 1 << 20
    options = S3Options(part_bytes=mib, read_ahead_bytes=2 * mib, first_delay_ms=1, max_delay_ms=2, max_attempts=2)
    store = open_s3_store(bucket.uri("p"), options)
    s3_proxy.strikes = lambda request: request.range.startswith(f"bytes={2 * mib}-")
    s3_proxy.faults = [Fault(status=503, code="SlowDown")] * 2
    assert store.read_range("log", 0, mib) == content[:mib]
    assert store.read_range("log", mib, mib) == content[mib : 2 * mib]
    with pytest.raises(RetriableError, match="attempts: 2"):
        store.read_range("log", 2 * mib, mib)
    assert store.read_range("log", 2 * mib, mib) == content[2 * mib : 3 * mib]
