"""Send requests to S3 and repeat those that may succeed later.

Each process has one `S3Client` for each set of options and AWS environment: an s3fs session, which finds credentials,
endpoint and region as every AWS tool does, on an event loop in its own thread. A client cannot be pickled. Clients are
kept by process id, so that a forked child never uses its parent's client. (The child does not close it either: that
would wake the parent's loop.)

Only this module retries. botocore tries once, and s3fs's own calls, which also retry, are not used: neither notices a
cut body, and the pauses of s3fs have no jitter. (If a connection ends without an answer, aiohttp repeats the request
once immediately, because the server may have closed a kept connection.) A request that may succeed later
(`s3_failures`) is made at most `max_attempts` times. The pause between attempts doubles from `first_delay_ms` to
`max_delay_ms`. It is randomly shortened by up to a half, so that throttled tasks do not retry at the same moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from coldlog.archive.stores.s3_answers import ListedPage, fill, read_head_bytes, read_object_bytes, read_page
from coldlog.archive.stores.s3_environment import create_s3_file_system
from coldlog.archive.stores.s3_failures import (
    DamagedAnswerError,
    S3Target,
    are_credentials_refused,
    error_for,
    has_status_only,
    replaced,
    status_of,
)
from coldlog.archive.stores.s3_listing_parser import LISTING_EVENT, take_entries
from coldlog.errors import RetriableError

_Result = TypeVar("_Result")
_CONNECTIONS = 64
_ENVIRONMENT = re.compile(r"AWS_|(https?|no|all)_proxy", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Time-outs, number of attempts, and sizes of requests.

    `part_bytes` is the largest range of one request; one read has at most `parts_at_once` concurrent requests.
    `read_ahead_bytes` limits what is fetched ahead of a sequential read, for each thread.
    """

    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 30_000
    max_attempts: int = 8
    first_delay_ms: int = 250
    max_delay_ms: int = 20_000
    part_bytes: int = 8 << 20
    parts_at_once: int = 8
    read_ahead_bytes: int = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRange:
    """A range of an object; `content` is shorter than requested at the object's end; `etag` identifies the version."""

    content: memoryview
    object_bytes: int
    etag: str


class Pause(Protocol):
    """Waits for this number of seconds."""

    def __call__(self, seconds: float, /) -> Awaitable[object]: ...


