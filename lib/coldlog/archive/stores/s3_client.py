"""s3_client: how does one process ask S3, and how often?

Each process has one `S3Client` for the same options and the same AWS environment: an s3fs session, which finds
credentials, endpoint and region as every AWS tool does, on the event loop of a thread of its own. Nothing of it can be
pickled, and a forked child never touches its parent's: clients are kept by process id. (That of the parent is never
dropped in the child either: to close it would wake the parent's loop.)

All retrying is done here, in one layer: botocore tries once, and s3fs's own calls, which retry too, are not used,
because neither sees a body that is cut and the pauses of s3fs have no jitter. (aiohttp sends a request anew, once and
at once, whose connection ends without an answer: one that was kept may have been closed by the other side.) A request
that may succeed later (`s3_failures`) is made `max_attempts` times; the pause before each further one doubles from
`first_delay_ms` to `max_delay_ms`, and is shortened at random by up to a half so that many tasks that were throttled do
not come back together.
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

from coldlog.archive.stores.s3_answers import ListedPage, fill, read_object_bytes, read_page, told_bytes
from coldlog.archive.stores.s3_environment import create_s3_file_system
from coldlog.archive.stores.s3_failures import (
    Asked,
    DamagedAnswerError,
    are_credentials_refused,
    error_for,
    is_told_by_status_alone,
    replaced,
    status_of,
)
from coldlog.errors import RetriableError

_Result = TypeVar("_Result")
_CONNECTIONS = 64
_ENVIRONMENT = re.compile(r"AWS_|(https?|no|all)_proxy", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """How long to wait, how often to ask, how much to fetch at once.

    `part_bytes` is the largest range of one request; `parts_at_once` how many of them one read has under way.
    `read_ahead_bytes` bounds what is fetched behind a read that walks through an object, for each thread that walks.
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
    """A range of an object: `content` is shorter than asked where the object ends; `etag` is of its current content."""

    content: memoryview
    object_bytes: int
    etag: str


class Pause(Protocol):
    """Waits so many seconds."""

    def __call__(self, seconds: float, /) -> Awaitable[object]: ...


