"""Open a table without Spark.

On S3, credentials and endpoint are read from the environment or the AWS profile. Each process reads them again where it
opens files, and no pickled object holds them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from coldlog.archive.stores.s3_environment import (
    DEFAULT_REGION,
    s3_client,
    s3_credentials,
    s3_endpoint,
)
from coldlog.archive.stores.s3_failures import S3Target, answer_within, error_for, status_of
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError, UsageError
from coldlog.runtime.opened_here import check_delta_rs
from coldlog.runtime.setting_uris import require_same_place
from coldlog.tables.delta.files.file_checksums import damaged
from coldlog.tables.delta.locations import bucket_and_prefix
from coldlog.tables.delta.log_check import LOG_FOLDER, checking_once
from coldlog.tables.delta.log_files import LogFiles, open_log

_OF_VERSION = re.compile(r"[0-9]{20}\.(json|crc)")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\..+")
_NOT_FOUND, _FORBIDDEN = 404, 403
_OF_STORE = re.compile(r"Generic|External|Object at location|The operation lacked|request")
"""In errors of delta-rs: the store did not give a file. Other errors are of a file that it gave."""
_PANIC = "PanicException"
"""pyo3's name for a panic of Rust; the class cannot be imported."""
_AGAIN = "try again; if the table was vacuumed meanwhile, open it again"
_KEPT_S = 300.0
"""A table in a bucket is opened with the credentials of its time, which are good for longer than this."""


class _KeptTable(NamedTuple):
    """An open table, its log, and when it was opened, in seconds of `time.monotonic`."""

    table: DeltaTable
    log: LogFiles
    opened_s: float


_kept: list[dict[str, _KeptTable]] = []
"""The open tables by location, for each `keeping_tables_open`; the last one counts."""


@contextmanager
def keeping_tables_open() -> Iterator[None]:
    """Let `open_newest` open each version of a table once. This is for one job, which asks for each table many times.

    An opening lists the whole log, and reads its newest checkpoint and what follows.
    """
    _kept.append({})
    try:
        with checking_once():
            yield
    finally:
        _kept.pop()


def open_newest(location: str, storage: Mapping[str, str] | None = None) -> DeltaTable:
    """As `open_delta`, but callers may share the table: load no other version into it, and do not write with it."""
    if not _kept:
        return open_delta(location, storage)
    check_delta_rs()
    kept_tables = _kept[-1]
    kept = kept_tables.get(location)
    if kept is not None and time.monotonic() - kept.opened_s < _KEPT_S and _is_newest(kept):
        return kept.table
    now_s, table = time.monotonic(), open_delta(location, storage)
    kept_tables[location] = _KeptTable(table, open_log(location) if kept is None else kept.log, now_s)
    return table


def _is_newest(kept: _KeptTable) -> bool:
    """Whether the log has no version after that of the table; one request."""
    with suppress(OSError, ColdlogError):  # who opens the table again tells what is wrong
        return kept.log.find_modified_ms(f"{kept.table.version() + 1:020d}.json") is None
    return False


def open_delta(location: str, storage: Mapping[str, str] | None = None) -> DeltaTable:
    """Open the newest version with delta-rs; errors as `DeltaTable` raises them.

    A flipped bit in a checkpoint can make delta-rs panic: pyo3 raises that past `Exception`. It is a `DeltaError` here.
    """
    check_delta_rs()
    require_same_place(location)
    try:
        return DeltaTable(
            location, storage_options=delta_storage_options(location) if storage is None else dict(storage)
        )
    except Exception:
        raise
    except BaseException as panic:
        if type(panic).__name__ != _PANIC:
            raise
        raise DeltaError(
            f"Arrow error: Parquet error: delta-rs panics at a checkpoint ({_first_line(panic)})"
        ) from None


def require_reachable(location: str) -> bool:
    """Check with one request that a bucket exists and may be listed; return whether a place in it has an object.

    Raises `UsageError`, or `RetriableError` if S3 does not answer now. Folders are not checked: they may be created
    later.
    """
    place = bucket_and_prefix(location)
    if place is None:
        return False
    bucket, prefix = place
    try:
        return bool(s3_client().list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1).get("Contents"))
    except Exception as failure:  # noqa: BLE001 - botocore's errors become errors of coldlog
        raise error_for(failure, S3Target(uri=location, bucket=bucket)) from None


def storage_error(failed: Exception, location: str, name: str = "") -> ColdlogError:
    """Make the error for a file of a table (without `name`: the table's log) that could not be read without Spark.

    It is a `UsageError` if a setting or a permission is wrong, a `ColdlogError` if the file was read but is damaged,
    else a `RetriableError`. As in `coldlog.archive.stores.s3_failures`, texts of S3 are not repeated. An error of
    delta-rs has only a text, so a listing is requested to find the cause.
    """
    if name and _is_damage(failed):
        return damaged(f"{location}/{name}", _first_line(failed))
    place = bucket_and_prefix(location)
    error = _local_error(failed, location, name) if place is None else _bucket_error(failed, location, name, *place)
    is_missing = isinstance(failed, FileNotFoundError) or status_of(answer_within(failed)) == _NOT_FOUND
    if name and is_missing and _is_live(location, name):
        return damaged(f"{location}/{name}", "it is missing, but the table's newest version needs it")
    return error


