"""as_of: which version had a table at a moment of the past?

A moment is a time, or a version of `partition_metadata`, the table that a run publishes last: `v12` is the moment of
that commit. Each table is then read in the version that was its newest at that moment; a table that came later counts
as empty. The times of versions are those of Delta's log, on one clock for all tables of a warehouse.

Refused with `UsageError`: a moment before there was a warehouse, a version that does not exist, and a moment that a
table's log no longer reaches back to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.runtime.console import human_timestamp
from coldlog.runtime.timestamps import timestamp_from_text

_VERSION = re.compile(r"v([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A version of a table, and when it was written."""

    version: int
    committed_ms: int

    def __str__(self) -> str:
        return f"v{self.version} of {human_timestamp(self.committed_ms)}"


def list_commits(spark: SparkSession, location: str) -> list[Commit]:
    """Every version that the table's log still tells of, the oldest first."""
    history = DeltaTable.forPath(spark, location).history()
    rows = history.select("version", F.unix_millis("timestamp").alias("committed_ms")).orderBy("version").collect()
    return [Commit(version=row["version"], committed_ms=row["committed_ms"]) for row in rows]


def find_moment(as_of: str, published: Sequence[Commit]) -> int:
    """Epoch milliseconds of the moment that `as_of` means; `published` are the commits of partition_metadata."""
    there_are = f"there are {published[0]} to {published[-1]}"
    version = _VERSION.fullmatch(as_of)
    if version:
        for commit in published:
            if commit.version == int(version[1]):
                return commit.committed_ms
        raise UsageError(f"warehouse.as_of = {as_of}: there is no such version of partition_metadata; {there_are}")
    try:
        moment_ms = timestamp_from_text(as_of)
    except UsageError as unreadable:
        raise UsageError(f"warehouse.as_of: {unreadable}, or a version of partition_metadata (v12)") from unreadable
    if moment_ms < published[0].committed_ms:
        raise UsageError(f"warehouse.as_of = {as_of}: that is before the first version; {there_are}")
    return moment_ms


def find_version(commits: Sequence[Commit], moment_ms: int, table: str) -> int | None:
    """The newest version of that moment; None: the table was not there yet."""
    versions = [commit.version for commit in commits if commit.committed_ms <= moment_ms]
    if versions:
        return versions[-1]
    if commits[0].version:
        raise UsageError(
            f"the log of table {table} reaches back to {commits[0]} only: what it held at "
            f"{human_timestamp(moment_ms)} is not known any more; ask for a later moment"
        )
    return None