class S3Client:
    """Requests of one process; for all of its threads."""

    def __init__(
        self, options: S3Options, *, pause: Pause = asyncio.sleep, jitter: Callable[[], float] = random.random
    ) -> None:
        self.options = options
        self.per_thread = threading.local()
        self.is_stale = False
        self._pause = pause
        self._jitter = jitter
        self._files = create_s3_file_system(
            connect_timeout=options.connect_timeout_ms / 1000,
            read_timeout=options.read_timeout_ms / 1000,
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
        )

    def start(self, request: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Begins a request; its result, or a `ColdlogError`, can be waited for."""
        return asyncio.run_coroutine_threadsafe(request, self._files.loop)

    def close(self) -> None:
        """Ends its connections."""
        if self._files._s3 is not None:
            self._files.close_session(self._files.loop, self._files._s3creator)

    async def fetch_range(self, asked: Asked, key: str, position: int, length: int) -> FetchedRange:
        """One request for one range; it is shorter than `length` only where the object ends."""
        arguments = {"Bucket": asked.bucket, "Key": key, "Range": f"bytes={position}-{position + length - 1}"}

        async def attempt(s3: Any) -> FetchedRange:
            try:
                answer = await s3.get_object(**arguments)
            except Exception as failure:
                if status_of(failure) == 416:
                    return FetchedRange(content=memoryview(b""), object_bytes=position, etag="")
                raise
            async with answer["Body"] as body:
                object_bytes = await read_object_bytes(s3, answer, asked, key, position, length)
                # numpy does not fill the buffer with zeros first.
                window = np.empty(min(length, object_bytes - position), dtype=np.uint8).data
                await fill(window, body, answer)
            return FetchedRange(content=window.toreadonly(), object_bytes=object_bytes, etag=answer.get("ETag", ""))

        return await self.ask(asked, attempt)

    async def fetch_part(self, asked: Asked, key: str, position: int, part: memoryview, etag: str) -> None:
        """Fills `part` with the bytes from `position` on of the content that `etag` names, by one request.

        An object that is of another content meanwhile is OBJECT_UNREADABLE.
        """
        wanted = f"bytes={position}-{position + len(part) - 1}"
        arguments = {"Bucket": asked.bucket, "Key": key, "Range": wanted} | ({"IfMatch": etag} if etag else {})

        async def attempt(s3: Any) -> None:
            try:
                answer = await s3.get_object(**arguments)
            except Exception as failure:
                if status_of(failure) == 416:
                    raise replaced(asked) from None
                raise
            async with answer["Body"] as body:
                if await read_object_bytes(s3, answer, asked, key, position, len(part)) - position < len(part):
                    raise replaced(asked)
                await fill(part, body, answer)

        await self.ask(asked, attempt)

    async def fetch_size(self, asked: Asked, key: str) -> int:
        """The object's size now."""

        async def attempt(s3: Any) -> int:
            try:
                return told_bytes(await s3.head_object(Bucket=asked.bucket, Key=key))
            except Exception as failure:
                if not is_told_by_status_alone(failure):
                    raise
            # What it was refused for is said in a body, which only GET has.
            answer = await s3.get_object(Bucket=asked.bucket, Key=key)
            async with answer["Body"]:
                return told_bytes(answer)

        return await self.ask(asked, attempt)

    async def list_page(self, asked: Asked, prefix: str, token: str = "", most_keys: int = 0) -> ListedPage:
        """One page of what is right below `prefix`, which is empty or ends in `/`."""
        arguments: dict[str, object] = {"Bucket": asked.bucket, "Prefix": prefix, "Delimiter": "/"}
        arguments |= {"ContinuationToken": token} if token else {}
        arguments |= {"MaxKeys": most_keys} if most_keys else {}

        async def attempt(s3: Any) -> ListedPage:
            try:
                return read_page(await s3.list_objects_v2(**arguments), prefix, token)
            except KeyError:
                raise DamagedAnswerError("a listing with an entry that lacks what each has") from None

        return await self.ask(asked, attempt)

    async def ask(self, asked: Asked, attempt: Callable[[Any], Awaitable[_Result]]) -> _Result:
        """What `attempt` returns, which is given botocore's client; made again as often as is allowed."""
        for number in range(1, self.options.max_attempts + 1):
            try:
                return await attempt(await self._files.set_session())
            except Exception as failure:  # noqa: BLE001 - every failure of botocore is told in words of coldlog
                error = error_for(failure, asked)
                # The next client looks for them anew.
                self.is_stale = self.is_stale or are_credentials_refused(failure)
            if not isinstance(error, RetriableError) or number == self.options.max_attempts:
                break
            await self._pause(delay_s(self.options, number, self._jitter()))
        raise RetriableError(f"{error} (asked {number} times)") if isinstance(error, RetriableError) else error


def delay_s(options: S3Options, attempt: int, jitter: float) -> float:
    """Seconds of the pause behind the attempt of that number, from 1; `jitter` is in [0, 1)."""
    whole = min(options.max_delay_ms, options.first_delay_ms << (attempt - 1))
    return whole * (1 - jitter / 2) / 1000


def client_of_process(options: S3Options) -> S3Client:
    """This process's client for these options, made where there is none for the AWS environment of now."""
    key = (os.getpid(), options, _environment())
    with _lock:
        if key in _clients and _clients[key].is_stale:
            _clients.pop(key).close()
        if key not in _clients:
            _clients[key] = S3Client(options)
        return _clients[key]


def close_clients() -> None:
    """Closes those of this process; the next request makes new ones."""
    with _lock:
        ours = [key for key in _clients if key[0] == os.getpid()]
        for key in ours:
            _clients.pop(key).close()


def _environment() -> str:
    """A digest of what credentials and endpoint are found by: whoever changes it means another client."""
    found = sorted(each for each in os.environ.items() if _ENVIRONMENT.match(each[0]))
    return hashlib.sha256(repr(found).encode("utf-8", "surrogateescape")).hexdigest()


_clients: dict[tuple[int, S3Options, str], S3Client] = {}
_lock = threading.Lock()


def _renew_lock() -> None:
    """Another thread of the parent may have held it."""
    global _lock  # noqa: PLW0603 - the child's own
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