def _bucket_error(failed: Exception, location: str, name: str, bucket: str, prefix: str) -> ColdlogError:
    target = S3Target(uri=location, bucket=bucket, object_name=name)
    answer = answer_within(failed)
    if status_of(answer):
        error = error_for(answer, target)
    else:
        try:
            require_reachable(location)
            lost = None if name else _find_damaged_commit(bucket, prefix)
        except ColdlogError as refused:
            error = refused
        else:
            if lost is not None:
                return damaged(f"{location}/{LOG_FOLDER}/{lost}", "it is missing, empty or not the JSON of a commit")
            if isinstance(failed, DeltaError) and not _OF_STORE.search(str(failed)):
                return damaged(f"{location}/{LOG_FOLDER}", _first_line(failed))
            kind = type(failed).__name__
            return RetriableError(f"{target.label} cannot be read ({kind}); {_AGAIN}, and check s3:GetObject there")
    if not isinstance(error, ArchiveError):
        return error
    if error.reason is Reason.OBJECT_MISSING:
        return RetriableError(f"{target.label} is missing; {_AGAIN}")
    return UsageError(f"{target.label} cannot be read: {error.found}; it needs {error.expected}")


def _is_live(location: str, name: str) -> bool:
    """Whether the newest version of the table names a file; else VACUUM may have removed it."""
    try:
        table = open_delta(location)
        return name in pa.table(table.get_add_actions()).column("path").to_pylist()
    except (DeltaError, OSError, ColdlogError):
        return False


def _find_damaged_commit(bucket: str, prefix: str) -> str | None:
    """Find a commit of a log on S3 that is missing, empty or not JSON: delta-rs does not say which one it cannot read.

    Only commits after the newest checkpoint are needed. An error of coldlog if S3 refuses to give one of them.
    """
    # Imported here, so that only users of S3 wait for it.
    from botocore.exceptions import BotoCoreError, ClientError

    log = f"{prefix}/{LOG_FOLDER}/".lstrip("/")
    try:
        client = s3_client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=log)
        names = {str(each["Key"]).removeprefix(log) for page in pages for each in page.get("Contents", ())}
        checkpoints = [int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name)]
        # Facts of a version (.crc) are written after its commit.
        newest = max((int(name[:20]) for name in names if _OF_VERSION.fullmatch(name)), default=-1)
        for version in range(newest, max(checkpoints, default=-1), -1):
            name = f"{version:020d}.json"
            if name not in names:
                return name
            lines = client.get_object(Bucket=bucket, Key=f"{log}{name}")["Body"].read().splitlines()
            if not lines or not all(map(_is_json, lines)):
                return name
    except ClientError as refused:
        if status_of(refused) != _FORBIDDEN:
            return None
        raise error_for(refused, S3Target(uri=f"s3://{bucket}", bucket=bucket, object_name=log)) from None
    except (BotoCoreError, ColdlogError):
        return None
    return None


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _local_error(failed: Exception, location: str, name: str) -> ColdlogError:
    if isinstance(failed, DeltaError):
        return damaged(f"{location}/{LOG_FOLDER}", _first_line(failed))
    place = f"{name} of the table {location}" if name else f"the table {location}"
    return RetriableError(f"{place} cannot be read: {_first_line(failed)}; {_AGAIN}")


def _first_line(failed: BaseException) -> str:
    return str(failed).splitlines()[0] if str(failed) else type(failed).__name__


def _is_damage(failed: Exception) -> bool:
    """Whether Arrow has read a file but cannot parse it: errors of the system have a number, those of S3 a cause."""
    is_of_arrow = type(failed) is OSError and failed.errno is None and failed.__cause__ is None
    return is_of_arrow or isinstance(failed, pa.ArrowException)


def delta_storage_options(location: str) -> dict[str, str] | None:
    """The options that delta-rs needs beside the location."""
    if bucket_and_prefix(location) is None:
        return None
    endpoint, credentials = s3_endpoint(), s3_credentials()
    if credentials is None:
        raise UsageError(
            f"no credentials for {location}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    options = {
        "AWS_ACCESS_KEY_ID": credentials.access_key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        "AWS_REGION": endpoint.region or DEFAULT_REGION,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": str(not endpoint.is_path_style).lower(),
    }
    if credentials.token:
        options["AWS_SESSION_TOKEN"] = credentials.token
    if endpoint.url is not None:
        options["AWS_ENDPOINT_URL"] = endpoint.url
        options["AWS_ALLOW_HTTP"] = str(endpoint.url.startswith("http://")).lower()
    return options
