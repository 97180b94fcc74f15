"""warehouse_lease: who may write to a warehouse on S3 now, and what becomes of a writer that comes too late?

A job that writes holds a lease: the object `.coldlog-writers/<number>` in the warehouse, which it has put on the
condition that nothing had that name (`If-None-Match: *`), and which it puts again every few seconds. The highest number
is the writer. Another job takes the next number when that one was released, or was not put again for `ttl_s` seconds by
the store's own clock. So a job that was killed keeps others away for `ttl_s` at the most.

A lease alone protects nothing: a writer that was paused past its end may wake in the middle of a commit. So every
commit of a lease's holder carries Delta's transaction identifier `APPLICATION` with a version that begins with the
lease's number, and whoever follows a lease that was not released at a good end commits its own number to every table
before it reads any (`Warehouse.fence`). Delta makes no commit whose version is not above the newest one in the table,
and none that has met another one of the same application on its way; the late writer is told so by `confirm`.

Numbers must not fall, though the objects may get lost, by a lifecycle rule or a copy of the warehouse without them: a
commit under a number that was there before would be left out without a word. So where there is no lease a first one is
put, as number 0, that tells from the store's clock where to go on, far above all that were; it counts as left.

A store that does not honour the condition is refused with `UsageError`: it is asked, by putting the same object twice.
Errors: `LeaseHeldError` while another job writes, `LeaseLostError` when this one has lost the warehouse,
`RetriableError` when the store does not answer.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from coldlog.archive.s3_environment import create_s3_client
from coldlog.archive.s3_failures import Asked, are_credentials_refused, error_for, status_of
from coldlog.errors import ColdlogError, RetriableError, UsageError

APPLICATION = "coldlog.writer"
"""The `txnAppId` of every commit under a lease."""

FOLDER = ".coldlog-writers"
DEFAULT_TTL_S = 60.0
_COMMITS_PER_LEASE = 1 << 32
_HELD, _LEFT, _RELEASED = "held", "left", "released"
"""A lease is left where its job failed: others may write at once, but a commit of its JVM may be on its way."""
_KEPT_LEASES = 8
_FIRST = 0
_SECONDS_PER_NUMBER = 4
"""No job is that short: what is counted from the clock is above what was counted by leases."""
_MOST_NUMBERS = 1 << 31
"""What is named higher is no lease: its `txnVersion` would be no 64-bit integer."""
_NAME = re.compile(r"[0-9]{20}")


class LeaseHeldError(RetriableError):
    """Another job is writing the warehouse."""


class LeaseLostError(RetriableError):
    """Another job writes the warehouse now, or may; what this one has not published is taken up by the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    number: int
    following_number: int
    holder: str
    state: str
    age_s: float


@dataclass(slots=True, kw_only=True)
class WarehouseLease:
    """The lease `number` of the warehouse at `uri`, held by this process.

    `was_abandoned`: the one before it did not come to a good end, so its writer may still be on its way.
    """

    uri: str
    number: int
    was_abandoned: bool
    ttl_s: float
    _store: _LeaseStore
    _monotonic: Callable[[], float]
    _renewed_s: float
    _commits: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _refusal: ColdlogError | None = None

    @property
    def first_version(self) -> int:
        """The `txnVersion` that shuts out every earlier lease."""
        return self.number * _COMMITS_PER_LEASE

    def next_version(self) -> int:
        """The `txnVersion` of the next commit."""
        return self.first_version + next(self._commits)

    def require(self) -> None:
        """Refuses to go on when the lease may have ended by now."""
        if self._monotonic() - self._renewed_s > self.ttl_s:
            why = "" if self._refusal is None else f" ({self._refusal})"
            raise self._lost(f"its lease {self.number} was not renewed for {self.ttl_s:.0f} s{why}")

    def confirm(self) -> None:
        """Asks the store whether this lease is still the newest."""
        newest = self._store.find_newest()
        if newest is None or (newest.number, newest.holder) != (self.number, self._store.holder):
            by = "none" if newest is None else f"lease {newest.number} ({newest.holder})"
            raise self._lost(f"its lease {self.number} was taken over by {by}")

    def renew(self) -> None:
        """Puts the lease's object again; to be called more often than every `ttl_s`. What the store says to a turn that
        fails is told by `require`, if none succeeds in time."""
        asked_s = self._monotonic()
        try:
            self._store.put(self.number, _HELD)
        except ColdlogError as failed:
            self._refusal = failed
            # Credentials may have been put in place of those that ended.
            self._store.open_anew()
            return
        self._renewed_s, self._refusal = asked_s, None

    def release(self, *, is_finished: bool) -> None:
        """Lets others write at once; `is_finished`: no commit is on its way."""
        self._store.put(self.number, _RELEASED if is_finished else _LEFT)

    def _lost(self, why: str) -> LeaseLostError:
        return LeaseLostError(f"this job no longer writes the warehouse {self.uri}: {why}; run it again")


@contextmanager
def holding_lease(uri: str, bucket: str, prefix: str, *, ttl_s: float = DEFAULT_TTL_S) -> Iterator[WarehouseLease]:
    """A lease of the warehouse, renewed in the background and released at the end."""
    lease = take_lease(uri, bucket, prefix, ttl_s=ttl_s)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(ttl_s / 4):
            lease.renew()

    thread = threading.Thread(target=renew, name="coldlog-lease", daemon=True)
    thread.start()
    is_finished = False
    try:
        yield lease
        is_finished = True
    finally:
        ended.set()
        thread.join()
        # What is done is done: a lease that cannot be released now ends by itself.
        with suppress(ColdlogError):
            lease.release(is_finished=is_finished)


