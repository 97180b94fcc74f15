"""Let many processes change a small table at once, without an engine and without losing a change.

A table of some thousand rows is read completely and written completely, with delta-rs, as the version after the one
that was read (compare and set). Delta's commit decides: a process that finds this version already there reads again and
repeats its change. So a change applies to the rows that it was computed from, or not at all. A change that leaves the
rows unchanged makes no commit.

In a folder, the version is a file that is linked only if its name does not exist. On S3, it is an object that is put
under the same condition. A store that ignores the condition is refused with `UsageError`; to find out, an object is put
twice when the table is created.

Each change adds a version to the log. The module writes checkpoints and removes old files. Of a table in a bucket, the
log after the last checkpoint would be two requests a version. So a table that was read stays open, and the next change
reads only the versions after it. After an error it is opened again.

Errors: `RetriableError` if the store does not answer, or if other processes are faster every time.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from coldlog.archive.stores.s3_environment import s3_client
from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.runtime.opened_here import check_delta_rs
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.files.parquet_files import read_rows
from coldlog.tables.delta.locations import bucket_and_prefix, local_folder, spark_uri
from coldlog.tables.delta.log_check import check_log
from coldlog.tables.delta.log_files import pause
from coldlog.tables.delta.table_storage import delta_storage_options, open_delta, storage_error

Row = dict[str, object]

_ATTEMPTS = 200
_TIDY_EVERY = 100
_CHECKPOINT_EVERY = 20
"""Who opens a table in a folder reads all commits since the last checkpoint, 1 ms each."""
_KEPT_HOURS = 1
_PROPERTIES = {
    "delta.checkpointInterval": str(_CHECKPOINT_EVERY),
    "delta.logRetentionDuration": "interval 1 days",
}


class _Opened(NamedTuple):
    """An open table, and the options that it was opened with: None in a folder, where it is not kept."""

    table: DeltaTable
    options: dict[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTable:
    """A table below the warehouse at `uri`; any number of threads and processes can change it."""

    uri: str
    table: TableDefinition
    _turn: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False, compare=False)
    """Threads of one process wait for each other instead of competing."""
    _kept: list[_Opened] = field(default_factory=list, init=False, repr=False, compare=False)
    """At most one table that is open. Who uses it takes it out."""

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
        return None if opened is None else int(opened.table.version())

    def read(self) -> list[Row]:
        """Read all rows; none if there is no table."""
        for _ in range(_ATTEMPTS):
            opened = self._open()
            rows = [] if opened is None else self._rows(opened)
            if rows is not None:
                self._keep(opened)
                return rows
        raise self._busy()

    def change(self, change: Callable[[list[Row]], Sequence[Row]]) -> list[Row]:
        """Replace the rows by what `change` makes of them, and return these; `change` may be called more than once."""
        with self._turn:
            return self._change(change)

    def replace_all(self, rows: Sequence[Row]) -> None:
        """Replace all rows by these. A table in a folder that is damaged, as after a loss of power, is made anew."""
        try:
            self.change(lambda _: rows)
        except ColdlogError:
            folder = local_folder(self.location)
            if folder is None:
                raise
            shutil.rmtree(folder, ignore_errors=True)
            self.change(lambda _: rows)

    def _change(self, change: Callable[[list[Row]], Sequence[Row]]) -> list[Row]:
        for attempt in range(_ATTEMPTS):
            opened = self._open() or self._create()
            rows = self._rows(opened)
            if rows is None:
                continue
            changed = self._arrow(change(rows))
            if changed.equals(self._arrow(rows)):
                self._keep(opened)
                return _rows_of(changed)
            if self._replace(opened, changed):
                self._tidy(opened.table)
                self._keep(opened)
                return _rows_of(changed)
            self._keep(opened)
            pause(attempt)
        raise self._busy()

    def _open(self) -> _Opened | None:
        check_log(self.location)
        options = delta_storage_options(self.location)
        kept = self._kept.pop() if self._kept else None
        if kept is not None and kept.options == options:
            check_delta_rs()
            with suppress(DeltaError, OSError):
                kept.table.update_incremental()
                return kept
        try:
            return _Opened(open_delta(self.location, options), options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as failed:
            raise storage_error(failed, self.location) from None

    def _keep(self, opened: _Opened | None) -> None:
        if opened is not None and opened.options is not None:
            self._kept[:] = [opened]

    def _create(self) -> _Opened:
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

    def _rows(self, opened: _Opened) -> list[Row] | None:
        """Read all rows; None if files were removed meanwhile."""
        try:
            columns, paths = self.table.column_names, _paths_of(opened.table)
            rows = [row for path in paths for row in read_rows(self.location, path, columns)]
        except FileNotFoundError:
            return None
        except (DeltaError, OSError, pa.ArrowException) as failed:
            raise storage_error(failed, self.location) from None
        # A table of an earlier release may have fewer columns. The next change adds them.
        complete = ({name: row.get(name) for name in columns} for row in rows)
        return sorted(complete, key=lambda row: [str(row[name]) for name in self.table.key])

    def _replace(self, opened: _Opened, rows: pa.Table) -> bool:
        """Write the rows as the version after `opened`; False if that version exists."""
        # For the cleanup, delta-rs lists the whole log, which has a hundred pages after a busy day.
        is_tidy = (opened.table.version() + 1) % _TIDY_EVERY == 0
        try:
            write_deltalake(
                opened.table,
                rows,
                mode="overwrite",
                schema_mode="merge" if self._lacks_columns(opened.table) else None,
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=is_tidy),
            )
        except CommitFailedError:
            return False
        except (DeltaError, OSError) as failed:
            raise storage_error(failed, self.location) from None
        return True

    def _lacks_columns(self, opened: DeltaTable) -> bool:
        return not set(self.table.column_names) <= {field.name for field in opened.schema().fields}

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

    client, probe = s3_client(), {"Bucket": place[0], "Key": f"{place[1]}/.coldlog-condition".lstrip("/")}
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
