"""small_table: how do many processes change a small table at once, without an engine, so that no change is lost?

A table of some thousand rows is read as a whole and written as a whole, by delta-rs, as the version behind the one
that was read: compare and set. Delta's commit decides: who finds that version there already reads again and makes its
change anew. So a change is made over the rows that it was decided on, or not at all. A change that leaves the rows as
they are makes no commit.

In a folder the version is a file that is linked if there is none of its name; on S3 an object that is put on the same
condition. A store that ignores the condition is refused (`UsageError`), by putting an object twice when the table is
made.

The log of such a table grows by a version a change; checkpoints, and files that nobody reads any more, are seen to.

Errors: `RetriableError` where the store does not answer, or where others are always faster.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from coldlog.archive.stores.s3_environment import create_s3_client
from coldlog.errors import RetriableError, UsageError
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta.locations import bucket_and_prefix, spark_uri
from coldlog.tables.delta.table_storage import delta_storage_options, file_opener, storage_error

Row = dict[str, object]

_ATTEMPTS = 200
_LONGEST_PAUSE_S = 0.25
_TIDY_EVERY = 100
_KEPT_HOURS = 1
_PROPERTIES = {"delta.checkpointInterval": str(_TIDY_EVERY), "delta.logRetentionDuration": "interval 1 days"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTable:
    """A table below the warehouse at `uri`; any number of threads and processes may change it."""

    uri: str
    table: TableDefinition
    _turn: threading.RLock = field(default_factory=threading.RLock, init=False, repr=False, compare=False)
    """Threads of one process need not race each other."""

    @property
    def location(self) -> str:
        """Where it lies, in words of delta-rs."""
        return f"{spark_uri(self.uri)}/{self.table.name}"

    def exists(self) -> bool:
        """Somebody has written it."""
        return self._open() is not None

    def read(self) -> list[Row]:
        """All rows; none where there is no table."""
        for _ in range(_ATTEMPTS):
            opened = self._open()
            rows = [] if opened is None else self._rows(opened)
            if rows is not None:
                return rows
        raise self._busy()

    def change(self, change: Callable[[list[Row]], Sequence[Row]]) -> list[Row]:
        """Makes the rows what `change` makes of them, and returns them; it may be called more than once."""
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
        try:
            return DeltaTable(self.location, storage_options=delta_storage_options(self.location))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as failed:
            raise storage_error(failed, self.location) from None

    def _create(self) -> DeltaTable:
        _require_conditional_puts(self.location)
        with suppress(CommitFailedError, DeltaError):
            # Another process may be faster.
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
                f"table {self.location} cannot be made; look at its folder's permissions, or run again"
            )
        return created

    def _rows(self, opened: DeltaTable) -> list[Row] | None:
        """None where its files went while it was read."""
        try:
            rows = [row for path in _paths_of(opened) for row in self._rows_of_file(path)]
        except FileNotFoundError:
            return None
        except (DeltaError, OSError, pa.ArrowException) as failed:
            raise storage_error(failed, self.location) from None
        return sorted(rows, key=lambda row: [str(row[name]) for name in self.table.key])

    def _rows_of_file(self, path: str) -> list[Row]:
        # By this thread alone. delta-rs's own way to Arrow lets Arrow's threads hold Python's objects, and a process
        # that ended right behind it was aborted, one of 25 of them.
        with file_opener(self.location)(path) as file, pq.ParquetFile(file) as parquet:
            return _rows_of(parquet.read(columns=list(self.table.column_names), use_threads=False))

    def _replace(self, opened: DeltaTable, rows: pa.Table) -> bool:
        """As the version behind that one; False where there is such a version."""
        try:
            write_deltalake(opened, rows, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))
        except CommitFailedError:
            return False
        except (DeltaError, OSError) as failed:
            raise storage_error(failed, self.location) from None
        return True

    def _tidy(self, opened: DeltaTable) -> None:
        if opened.version() % _TIDY_EVERY == 0:
            # Somebody else's turn will come.
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
        return RetriableError(f"table {self.location} was changed by others each of {_ATTEMPTS} times; run again")


def _paths_of(opened: DeltaTable) -> list[str]:
    """Below its location."""
    paths: list[str] = pa.table(opened.get_add_actions()).column("path").to_pylist()
    return paths


def _rows_of(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    return rows


def _require_conditional_puts(location: str) -> None:
    place = bucket_and_prefix(location)
    if place is None:
        return
    # Only those who use S3 wait for it.
    from botocore.exceptions import BotoCoreError, ClientError

    client, asked = create_s3_client(), {"Bucket": place[0], "Key": f"{place[1]}/.coldlog-condition".lstrip("/")}
    try:
        client.put_object(**asked, Body=b"")
        client.put_object(**asked, Body=b"", IfNoneMatch="*")
    except ClientError as refused:
        if refused.response["ResponseMetadata"]["HTTPStatusCode"] in (409, 412):
            return
        raise RetriableError(f"{location} cannot be written: {refused.response['Error'].get('Code')}") from None
    except BotoCoreError as failed:
        raise RetriableError(f"{location} cannot be reached ({type(failed).__name__}); run again") from None
    raise UsageError(
        f"the store of {location} puts objects although they exist (If-None-Match is ignored), so that two jobs would "
        "overwrite each other's changes; use a store with conditional writes, or a warehouse elsewhere"
    )
