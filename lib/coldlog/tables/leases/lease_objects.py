"""Read and write the lease objects of a warehouse.

A lease is the object `.coldlog-writers/<number, 20 digits>`. It is JSON with holder and state; the first lease also has
the number from which later leases count (`warehouse_lease` has the rules). An object with another name is not a lease.
An object that cannot be read counts as a lease that somebody holds. The age of a lease is measured by the store's
clock.
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

from coldlog.archive.stores.s3_environment import open_s3_client
from coldlog.archive.stores.s3_failures import S3Target, are_credentials_refused, error_for, status_of
from coldlog.errors import ColdlogError, RetriableError, UsageError

FOLDER = ".coldlog-writers"
HELD, LEFT, RELEASED = "held", "left", "released"
"""The state is `left` if the job failed: others may write at once, but a commit of its JVM may still arrive."""
_FIRST = 0
_NUMBERS_PER_SECOND = 100
"""No job is that short, so numbers counted from the clock are above numbers counted by leases."""
COMMITS_PER_LEASE = 1 << 24
_MOST_NUMBERS = 1 << 39
"""Objects with higher numbers are not leases: their `txnVersion` would not fit in 64 bits."""
_NAME = re.compile(r"[0-9]{20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestLease:
    """The lease with the highest number: its holder, the time since it was written, and the number of the next one."""

    number: int
    following_number: int
    holder: str
    state: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The content of a lease object."""

    holder: str
    state: str
    counted_from: int


def _read_content(content: bytes) -> _Content:
    """Parse a lease. An object that cannot be understood counts as held by an unknown job until it is too old."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    fields = parsed if isinstance(parsed, dict) else {}
    holder, state, counted_from = (fields.get(name) for name in ("holder", "state", "counted_from"))
    return _Content(
        holder=holder if isinstance(holder, str) else "unknown: its lease cannot be read",
        state=state if state in (LEFT, RELEASED) else HELD,
        counted_from=counted_from if isinstance(counted_from, int) and 0 < counted_from < _MOST_NUMBERS else 0,
    )


def _time_of(answer: Mapping[str, Any]) -> datetime:
    """The store's time in its answer."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


class LeaseObjects:
    """The lease objects of the warehouse at `uri`, below a prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str, uri: str) -> None:
        self._bucket, self._uri = bucket, uri
        self._folder = f"{prefix}/{FOLDER}/" if prefix else f"{FOLDER}/"
        self.holder = f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}"
        self._client = open_s3_client()

    def open_anew(self) -> None:
        """Open a new client, which reads the present credentials."""
        with suppress(ColdlogError):
            self._client = open_s3_client()

    def find_newest(self) -> NewestLease | None:
        """Find the lease with the highest number."""
        numbers = self._list_numbers()
        if not numbers:
            return None
        number = max(numbers)
        answer = self._call("get_object", Key=self._key(number))
        lease = _read_content(answer["Body"].read())
        return NewestLease(
            number=number,
            following_number=max(number, lease.counted_from) + 1,
            holder=lease.holder,
            state=lease.state,
            age_s=(_time_of(answer) - answer["LastModified"]).total_seconds(),
        )

    def begin(self) -> NewestLease:
        """Write the first lease, unless another job does; return the newest lease."""
        listing = self._call("list_objects_v2", Prefix=self._folder, MaxKeys=1)
        counted_from = round(_time_of(listing).timestamp()) * _NUMBERS_PER_SECOND
        self.create(_FIRST, LEFT, counted_from=counted_from)
        newest = self.find_newest()
        if newest is None:
            raise RetriableError(f"the lease just written to the warehouse {self._uri} is missing; run the job again")
        return newest

    def create(self, number: int, state: str = HELD, **more: int) -> bool:
        """Write the lease unless its number exists; return whether it was written."""
        try:
            self._ask("put_object", Key=self._key(number), Body=self._content(state, **more), IfNoneMatch="*")
        except _failures() as failed:
            # 409: another put of the same name is in progress.
            if status_of(failed) in (409, 412):
                return False
            raise self._as_error(failed) from None
        return True

    def put(self, number: int, state: str) -> None:
        """Write the lease again."""
        self._call("put_object", Key=self._key(number), Body=self._content(state))

    def forget_before(self, number: int) -> None:
        """Delete leases with lower numbers."""
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
        except _failures() as failed:
            raise self._as_error(failed) from None

    def _ask(self, operation: str, **arguments: object) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = getattr(self._client, operation)(Bucket=self._bucket, **arguments)
        return answer

    def _as_error(self, failed: Exception) -> ColdlogError:
        if status_of(failed) == 403 and not are_credentials_refused(failed):
            return UsageError(
                f"no permission to write the warehouse {self._uri}: allow s3:ListBucket, s3:GetObject, s3:PutObject "
                "and s3:DeleteObject there; check which credentials the environment or the profile names"
            )
        return error_for(failed, S3Target(uri=self._uri, bucket=self._bucket))


def _failures() -> tuple[type[Exception], ...]:
    # Imported here: a warehouse in a folder needs no package of S3.
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError
