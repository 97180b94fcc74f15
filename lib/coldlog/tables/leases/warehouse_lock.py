"""Let one job at a time write a warehouse.

Two jobs that write one warehouse would take the same build number and leave rows that count twice. So a job that writes
holds an advisory lock on a file in the warehouse's folder (`flock`). The system releases it when the process ends, also
when it is killed. On S3 the job holds a lease (`coldlog.tables.leases.warehouse_lease`). Readers need neither. A
warehouse elsewhere is not locked: there, the scheduler must not run two jobs at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from coldlog.errors import RetriableError, UsageError
from coldlog.tables.delta.locations import bucket_and_prefix, why_unwritable
from coldlog.tables.leases.warehouse_lease import DEFAULT_TTL_S, WarehouseLease, holding_lease

LOCK_NAME = ".coldlog-writer"


@contextmanager
def writing(uri: str, *, lease_s: float = DEFAULT_TTL_S) -> Iterator[WarehouseLease | None]:
    """Hold the warehouse at `uri` for writing; on S3, yield its lease. `RetriableError` while another job holds it."""
    place = bucket_and_prefix(uri)
    if place is not None:
        with holding_lease(uri, *place, ttl_s=lease_s) as lease:
            yield lease
        return
    folder = _local_folder(uri)
    if folder is None:
        yield None
        return
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(os.path.join(folder, LOCK_NAME), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as refused:
        raise UsageError(
            f"the warehouse {uri} cannot be written: {refused.strerror}; correct warehouse.uri"
        ) from refused
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as held:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise RetriableError(
            f"another job (process {holder or 'unknown'}) is writing the warehouse {uri}; run one at a time"
        ) from held
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
        yield None
    finally:
        os.close(descriptor)


def require_writable(uri: str) -> None:
    """Raise `UsageError` if no table can be written to a local warehouse; write nothing."""
    folder = _local_folder(uri)
    if folder is None or bucket_and_prefix(uri) is not None:
        return
    why = why_unwritable(folder)
    if why is not None:
        raise UsageError(f"the warehouse {uri} cannot be written: {why}; correct warehouse.uri")


def _local_folder(uri: str) -> str | None:
    if "://" not in uri and not uri.startswith("file:"):
        return uri
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme == "file" else None
