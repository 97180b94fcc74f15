"""table_storage: how are a table's files reached without Spark?

On S3 with what the environment or the AWS profile names. It is asked for where files are read, in each process anew,
and nothing that is pickled holds it.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import fs

from coldlog.archive.stores.s3_environment import (
    DEFAULT_REGION,
    create_s3_client,
    create_s3_file_system,
    s3_credentials,
    s3_endpoint,
)
from coldlog.archive.stores.s3_failures import S3Target, answer_within, error_for, status_of
from coldlog.errors import ArchiveError, ColdlogError, Reason, RetriableError, UsageError
from coldlog.tables.delta.locations import bucket_and_prefix

_AGAIN = "ask again; if the table was vacuumed meanwhile, open it again"


def require_reachable(location: str) -> None:
    """One request to a bucket: that it is not there, or may not be listed, is said before anything else is begun.

    `UsageError`; or `RetriableError` where S3 cannot be asked now. Folders are not looked at: they may yet be made.
    """
    place = bucket_and_prefix(location)
    if place is None:
        return
    bucket, prefix = place
    try:
        create_s3_client().list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except Exception as failure:  # noqa: BLE001 - botocore's are told in words of coldlog
        raise error_for(failure, S3Target(uri=location, bucket=bucket)) from None


def storage_error(failed: Exception, location: str, name: str = "") -> ColdlogError:
    """What it means that a file of a table (or without `name` the table's log) could not be read without Spark.

    A `UsageError` where a setting or a permission is wrong, else a `RetriableError`. No words of S3 are repeated, as in
    `coldlog.archive.stores.s3_failures`; delta-rs has nothing else to tell by, so a listing is asked for to know more.
    """
    place = bucket_and_prefix(location)
    if place is None:
        what = f"{name} of the table {location}" if name else f"the table {location}"
        told = str(failed).splitlines()[0] if str(failed) else type(failed).__name__
        return RetriableError(f"{what} cannot be read: {told}; {_AGAIN}")
    asked = S3Target(uri=location, bucket=place[0], object_name=name)
    answer = answer_within(failed)
    if status_of(answer):
        error = error_for(answer, asked)
    else:
        try:
            require_reachable(location)
        except ColdlogError as refused:
            error = refused
        else:
            kind = type(failed).__name__
            return RetriableError(f"{asked.label} cannot be read ({kind}); {_AGAIN}, and look at s3:GetObject there")
    if not isinstance(error, ArchiveError):
        return error
    if error.reason is Reason.OBJECT_MISSING:
        return RetriableError(f"{asked.label} is gone; {_AGAIN}")
    return UsageError(f"{asked.label} cannot be read: {error.found}; it takes {error.expected}")


def delta_storage_options(location: str) -> dict[str, str] | None:
    """What delta-rs needs beside the location."""
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


def file_opener(location: str) -> Callable[[str], pa.NativeFile]:
    """Opens a file for reading, by its path below the location. For one process: see `create_s3_file_system`."""
    place = bucket_and_prefix(location)
    if place is not None:
        files = create_s3_file_system()
        prefix = "/".join(part for part in place if part)
        # Parquet's reader asks for exactly what it needs; s3fs would read tens of megabytes further each time.
        return lambda path: pa.PythonFile(files.open(f"{prefix}/{path}", "rb", cache_type="none"), mode="r")
    local, root = fs.FileSystem.from_uri(location) if "://" in location else (fs.LocalFileSystem(), location)
    return lambda path: local.open_input_file(f"{root}/{path}")
