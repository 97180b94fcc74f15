"""table_storage: how are a table's files reached without Spark?

On S3 with what the environment or the AWS profile names. It is asked for where files are read, in each process anew,
and nothing that is pickled holds it.
"""

from __future__ import annotations

from pyarrow import fs

from coldlog.archive.s3_environment import DEFAULT_REGION, s3_credentials, s3_endpoint
from coldlog.errors import UsageError
from coldlog.tables.locations import bucket_and_prefix


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


def file_system(location: str) -> tuple[fs.FileSystem, str]:
    """A file system for reading, and the location's path in it."""
    place = bucket_and_prefix(location)
    if place is not None:
        import s3fs

        return fs.PyFileSystem(fs.FSSpecHandler(s3fs.S3FileSystem())), "/".join(part for part in place if part)
    if "://" in location:
        found, path = fs.FileSystem.from_uri(location)
        return found, path
    return fs.LocalFileSystem(), location
