"""Find the version that a table had at a moment of the past.

A moment is a time or a version of `partition_metadata`, the table that a run publishes last: `v12` is the moment of
that commit. Each table is read in the version that was its newest at that moment. A table that was created later counts
as empty. A version's time is that of its file in Delta's log, as Delta and delta-rs find it; the time inside the file
is another one, a few milliseconds away. One clock counts for all tables of a warehouse.

Refused with `UsageError`: a moment before the warehouse existed, a version that does not exist, and a moment that is
older than a table's log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coldlog.errors import UsageError
from coldlog.runtime.console import human_timestamp
from coldlog.runtime.timestamps import timestamp_from_text
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.files.table_files import commit_ms, open_table
from coldlog.tables.delta.locations import table_location

_VERSION = re.compile(r"v([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A version of a table, and when it was written."""

    version: int
    committed_ms: int

    def __str__(self) -> str:
        return f"v{self.version} of {human_timestamp(self.committed_ms)}"


def find_moment(as_of: str, published: Sequence[Commit]) -> int:
    """Return the moment of `as_of` in epoch milliseconds; `published` are the commits of partition_metadata."""
    available = f"there are {published[0]} to {published[-1]}"
    version = _VERSION.fullmatch(as_of)
    if version:
        for commit in published:
            if commit.version == int(version[1]):
                return commit.committed_ms
        raise UsageError(f"warehouse.as_of = {as_of}: partition_metadata has no such version; {available}")
    try:
        moment_ms = timestamp_from_text(as_of)
    except UsageError as unreadable:
        raise UsageError(f"warehouse.as_of: {unreadable}, or a version of partition_metadata (v12)") from unreadable
    if moment_ms < published[0].committed_ms:
        raise UsageError(f"warehouse.as_of = {as_of}: this is before the first version; {available}")
    return moment_ms


def find_moment_without_spark(as_of: str | None, uri: str) -> int | None:
    """Return the moment of `as_of` in the warehouse at `uri`; None is now."""
    if as_of is None:
        return None
    location = table_location(uri, PARTITION_METADATA.name)
    history = open_table(location, PARTITION_METADATA).history()
    commits = [Commit(version=each["version"], committed_ms=each["timestamp"]) for each in reversed(history)]
    asked = _VERSION.fullmatch(as_of)
    for place, commit in enumerate(commits):
        # Of the others the time is not needed, and in a bucket each takes a request.
        if place in (0, len(commits) - 1) or (asked and commit.version == int(asked[1])):
            commits[place] = replace(commit, committed_ms=commit_ms(location, commit.version) or commit.committed_ms)
    return find_moment(as_of, commits)


def find_version(commits: Sequence[Commit], moment_ms: int, table: str) -> int | None:
    """Return the newest version at that moment; None if the table did not exist yet."""
    versions = [commit.version for commit in commits if commit.committed_ms <= moment_ms]
    if versions:
        return versions[-1]
    if commits[0].version:
        raise UsageError(
            f"the log of table {table} starts at {commits[0]} and no longer has its version of "
            f"{human_timestamp(moment_ms)}; set warehouse.as_of to a later moment"
        )
    return None