def take_lease(
    uri: str, bucket: str, prefix: str, *, ttl_s: float, monotonic: Callable[[], float] = time.monotonic
) -> WarehouseLease:
    """The next lease, if the newest one has ended."""
    store = _LeaseStore(bucket, f"{prefix}/{FOLDER}/" if prefix else f"{FOLDER}/", uri)
    newest = store.find_newest() or store.begin()
    if newest.state == _HELD and newest.age_s <= ttl_s:
        raise LeaseHeldError(
            f"another job ({newest.holder}) is writing the warehouse {uri}; run one at a time. If it was killed, its "
            f"lease ends in {max(1, round(ttl_s - newest.age_s))} s"
        )
    number = newest.following_number
    asked_s = monotonic()
    if not store.create(number):
        raise LeaseHeldError(f"another job has just begun to write the warehouse {uri}; run one at a time")
    if store.create(number):
        raise UsageError(
            f"the store of {uri} puts objects although they exist (If-None-Match is ignored): two jobs would overwrite "
            "each other's commits; use a store with conditional writes, or a warehouse elsewhere"
        )
    store.forget_before(number - _KEPT_LEASES)
    return WarehouseLease(
        uri=uri,
        number=number,
        was_abandoned=newest.state != _RELEASED,
        ttl_s=ttl_s,
        _store=store,
        _monotonic=monotonic,
        _renewed_s=asked_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """What a lease's object says."""

    holder: str
    state: str
    counted_from: int


def _read_content(content: bytes) -> _Content:
    """Of an object that says nothing to be understood, somebody is taken for its holder, until it is too old."""
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        told = None
    told = told if isinstance(told, dict) else {}
    holder, state, counted_from = (told.get(name) for name in ("holder", "state", "counted_from"))
    return _Content(
        holder=holder if isinstance(holder, str) else "unknown: its lease cannot be read",
        state=state if state in (_LEFT, _RELEASED) else _HELD,
        counted_from=counted_from if isinstance(counted_from, int) and 0 < counted_from < _MOST_NUMBERS else 0,
    )


def _time_of(answer: Mapping[str, Any]) -> datetime:
    """The store's time when it answered."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


class _LeaseStore:
    """The lease objects below `folder` of a bucket."""

    def __init__(self, bucket: str, folder: str, uri: str) -> None:
        self._bucket, self._folder, self._uri = bucket, folder, uri
        self.holder = f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}"
        self._client = create_s3_client()

    def open_anew(self) -> None:
        """With the credentials that there are now."""
        with suppress(ColdlogError):
            self._client = create_s3_client()

    def find_newest(self) -> _Newest | None:
        """The lease with the highest number."""
        numbers = self._list_numbers()
        if not numbers:
            return None
        number = max(numbers)
        answer = self._call("get_object", Key=self._key(number))
        told = _read_content(answer["Body"].read())
        return _Newest(
            number=number,
            following_number=max(number, told.counted_from) + 1,
            holder=told.holder,
            state=told.state,
            age_s=(_time_of(answer) - answer["LastModified"]).total_seconds(),
        )

    def begin(self) -> _Newest:
        """Where there is no lease: puts the first, unless another job does, and reads what was put."""
        asked = self._call("list_objects_v2", Prefix=self._folder, MaxKeys=1)
        counted_from = round(_time_of(asked).timestamp()) // _SECONDS_PER_NUMBER
        self.create(_FIRST, _LEFT, counted_from=counted_from)
        newest = self.find_newest()
        if newest is None:
            raise RetriableError(f"the lease that was just put into the warehouse {self._uri} is gone; run it again")
        return newest

    def create(self, number: int, state: str = _HELD, **more: int) -> bool:
        """Puts the lease if there is none of that number; returns whether it did."""
        try:
            self._ask("put_object", Key=self._key(number), Body=self._content(state, **more), IfNoneMatch="*")
        except (BotoCoreError, ClientError) as failed:
            # 409: another put of the same name is under way.
            if status_of(failed) in (409, 412):
                return False
            raise self._told(failed) from None
        return True

    def put(self, number: int, state: str) -> None:
        """Puts the lease again."""
        self._call("put_object", Key=self._key(number), Body=self._content(state))

    def forget_before(self, number: int) -> None:
        """Deletes leases of lower numbers."""
        for old in self._list_numbers():
            if old < number:
                self._call("delete_object", Key=self._key(old))

    def _list_numbers(self) -> list[int]:
        names: list[str] = []
        further: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=self._folder, **further)
            names += [each["Key"].removeprefix(self._folder) for each in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                numbers = [int(name) for name in names if _NAME.fullmatch(name)]
                return [number for number in numbers if number < _MOST_NUMBERS]
            further = {"ContinuationToken": page["NextContinuationToken"]}

    def _key(self, number: int) -> str:
        return f"{self._folder}{number:020d}"

    def _content(self, state: str, **more: int) -> bytes:
        return json.dumps({"holder": self.holder, "state": state, **more}).encode()

    def _call(self, operation: str, **arguments: object) -> Mapping[str, Any]:
        try:
            return self._ask(operation, **arguments)
        except (BotoCoreError, ClientError) as failed:
            raise self._told(failed) from None

    def _ask(self, operation: str, **arguments: object) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = getattr(self._client, operation)(Bucket=self._bucket, **arguments)
        return answer

    def _told(self, failed: BotoCoreError | ClientError) -> ColdlogError:
        if status_of(failed) == 403 and not are_credentials_refused(failed):
            return UsageError(
                f"the warehouse {self._uri} may not be written: its writer needs s3:ListBucket, s3:GetObject, "
                "s3:PutObject and s3:DeleteObject there; check whose credentials the environment or the profile names"
            )
        return error_for(failed, Asked(uri=self._uri, bucket=self._bucket))
