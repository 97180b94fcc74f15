"""Read and write the files of a table's log, and of a warehouse's manifests, without Spark.

A commit is put only if its name does not exist: in a folder as a link to a complete file, on S3 under the condition
`If-None-Match: *`. So of all writers of a version exactly one succeeds, and others see the whole commit or none.

In a folder, Hadoop's checksums (`file_checksums`) are written after each file. Checksums that a lost commit of the same
name left behind are removed before the link: Spark would refuse the new commit.
"""

from __future__ import annotations

import errno
import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from coldlog.archive.stores.local_writer import sync_directory, write_all
from coldlog.archive.stores.s3_environment import s3_client
from coldlog.archive.stores.s3_failures import S3Target, error_for, status_of
from coldlog.errors import RetriableError
from coldlog.tables.delta.files.file_checksums import checksums_path, write_checksums
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder
from coldlog.tables.delta.log_check import LOG_FOLDER

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""Errors of `put` in a file system without hard links."""
_PUTS = 5
_LONGEST_PAUSE_S = 0.25


class LogFiles(Protocol):
    """The files of one table's log, by name."""

    def read(self, name: str) -> bytes | None:
        """Read a file; None if there is none."""

    def find_modified_ms(self, name: str) -> int | None:
        """Return when a file was written, in epoch milliseconds; None if there is none."""

    def put(self, name: str, content: bytes) -> bool:
        """Write a file unless its name exists; return whether it was written."""

    def replace(self, name: str, content: bytes) -> None:
        """Write a file; others see the old or the new one."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


def pause(attempt: int) -> None:
    """Wait before the next attempt to put a version, longer after each one, so that others come first sometimes."""
    time.sleep(random.uniform(0, min(_LONGEST_PAUSE_S, 0.002 * 2 ** min(attempt, 10))))


def open_log(location: str) -> LogFiles:
    """Open the log of the table at a location, a folder or a prefix of a bucket."""
    return open_files(location, LOG_FOLDER)


def open_files(location: str, folder: str) -> LogFiles:
    """Open a folder below a location, a folder or a prefix of a bucket."""
    place = bucket_and_prefix(location)
    if place is not None:
        return BucketLog(location=location, bucket=place[0], prefix=f"{place[1]}/{folder}", client=s3_client())
    return FolderLog(folder=os.path.join(local_folder(location) or location, folder))


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLog:
    """The log below a table's folder."""

    folder: str

    def read(self, name: str) -> bytes | None:
        """Read a file; `check_log` has checked what the newest version needs."""
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def find_modified_ms(self, name: str) -> int | None:
        """Return the time of a file's last change."""
        try:
            return os.stat(os.path.join(self.folder, name)).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def put(self, name: str, content: bytes) -> bool:
        """Link a complete file to the name."""
        path = os.path.join(self.folder, name)
        complete = self._write(name, content)
        try:
            if not os.path.exists(path):
                with suppress(FileNotFoundError):
                    os.unlink(checksums_path(path))
            os.link(complete, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(complete)
        sync_directory(self.folder)
        # The commit is made: others can read it without checksums.
        with suppress(OSError):
            write_checksums(path)
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Rename a complete file to the name."""
        path = os.path.join(self.folder, name)
        complete = self._write(name, content)
        with suppress(FileNotFoundError):
            os.unlink(checksums_path(path))
        os.replace(complete, path)
        write_checksums(path)

    def remove(self, name: str) -> None:
        """Remove a file and its checksums."""
        path = os.path.join(self.folder, name)
        for each in (path, checksums_path(path)):
            with suppress(FileNotFoundError):
                os.unlink(each)

    def _write(self, name: str, content: bytes) -> str:
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, f".{name}.{uuid4().hex}.tmp")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, memoryview(content))
            os.fsync(descriptor)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLog:
    """The log below a prefix of a bucket. `warehouse_lease` refuses a store that ignores the condition."""

    location: str
    bucket: str
    prefix: str
    client: Any

    def read(self, name: str) -> bytes | None:
        """Get an object."""
        answer = self._ask("get_object", name, unless=404)
        content: bytes | None = None if answer is None else answer["Body"].read()
        return content

    def find_modified_ms(self, name: str) -> int | None:
        """Return the time of an object, which has whole seconds."""
        answer = self._ask("head_object", name, unless=404)
        return None if answer is None else int(answer["LastModified"].timestamp() * 1000)

    def put(self, name: str, content: bytes) -> bool:
        """Put an object that does not exist.

        If the answer to a put is lost, the client repeats it and finds its own object. A commit has an id of its own,
        so equal bytes are this commit.
        """
        for _ in range(_PUTS):
            if self._ask("put_object", name, unless=412, Body=content, IfNoneMatch="*") is not None:
                return True
            found = self.read(name)
            # Two puts at the same moment may both be refused (409), and neither is made.
            if found is not None:
                return found == content
        raise RetriableError(f"{self.location}: other jobs put {name} at the same time; run again")

    def replace(self, name: str, content: bytes) -> None:
        """Put an object."""
        self._ask("put_object", name, unless=0, Body=content)

    def remove(self, name: str) -> None:
        """Delete an object."""
        self._ask("delete_object", name, unless=404)

    def _ask(self, operation: str, name: str, *, unless: int, **more: object) -> dict[str, Any] | None:
        """Send a request; None if the store answers with that status (for 412, also 409)."""
        # Imported here, so that only users of S3 wait for it.
        from botocore.exceptions import BotoCoreError, ClientError

        key = f"{self.prefix}/{name}".lstrip("/")
        try:
            answer: dict[str, Any] = getattr(self.client, operation)(Bucket=self.bucket, Key=key, **more)
        except (BotoCoreError, ClientError) as failed:
            status = status_of(failed)
            if status == unless or (status, unless) == (409, 412):
                return None
            raise error_for(failed, S3Target(uri=self.location, bucket=self.bucket, object_name=key)) from None
        return answer
