"""Name the place of a table so that Spark, delta-rs and PyArrow all understand it.

A warehouse is a folder of this machine (a path or `file:///path`) or a prefix of a bucket (`s3://bucket/prefix`, or
Hadoop's `s3a://`). Hadoop knows S3 only as `s3a`, delta-rs knows both names. So tables are named with `s3a`. In a
`file:` URI percent escapes are decoded; everywhere else a name is taken as it is written. A name that delta-rs would
take for another place is refused (`require_same_place`).
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote

from coldlog.errors import UsageError

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings

_BUCKET_SCHEMES = ("s3", "s3a", "s3n")


def spark_uri(uri: str) -> str:
    """Return the place with the scheme that Spark's Hadoop knows, without a `/` at its end."""
    scheme, separator, rest = uri.partition("://")
    if separator and scheme in _BUCKET_SCHEMES:
        if "@" in rest.partition("/")[0]:
            raise UsageError("a warehouse's uri must not hold credentials; give them in the environment or a profile")
        return f"s3a://{rest.rstrip('/')}"
    path = _path_of_file_uri(uri)
    if path is not None:
        # With the scheme: without it, a cluster may take the path for one of HDFS.
        return f"file://{path.rstrip('/')}"
    return uri.rstrip("/") or uri


def plain_location(uri: str) -> str:
    """Return the place for readers without Spark: a folder by its plain path, with any characters."""
    path = _path_of_file_uri(uri)
    return uri if path is None else path


def _path_of_file_uri(uri: str) -> str | None:
    for scheme in ("file://", "file:"):
        if uri.startswith(f"{scheme}/"):
            return unquote(uri.removeprefix(scheme))
    return None


def table_location(uri: str, name: str) -> str:
    """Return the place of a table of the warehouse at `uri`, for readers without Spark."""
    return f"{plain_location(spark_uri(uri)).rstrip('/')}/{name}"


def local_folder(uri: str) -> str | None:
    """Return the path of a folder of this machine; None for any other place."""
    path = plain_location(uri)
    return None if "://" in path else path


def bucket_and_prefix(uri: str) -> tuple[str, str] | None:
    """Return bucket and prefix (without slashes at its ends) of a place on S3; None for any other place."""
    place = spark_uri(uri)
    if not place.startswith("s3a://"):
        return None
    bucket, _, prefix = place.removeprefix("s3a://").partition("/")
    if not bucket:
        raise UsageError(f"{uri} names no bucket; give s3://bucket/prefix")
    return bucket, prefix.strip("/")


def folder_of_spark(place: str, settings: Settings) -> str | None:
    """Return the path of the folder of this machine that Spark takes `place` for, without the prefix `delta:`.

    None for any other place, and for a path if Hadoop's settings may send it to another file system.
    """
    place = place.removeprefix("delta:")
    is_path = not place.startswith("file:")
    if is_path and (os.environ.get("HADOOP_CONF_DIR") or "spark.hadoop.fs.defaultFS" in settings.spark):
        return None
    return None if is_path and ":" in place.partition("/")[0] else local_folder(place)


def is_same_for_spark(uri: str, settings: Settings) -> bool:
    """Whether Spark takes a warehouse for the same folder or bucket as this process.

    In a bucket both take endpoint and credentials from the environment, unless Hadoop's settings name others.
    """
    if bucket_and_prefix(uri) is None:
        return folder_of_spark(uri, settings) is not None
    return not os.environ.get("HADOOP_CONF_DIR") and not any(
        key.startswith("spark.hadoop.fs.") for key in settings.spark
    )


def why_unwritable(folder: str) -> str | None:
    """Say why nothing can be written below a folder of this machine, which need not be there; None if it can."""
    existing = os.path.abspath(folder)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    where = "" if existing == os.path.abspath(folder) else f"{existing}: "
    if not os.path.isdir(existing):
        return where + os.strerror(errno.ENOTDIR)
    return None if os.access(existing, os.W_OK | os.X_OK) else where + os.strerror(errno.EACCES)
