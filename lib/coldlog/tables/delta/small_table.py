"""Let many processes change a small table at once, without an engine and without losing a change.

A table of some thousand rows is read completely and written completely, with delta-rs, as the version after the one
that was read (compare and set). Delta's commit decides: a process that finds this version already there reads again and
repeats its change. So a change applies to the rows that it was computed from, or not at all. A change that leaves the
rows unchanged makes no commit.

In a folder, the version is a file that is linked only if its name does not exist. On S3, it is an object that is put
under the same condition. A store that ignores the condition is refused with `UsageError`; to find out, an object is put
twice when the table is created.

Each change adds a version to the log. The module writes checkpoints and removes old files.

Errors: `RetriableError` if the store does not answer, or if other processes are faster every time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from coldlog.archive.stores.s3_environment import create_s3_client
from coldlog.errors import RetriableError, UsageError
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.locations import bucket_and_prefix, spark_uri
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.table_storage import delta_storage_options, open_delta, read_rows, storage_error

Row = dict[str, object]

_ATTEMPTS = 200
_LONGEST_PAUSE_S = 0.25
_TIDY_EVERY = 100
_KEPT_HOURS = 1
_PROPERTIES = {"delta.checkpointInterval": str(_TIDY_EVERY), "delta.logRetentionDuration": "interval 1 days"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTable:
    """A table below the warehouse at `uri`; any number of threads and processes can change it."""

    uri: str
    table: TableDefinition
    _turn: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False, compare=False)
    """Threads of one process wait for each other instead of competing."""

    @property
    def location(self) -> str:
        """The table's place, as delta-rs names it."""
        return f"{spark_uri(self.uri)}/{self.table.name}"

    def exists(self) -> bool:
        """Whether the table was ever written."""
        return self._open() is not None

    def version(self) -> int | None:
        """The table's newest version; None if there is no table."""
        opened = self._open()
        return None if opened is None else int(opened.version())

    def read(self) -> list[Row]:
        """Read all rows; none if there is no table."""
        for _ in range(_ATTEMPTS):
            opened = self._open()
            rows = [] if opened is None else self._rows(opened)
            if rows is not None:
                return rows
        raise self._busy()

    def change(self, change: Callable[[list[Row]], Sequence[Row]]) -> list[Row]:
        """Replace the rows by what `change` makes of them, and return these; `change` may be called more than once."""
        with self._turn:
            return self._change(change)

    def _change(self, change: Callable[[list[Row]], Sequence[Row]]) -> list[Row]:
        for attempt in range(_ATTEMPTS):
            opened = self._open() or self._create()
            rows = self._rows(opened)
            if rows is None:
                continue
            changed = self._arrow(change(rows))
            if changed.equals(self._arrow(rows)):
                return _rows_of(changed)
            if self._replace(opened, changed):
                self._tidy(opened)
                return _rows_of(changed)
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE_S, 0.002 * 2 ** min(attempt, 10))))
        raise self._busy()

    def _open(self) -> DeltaTable | None:
        check_log(self.location)
        try:
            return open_delta(self.location)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as failed:
            raise storage_error(failed, self.location) from None

    def _create(self) -> DeltaTable:
        _require_conditional_puts(self.location)
        with suppress(CommitFailedError, DeltaError):
            # Another process may have created it first.
            DeltaTable.create(
                self.location,
                schema=self._schema(),
                name=self.table.name,
                description=self.table.comment,
                configuration=_PROPERTIES,
                storage_options=delta_storage_options(self.location),
            )
        created = self._open()
        if created is None:
            raise RetriableError(
                f"table {self.location} cannot be created; check the permissions of its folder, or run again"
            )
        return created

    def _rows(self, opened: DeltaTable) -> list[Row] | None:
        """Read all rows; None if files were removed meanwhile."""
        try:
            rows = [
                row for path in _paths_of(opened) for row in read_rows(self.location, path, self.table.column_names)
            ]
        except FileNotFoundError:
            return None
        except (DeltaError, OSError, pa.ArrowException) as failed:
            raise storage_error(failed, self.location) from None
        return sorted(rows, key=lambda row: [str(row[name]) for name in self.table.key])

    def _replace(self, opened: DeltaTable, rows: pa.Table) -> bool:
        """Write the rows as the version after `opened`; False if that version exists."""
        try:
            write_deltalake(opened, rows, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))
        except CommitFailedError:
            return False
        except (DeltaError, OSError) as failed:
            raise storage_error(failed, self.location) from None
        return True

    def _tidy(self, opened: DeltaTable) -> None:
        if opened.version() % _TIDY_EVERY == 0:
            # If it fails, another process will do it later.
            with suppress(CommitFailedError, DeltaError, OSError):
                opened.vacuum(retention_hours=_KEPT_HOURS, enforce_retention_duration=False, dry_run=False)

    def _arrow(self, rows: Sequence[Row]) -> pa.Table:
        key = self.table.key
        ordered = sorted(rows, key=lambda row: [str(row[name]) for name in key])
        return pa.Table.from_pylist(ordered, schema=self.table.arrow_schema)

    def _schema(self) -> pa.Schema:
        comments = {column.name: column.comment for column in self.table.columns}
        return pa.schema([each.with_metadata({"comment": comments[each.name]}) for each in self.table.arrow_schema])

    def _busy(self) -> RetriableError:
        return RetriableError(f"other processes changed table {self.location} in all {_ATTEMPTS} attempts; run again")


def _paths_of(opened: DeltaTable) -> list[str]:
    """List the table's files, below its location."""
    paths: list[str] = pa.table(opened.get_add_actions()).column("path").to_pylist()
    return paths


def _rows_of(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    return rows


def _require_conditional_puts(location: str) -> None:
    place = bucket_and_prefix(location)
    if place is None:
        return
    # Imported here, so that only users of S3 wait for it.
    from botocore.exceptions import BotoCoreError, ClientError

    client, probe = create_s3_client(), {"Bucket": place[0], "Key": f"{place[1]}/.coldlog-condition".lstrip("/")}
    try:
        client.put_object(**probe, Body=b"")
        client.put_object(**probe, Body=b"", IfNoneMatch="*")
    except ClientError as refused:
        if refused.response["ResponseMetadata"]["HTTPStatusCode"] in (409, 412):
            return
        raise RetriableError(f"{location} cannot be written: {refused.response['Error'].get('Code')}") from None
    except BotoCoreError as failed:
        raise RetriableError(f"{location} cannot be reached ({type(failed).__name__}); run again") from None
    raise UsageError(
        f"the store of {location} ignores If-None-Match, so two jobs would overwrite each other's changes; use a store "
        "with conditional writes, or put the warehouse elsewhere"
    )
