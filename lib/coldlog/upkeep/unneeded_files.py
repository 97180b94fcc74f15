"""Remove files and log entries of a table that no version of the last hours needs, without Spark.

Delta's VACUUM starts jobs and makes two commits, also for a table of a few files. A file is removed here if all of this
holds:

- It is a Parquet file directly in the table's place, and its name begins with neither `.` nor `_`.
- It was written before these hours began, as the store says.
- The newest version does not have it.
- No commit of these hours has removed it from the table.

So each version of these hours keeps its files, and a commit that is being made keeps those that it has written. What a
killed job left behind goes.

Of the log, the newest version at the beginning of these hours is kept, with the checkpoint before it, and all that
follows. Delta and delta-rs remove entries by their age alone, after 30 days: a table that changes once an hour has
thousands of them then, and each opening lists them all. A table that changes rarely may lose the version of last week.

Source: Delta's protocol, "Remove File" and "Checkpoints": a checkpoint names removed files for
`delta.deletedFileRetentionDuration`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from coldlog.archive.stores.local_store import LocalStore
from coldlog.archive.stores.object_store import ObjectInfo, ObjectStore
from coldlog.archive.stores.s3_client import S3Options
from coldlog.archive.stores.s3_writer import open_s3_writer
from coldlog.errors import RetriableError
from coldlog.tables.delta.files.file_checksums import checksums_path, damaged
from coldlog.tables.delta.files.parquet_files import opening
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder
from coldlog.tables.delta.log_check import LOG_FOLDER
from coldlog.tables.delta.log_files import open_log
from coldlog.tables.delta.manifest import at_once
from coldlog.tables.delta.table_storage import open_delta

_SUFFIX = ".parquet"
_ENTRY = re.compile(r"\.?([0-9]{20})\.(.+)")
"""The version and the rest of the name of a log entry; the checksums of an entry begin with a point."""


def remove_unneeded(location: str, before_ms: int) -> tuple[int, int]:
    """Remove the files that no version since `before_ms` (epoch milliseconds) needs; return how many, and their bytes.

    The table must have a checkpoint of one file, as `create_checkpoint` writes it; else nothing is removed. A file that
    cannot be removed raises `RetriableError` or `UsageError`.
    """
    written = [file for file in _list_files(location) if file.modified_ms < before_ms]
    if not written:
        return 0, 0
    # Opened behind the listing: a file that was committed meanwhile is needed.
    table = open_delta(location)
    removed = _removed_since(location, before_ms)
    if removed is None:
        return 0, 0
    needed = removed.union(map(unquote, pa.table(table.get_add_actions()).column("path").to_pylist()))
    unneeded = [file for file in written if file.name not in needed]
    _remove(location, [file.name for file in unneeded])
    return len(unneeded), sum(file.size_bytes for file in unneeded)


def remove_old_entries(location: str, before_ms: int) -> None:
    """Remove the entries of the log that no version since `before_ms` (epoch milliseconds) needs.

    Errors are those of `remove_unneeded`.
    """
    entries = [
        (int(matched[1]), matched[2], file)
        for file in _store(location).iter_objects(LOG_FOLDER)
        if (matched := _ENTRY.fullmatch(file.name.rpartition("/")[2])) is not None
    ]
    commits = [at for at, rest, file in entries if rest == "json" and file.modified_ms <= before_ms]
    oldest = max(commits, default=-1)
    bases = [at for at, rest, _ in entries if rest == "checkpoint.parquet" and at <= oldest]
    # The oldest first: what is left has no hole.
    _remove(location, [file.name for at, _, file in sorted(entries) if at < max(bases, default=-1)])


def _store(location: str) -> ObjectStore:
    folder = local_folder(location)
    return open_s3_writer(location, S3Options()) if folder is None else LocalStore(root=folder, uri=location)


def _list_files(location: str) -> Iterator[ObjectInfo]:
    for file in _store(location).iter_objects(""):
        if file.name.endswith(_SUFFIX) and not file.name.startswith((".", "_")):
            yield file


def _removed_since(location: str, since_ms: int) -> set[str] | None:
    """The files that commits since then have removed; None without a checkpoint of one file."""
    log, place = open_log(location), f"{location}/{LOG_FOLDER}"
    pointer = log.read("_last_checkpoint")
    version = None if pointer is None else _parsed(pointer, f"{place}/_last_checkpoint").get("version")
    if not isinstance(version, int):
        return None
    name = f"{version:020d}.checkpoint.parquet"
    content = log.read(name)
    if content is None:
        return None
    with opening(location, f"{LOG_FOLDER}/{name}"):
        # Not `read_table`, which makes columns of the fields.
        checkpoint = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
        rows = checkpoint.read(columns=["remove.path", "remove.deletionTimestamp"]).to_pylist()
    removals = [row["remove"] for row in rows if row["remove"] is not None]
    while (commit := log.read(f"{(version := version + 1):020d}.json")) is not None:
        actions = (_parsed(line, f"{place}/{version:020d}.json") for line in commit.splitlines())
        removals += [action["remove"] for action in actions if "remove" in action]
    return {unquote(each["path"]) for each in removals if (each.get("deletionTimestamp") or since_ms) >= since_ms}


def _parsed(text: bytes, path: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        raise damaged(path, "it is not JSON") from None
    return found


def _remove(location: str, names: list[str]) -> None:
    """Remove files one after another, and in a folder their checksums; in a bucket some at once."""
    folder = local_folder(location)
    if bucket_and_prefix(location) is not None:
        at_once(open_s3_writer(location, S3Options()).delete, names)
        return
    try:
        for name in names:
            path = os.path.join(folder or location, name)
            for each in (path, checksums_path(path)):
                with suppress(FileNotFoundError):
                    os.unlink(each)
    except OSError as failed:
        raise RetriableError(
            f"a file that {location} no longer needs cannot be removed: {failed.strerror}; give this user the right to "
            "write there"
        ) from failed