class S3Client:
    """The requests of one process, for all of its threads."""

    def __init__(
        self, options: S3Options, *, pause: Pause = asyncio.sleep, jitter: Callable[[], float] = random.random
    ) -> None:
        self.options = options
        self.per_thread = threading.local()
        self.is_stale = False
        self._pause = pause
        self._jitter = jitter
        self._prepared: Any = None
        self._files = create_s3_file_system(
            connect_timeout=options.connect_timeout_ms / 1000,
            read_timeout=options.read_timeout_ms / 1000,
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
        )

    def start(self, request: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Start a request; the future has its result or a `ColdlogError`."""
        return asyncio.run_coroutine_threadsafe(request, self._files.loop)

    def close(self) -> None:
        """Close the connections."""
        if self._files._s3 is not None:
            self._files.close_session(self._files.loop, self._files._s3creator)

    async def fetch_range(self, target: S3Target, key: str, position: int, length: int) -> FetchedRange:
        """Fetch one range by one request; it is shorter than `length` only at the object's end."""
        arguments = {"Bucket": target.bucket, "Key": key, "Range": f"bytes={position}-{position + length - 1}"}

        async def attempt(s3: Any) -> FetchedRange:
            try:
                answer = await s3.get_object(**arguments)
            except Exception as failure:
                if status_of(failure) == 416:
                    return FetchedRange(content=memoryview(b""), object_bytes=position, etag="")
                raise
            async with answer["Body"] as body:
                object_bytes = await read_object_bytes(s3, answer, target, key, position, length)
                # numpy does not fill the buffer with zeros first.
                window = np.empty(min(length, object_bytes - position), dtype=np.uint8).data
                await fill(window, body, answer)
            return FetchedRange(content=window.toreadonly(), object_bytes=object_bytes, etag=answer.get("ETag", ""))

        return await self.ask(target, attempt)

    async def fetch_part(self, target: S3Target, key: str, position: int, part: memoryview, etag: str) -> None:
        """Fill `part` by one request with the bytes from `position` on of the version `etag`.

        If the object has another version now, the error is OBJECT_UNREADABLE.
        """
        wanted = f"bytes={position}-{position + len(part) - 1}"
        arguments = {"Bucket": target.bucket, "Key": key, "Range": wanted} | ({"IfMatch": etag} if etag else {})

        async def attempt(s3: Any) -> None:
            try:
                answer = await s3.get_object(**arguments)
            except Exception as failure:
                if status_of(failure) == 416:
                    raise replaced(target) from None
                raise
            async with answer["Body"] as body:
                if await read_object_bytes(s3, answer, target, key, position, len(part)) - position < len(part):
                    raise replaced(target)
                await fill(part, body, answer)

        await self.ask(target, attempt)

    async def fetch_size(self, target: S3Target, key: str) -> int:
        """The object's current size."""

        async def attempt(s3: Any) -> int:
            try:
                return read_head_bytes(await s3.head_object(Bucket=target.bucket, Key=key))
            except Exception as failure:
                if not has_status_only(failure):
                    raise
            # The reason of a refusal is in the body, which only an answer to GET has.
            answer = await s3.get_object(Bucket=target.bucket, Key=key)
            async with answer["Body"]:
                return read_head_bytes(answer)

        return await self.ask(target, attempt)

    async def list_page(self, target: S3Target, prefix: str, token: str = "", most_keys: int = 0) -> ListedPage:
        """One page of the entries whose keys begin with `prefix` and have no `/` after it but at the end."""
        arguments: dict[str, object] = {"Bucket": target.bucket, "Prefix": prefix, "Delimiter": "/"}
        arguments |= {"ContinuationToken": token} if token else {}
        arguments |= {"MaxKeys": most_keys} if most_keys else {}

        async def attempt(s3: Any) -> ListedPage:
            try:
                return read_page(await s3.list_objects_v2(**arguments), prefix, token)
            except KeyError:
                raise DamagedAnswerError("a listing with an incomplete entry") from None

        return await self.ask(target, attempt)

    async def ask(self, target: S3Target, attempt: Callable[[Any], Awaitable[_Result]]) -> _Result:
        """Call `attempt` with botocore's client and return its result; repeat it up to `max_attempts` times."""
        for number in range(1, self.options.max_attempts + 1):
            try:
                return await attempt(await self._open())
            except Exception as failure:  # noqa: BLE001 - every failure of botocore becomes an error of coldlog
                error = error_for(failure, target)
                # The next client reads the credentials again.
                self.is_stale = self.is_stale or are_credentials_refused(failure)
            if not isinstance(error, RetriableError) or number == self.options.max_attempts:
                break
            await self._pause(delay_s(self.options, number, self._jitter()))
        raise RetriableError(f"{error} (attempts: {number})") if isinstance(error, RetriableError) else error

    async def _open(self) -> Any:
        """botocore's client, which s3fs makes anew when its credentials have changed."""
        s3 = await self._files.set_session()
        if s3 is not self._prepared:
            s3.meta.events.register(LISTING_EVENT, take_entries)
            self._prepared = s3
        return s3


def delay_s(options: S3Options, attempt: int, jitter: float) -> float:
    """The pause in seconds after attempt number `attempt` (the first is 1); `jitter` is in [0, 1)."""
    whole = min(options.max_delay_ms, options.first_delay_ms << (attempt - 1))
    return whole * (1 - jitter / 2) / 1000


def client_of_process(options: S3Options) -> S3Client:
    """This process's client for these options and the current AWS environment; created if there is none."""
    key = (os.getpid(), options, _environment())
    with _lock:
        if key in _clients and _clients[key].is_stale:
            _clients.pop(key).close()
        if key not in _clients:
            _clients[key] = S3Client(options)
        return _clients[key]


def close_clients() -> None:
    """Close the clients of this process; the next request creates a new one."""
    with _lock:
        for key in [key for key in _clients if key[0] == os.getpid()]:
            _clients.pop(key).close()


def _environment() -> str:
    """A digest of the variables that select credentials and endpoint; a change of them needs another client."""
    variables = sorted(variable for variable in os.environ.items() if _ENVIRONMENT.match(variable[0]))
    return hashlib.sha256(repr(variables).encode("utf-8", "surrogateescape")).hexdigest()


_clients: dict[tuple[int, S3Options, str], S3Client] = {}
_lock = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked child: another thread of the parent may have held it."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
