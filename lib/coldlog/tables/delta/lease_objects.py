"""lease_objects: what do the objects of a warehouse's leases say?

A lease is the object `.coldlog-writers/<number, 20 digits>`: JSON with its holder and state, and in the first one where
numbers go on (`warehouse_lease` has the rules). What has another name is no lease; what cannot be read is somebody's.
How old one is, is told by the store's own clock.
"""

from __future__ import annotations

import json
import os
import re
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from coldlog.archive.stores.s3_environment import create_s3_client
from coldlog.archive.stores.s3_failures import S3Target, are_credentials_refused, error_for, status_of
from coldlog.errors import ColdlogError, RetriableError, UsageError

FOLDER = ".coldlog-writers"
HELD, LEFT, RELEASED = "held", "left", "released"
"""A lease is left where its job failed: others may write at once, but a commit of its JVM may be on its way."""
_FIRST = 0
_NUMBERS_PER_SECOND = 100
"""No job is that short: what is counted from the clock is above what was counted by leases."""
COMMITS_PER_LEASE = 1 << 24
_MOST_NUMBERS = 1 << 39
"""What is named higher is no lease: its `txnVersion` would be no 64-bit integer."""
_NAME = re.compile(r"[0-9]{20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestLease:
    """The lease with the highest number: who holds it, how long ago it was put, and the number of the next one."""

    number: int
    following_number: int
    holder: str
    state: str
    age_s: float


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
        state=state if state in (LEFT, RELEASED) else HELD,
        counted_from=counted_from if isinstance(counted_from, int) and 0 < counted_from < _MOST_NUMBERS else 0,
    )


def _time_of(answer: Mapping[str, Any]) -> datetime:
    """The store's time when it answered."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


class LeaseObjects:
    """The lease objects of the warehouse at `uri`, in a bucket below a prefix."""

    def __init__(self, bucket: str, prefix: str, uri: str) -> None:
        self._bucket, self._uri = bucket, uri
        self._folder = f"{prefix}/{FOLDER}/" if prefix else f"{FOLDER}/"
        self.holder = f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}"
        self._client = create_s3_client()

    def open_anew(self) -> None:
        """With the credentials that there are now."""
        with suppress(ColdlogError):
            self._client = create_s3_client()

    def find_newest(self) -> NewestLease | None:
        """The lease with the highest number."""
        numbers = self._list_numbers()
        if not numbers:
            return None
        number = max(numbers)
        answer = self._call("get_object", Key=self._key(number))
        told = _read_content(answer["Body"].read())
        return NewestLease(
            number=number,
            following_number=max(number, told.counted_from) + 1,
            holder=told.holder,
            state=told.state,
            age_s=(_time_of(answer) - answer["LastModified"]).total_seconds(),
        )

    def begin(self) -> NewestLease:
        """Where there is no lease: puts the first, unless another job does, and reads what was put."""
        asked = self._call("list_objects_v2", Prefix=self._folder, MaxKeys=1)
        counted_from = round(_time_of(asked).timestamp()) * _NUMBERS_PER_SECOND
        self.create(_FIRST, LEFT, counted_from=counted_from)
        newest = self.find_newest()
        if newest is None:
            raise RetriableError(f"the lease that was just put into the warehouse {self._uri} is gone; run it again")
        return newest

    def create(self, number: int, state: str = HELD, **more: int) -> bool:
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
        return error_for(failed, S3Target(uri=self._uri, bucket=self._bucket))
