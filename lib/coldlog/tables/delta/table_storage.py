"""Open the files of a table without Spark.

On S3, credentials and endpoint are read from the environment or the AWS profile. Each process reads them again where it
opens files, and no pickled object holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
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
from coldlog.tables.delta.file_checksums import CheckedFile, damaged, find_checksums
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder
from coldlog.tables.delta.log_check import LOG_FOLDER

_AGAIN = "try again; if the table was vacuumed meanwhile, open it again"


def require_reachable(location: str) -> None:
    """Check with one request that a bucket exists and may be listed.

    Raises `UsageError`, or `RetriableError` if S3 does not answer now. Folders are not checked: they may be created
    later.
    """
    place = bucket_and_prefix(location)
    if place is None:
        return
    bucket, prefix = place
    try:
        create_s3_client().list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except Exception as failure:  # noqa: BLE001 - botocore's errors become errors of coldlog
        raise error_for(failure, S3Target(uri=location, bucket=bucket)) from None


def storage_error(failed: Exception, location: str, name: str = "") -> ColdlogError:
    """Make the error for a file of a table (without `name`: the table's log) that could not be read without Spark.

    It is a `UsageError` if a setting or a permission is wrong, a `ColdlogError` if the file was read but is damaged,
    else a `RetriableError`. As in `coldlog.archive.stores.s3_failures`, texts of S3 are not repeated. An error of
    delta-rs has only a text, so a listing is requested to find the cause.
    """
    place = bucket_and_prefix(location)
    if name and _is_damage(failed):
        return damaged(f"{location}/{name}", _first_line(failed))
    if place is None:
        return _local_error(failed, location, name)
    target = S3Target(uri=location, bucket=place[0], object_name=name)
    answer = answer_within(failed)
    if status_of(answer):
        error = error_for(answer, target)
    else:
        try:
            require_reachable(location)
        except ColdlogError as refused:
            error = refused
        else:
            kind = type(failed).__name__
            return RetriableError(f"{target.label} cannot be read ({kind}); {_AGAIN}, and check s3:GetObject there")
    if not isinstance(error, ArchiveError):
        return error
    if error.reason is Reason.OBJECT_MISSING:
        return RetriableError(f"{target.label} is missing; {_AGAIN}")
    return UsageError(f"{target.label} cannot be read: {error.found}; it needs {error.expected}")


def _local_error(failed: Exception, location: str, name: str) -> ColdlogError:
    if isinstance(failed, DeltaError):
        return damaged(f"{location}/{LOG_FOLDER}", _first_line(failed))
    place = f"{name} of the table {location}" if name else f"the table {location}"
    return RetriableError(f"{place} cannot be read: {_first_line(failed)}; {_AGAIN}")


def _first_line(failed: Exception) -> str:
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


def file_opener(location: str) -> Callable[[str], pa.NativeFile]:
    """Return a function that opens a file below the location for reading. For one process: see
    `create_s3_file_system`."""
    place = bucket_and_prefix(location)
    if place is not None:
        files = create_s3_file_system()
        prefix = "/".join(part for part in place if part)
        # Parquet's reader requests exactly what it needs; with its cache, s3fs would read tens of megabytes more.
        return lambda path: pa.PythonFile(files.open(f"{prefix}/{path}", "rb", cache_type="none"), mode="r")
    folder = local_folder(location)
    if folder is None:
        other, root = fs.FileSystem.from_uri(location)
        return lambda path: other.open_input_file(f"{root}/{path}")
    return lambda path: _open_local(f"{folder}/{path}")


def read_rows(location: str, path: str, columns: Sequence[str]) -> list[dict[str, object]]:
    """Read all rows of a small file below the location."""
    # Read in this thread only. With delta-rs's own conversion to Arrow, Arrow's threads hold Python objects, and one in
    # 25 processes that ended right after it was aborted.
    with (
        file_opener(location)(path) as file,
        pq.ParquetFile(file, page_checksum_verification=True) as parquet,
    ):
        rows: list[dict[str, object]] = parquet.read(columns=list(columns), use_threads=False).to_pylist()
    return rows


def _open_local(path: str) -> pa.NativeFile:
    checksums = find_checksums(path)
    if checksums is None:
        return fs.LocalFileSystem().open_input_file(path)
    return pa.PythonFile(CheckedFile(checksums), mode="r")
