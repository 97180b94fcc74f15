"""Read and write the tables of a warehouse with Spark.

A warehouse is a folder of Delta tables. All reads (`warehouse_reads`) and writes of jobs with Spark use this module.
Writes select the columns of the table's definition, as reads do, so a table cannot differ from its definition
unnoticed.

- A write that would change nothing makes no commit.
- Few rows are changed, and files of rows added, in this process, without a query (`plain_commit`).
- A warehouse `as_of` a moment of the past is read as it was then and cannot be written.
- With a `lease` (a warehouse on S3), every commit carries the lease's number; none is made after a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import RLock

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.errors import ColdlogError, UsageError
from coldlog.model.states import IndexDepth
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.tables.definitions.catalog import ALL_TABLES, INDEX_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta import warehouse_reads
from coldlog.tables.delta.delta_log import (
    add_files,
    stored_column_names,
)
from coldlog.tables.delta.files.data_files import DataFile
from coldlog.tables.delta.files.table_files import (
    list_table_files,
)
from coldlog.tables.delta.plain_commit import LaterWriterError, commit_files, commit_rows, create_table
from coldlog.tables.delta.row_edits import Change, Row, RowChange, RowMerge, RowRemoval
from coldlog.tables.delta.warehouse_reads import TABLES_AT_ONCE, WarehouseReads
from coldlog.tables.leases.lease_objects import FOLDER
from coldlog.tables.leases.warehouse_lease import APPLICATION, LeaseLostError, WarehouseLease

_IDEMPOTENT_WRITE = "spark.databricks.delta.write"
_CANNOT_BE_REBUILT = (*(table for table in INDEX_TABLES if table is not INTERVAL_INDEX), SEGMENT_EVENTS)
_DEFAULTS = "spark.databricks.delta.properties.defaults."


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse(WarehouseReads):
    """The tables below `uri`, to read and to write; see `WarehouseReads`."""

    lease: WarehouseLease | None = None
    _lock: RLock = field(default_factory=RLock, init=False, repr=False, compare=False)

    def _refuse_writing(self) -> None:
        if self.as_of is not None:
            raise UsageError(f"a warehouse as of {self.as_of} is read-only; unset warehouse.as_of to write to it")

    @contextmanager
    def commits(self) -> Iterator[tuple[str, int] | None]:
        """Wrap one commit, so that it is made only if this lease is still valid.

        Yields the transaction identifier (application, number) of the commit; Spark's own writers read it from the
        session. OPTIMIZE carries no identifier: for it, the lease is checked before and after.
        """
        self._refuse_writing()
        lease = self.lease
        if lease is None:
            yield None
            return
        # The session holds the identifier during the commit, so commits are made one by one.
        with self._lock:
            lease.require()
            number = lease.next_version()
            identifier = {"txnAppId": APPLICATION, "txnVersion": str(number)}
            for key, value in identifier.items():
                self.spark.conf.set(f"{_IDEMPOTENT_WRITE}.{key}", value)
            try:
                yield APPLICATION, number
            except (PySparkException, Py4JJavaError) as failed:
                if "DELTA_CONCURRENT_TRANSACTION" in str(failed):
                    raise LeaseLostError(
                        f"a commit to {self.uri} conflicts with one of another job, which now writes this warehouse; "
                        "run the job again"
                    ) from failed
                raise
            finally:
                for key in identifier:
                    self.spark.conf.unset(f"{_IDEMPOTENT_WRITE}.{key}")
            lease.confirm()

    def fence(self) -> None:
        """Block every holder of an earlier lease; call this before any read.

        It commits the number of this lease to every table, with Spark only where a table needs it.
        """
        lease = self.lease
        if lease is None:
            return
        lease.require()
        tables = [table for table in ALL_TABLES if self.has(table)]

        def fence_table(table: TableDefinition) -> None:
            try:
                if commit_files(self.data_location(table), table, [], [(APPLICATION, lease.first_version)]) is not None:
                    return
            except LaterWriterError as later:
                lease.confirm()
                raise self._skipped_commit(table, lease) from later
            no_rows = self.local(table, [])
            writer = no_rows.write.format("delta").mode("append").option("txnAppId", APPLICATION)
            with self._requiring_a_commit(table, lease):
                writer.option("txnVersion", str(lease.first_version)).save(self.location(table))

        with ThreadPoolExecutor(TABLES_AT_ONCE) as commits:
            for commit in [commits.submit(fence_table, table) for table in tables]:
                commit.result()
        lease.confirm()

    @contextmanager
    def _requiring_a_commit(self, table: TableDefinition, lease: WarehouseLease) -> Iterator[None]:
        """Raise an error if no commit was made: Delta silently skips a commit with a transaction number that is not
        above the newest one in the table."""
        before = self.newest_version(table)
        yield
        if self.newest_version(table) == before:
            lease.confirm()
            raise self._skipped_commit(table, lease)

    def _skipped_commit(self, table: TableDefinition, lease: WarehouseLease) -> ColdlogError:
        return ColdlogError(
            f"a commit to {self.location(table)} was skipped: the table has a later writer than lease "
            f"{lease.number}, so objects below {self.uri}/{FOLDER} were lost; when no job writes this warehouse, "
            "delete everything below that folder and run again: new leases get higher numbers"
        )

    def create_missing(self) -> int:
        """Create every missing table, and add missing columns to tables of an older release.

        Returns the number of created tables. Raises `UsageError` if a table is missing whose rows cannot be made again
        from `segments`, or if a table has no column that is required.
        """
        self._refuse_writing()
        there = self._check_logs()
        self.data_location(SEGMENTS)  # raises `UsageError` before any write if tasks cannot write there
        missing = [table for table in ALL_TABLES if table not in there]
        lost = [table.name for table in missing if table in _CANNOT_BE_REBUILT]
        if INTERVAL_INDEX in missing and SEGMENTS not in missing and self._has_index(IndexDepth.SIDECAR):
            lost.append(INTERVAL_INDEX.name)  # a warehouse of an older release has none, and no such segment
        if lost and SEGMENTS not in missing and self._has_index():
            raise UsageError(
                f"the warehouse {self.uri} has indexed segments, but no table {', '.join(lost)}; restore it from a "
                "copy, or run rebuild_tables, which makes the tables anew from the archive"
            )
        self._add_columns([table for table in ALL_TABLES if table not in missing])

        defaults = {
            f"delta.{key.removeprefix(_DEFAULTS)}": value
            for key, value in self.spark.conf.getAll.items()
            if key.startswith(_DEFAULTS)
        }

        def create(table: TableDefinition) -> None:
            if not create_table(self.location(table), table, table.schema_json, defaults):
                self.spark.sql(table.create_statement(self.identifier(table), self.location(table)))

        with ThreadPoolExecutor(TABLES_AT_ONCE) as creations:
            for creation in [creations.submit(create, table) for table in missing]:
                creation.result()
        return len(missing)

    def _add_columns(self, tables: Sequence[TableDefinition]) -> None:
        with ThreadPoolExecutor(TABLES_AT_ONCE) as reads:
            stored = list(reads.map(lambda table: stored_column_names(self.spark, self.location(table)), tables))
        for table, names in zip(tables, stored, strict=True):
            statement = table.add_columns_statement(self.identifier(table), names)
            if statement is not None:
                with self.commits():
                    self.spark.sql(statement)

    def _has_index(self, depth: IndexDepth | None = None) -> bool:
        # Not `read`: the table may be of an earlier release, with fewer columns.
        segments = self.spark.read.format("delta").load(self.location(SEGMENTS))
        built = segments.where("build_number IS NOT NULL")
        return bool((built if depth is None else built.where(F.col("index_depth") == depth.value)).head(1))

    def append(self, table: TableDefinition, rows: DataFrame | Sequence[Row], *, count: int | None = None) -> None:
        """Add rows; `count`: see `merge`."""
        few = self._few(rows, table.column_names, count)
        if few is not None:
            if not few or self.change_rows(table, RowChange(added=few)) is not None:
                return
            rows = few
        if not isinstance(rows, DataFrame):
            rows = self.local(table, rows)
        checked = nullcontext() if self.lease is None else self._requiring_a_commit(table, self.lease)
        with self.commits(), checked, self.encodings(table):
            rows.select(*table.column_names).write.format("delta").mode("append").save(self.location(table))

    def change_rows(self, table: TableDefinition, change: Change) -> int | None:
        """Make the change in one commit without a Spark job; return the number of changed rows.

        None: the table needs Spark, and nothing was written (`commit_rows`).
        """
        with self.commits() as transaction, self._confirming_the_lease():
            return commit_rows(self.data_location(table), table, change, transaction)

    @contextmanager
    def _confirming_the_lease(self) -> Iterator[None]:
        """If a later writer is the reason that nothing was committed, say whether the lease was lost."""
        try:
            yield
        except LaterWriterError:
            if self.lease is not None:
                self.lease.confirm()
            raise

    @staticmethod
    def _few(
        rows: DataFrame | pa.Table | Sequence[Row], names: Sequence[str], count: int | None
    ) -> pa.Table | Sequence[Row] | None:
        """Return rows that are few enough to be written without Spark; None if they are not, or may not be."""
        if isinstance(rows, DataFrame):
            is_few = count is not None and count <= warehouse_reads.FEW_ROWS
            return rows.select(*names).toArrow().to_pylist() if is_few else None
        return rows if len(rows) <= warehouse_reads.WRITTEN_HERE * warehouse_reads.FEW_ROWS else None

    def add_files(self, table: TableDefinition, files: Sequence[DataFile]) -> None:
        """Append the rows of files that are already at the table's location.

        Delta's own commit takes the JVM several times as long as `commit_files`, and makes it for tables that need it.
        """
        with self.commits() as transaction:
            numbers = [] if transaction is None else [transaction]
            with self._confirming_the_lease():
                if commit_files(self.data_location(table), table, files, numbers) is not None:
                    return
            with nullcontext() if self.lease is None else self._requiring_a_commit(table, self.lease):
                add_files(self.spark, self.location(table), files, numbers)

    @contextmanager
    def encodings(self, table: TableDefinition) -> Iterator[None]:
        """Set Parquet's options in the session during a write, because Delta ignores a writer's options for Parquet."""
        options = {f"parquet.enable.dictionary#{name}": "false" for name in table.delta_packed}
        if table.row_group_rows is not None:
            options["parquet.block.row.count.limit"] = str(table.row_group_rows)
        for key, value in options.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key in options:
                self.spark.conf.unset(key)

    def merge(
        self,
        table: TableDefinition,
        rows: DataFrame | pa.Table | Sequence[Row],
        *,
        update: tuple[str, ...] = (),
        remove: str = "",
        count: int | None = None,
    ) -> None:
        """Insert rows with a new key and update the others: the columns in `update`, or all columns.

        Keys must not repeat in `rows`. With `update`, `rows` needs only the key and these columns, and nothing is
        inserted. `remove` names a boolean column of `rows`: where it is true, the same commit removes the stored row.
        `count` is the number of rows, if the caller knows it: few rows are written without Spark's planning, which
        takes longer than the write.
        """
        self._refuse_writing()
        names = (*table.key, *update) if update else table.column_names
        few = self._few(rows, [*names, *([remove] if remove else [])], count)
        if few is not None:
            change = RowMerge(table=table, rows=few, update=update, remove=remove)
            if not len(few) or self.change_rows(table, change) is not None:
                return
        if not isinstance(rows, DataFrame):
            fields = [table.arrow_schema.field(name) for name in names]
            fields += [pa.field(remove, pa.bool_())] if remove else []
            if not isinstance(rows, pa.Table):
                rows = pa.Table.from_pylist(list(rows), schema=pa.schema(fields))
            rows = frame_of(self.spark, rows.select([field.name for field in fields]).cast(pa.schema(fields)))
        if self.is_known_empty(table):
            if not update:
                self.append(table, rows.where(~F.col(remove)) if remove else rows)
            return
        source = f"coldlog_merge_{table.name}"
        rows.select(*names, *([remove] if remove else [])).createOrReplaceTempView(source)
        on = " AND ".join(f"t.{name} = s.{name}" for name in table.key)
        changes = ", ".join(f"t.{name} = s.{name}" for name in names if name not in table.key)
        delete = f"WHEN MATCHED AND s.{remove} THEN DELETE" if remove else ""
        insert = "" if update else "WHEN NOT MATCHED THEN INSERT *"
        with self.commits(), self.encodings(table):
            self.spark.sql(
                f"MERGE INTO {self.identifier(table)} t USING {source} s ON {on} {delete} "
                f"WHEN MATCHED THEN UPDATE SET {changes} {insert}"
            )
        self.spark.catalog.dropTempView(source)

    def delete_keys(self, table: TableDefinition, keys: DataFrame) -> None:
        """Remove the rows whose key is in `keys`."""
        if not self.is_known_empty(table):
            self.delete_matching(table, self.rows_if_few(keys.select(*table.key)))

    def delete_matching(self, table: TableDefinition, rows: DataFrame | Sequence[Row]) -> None:
        """Remove every row that equals a row of `rows` in all columns of `rows`; these rows must not repeat."""
        self._refuse_writing()
        if self.is_known_empty(table):
            return
        if not isinstance(rows, DataFrame):
            if not rows or self.change_rows(table, RowRemoval(rows=rows)) is not None:
                return
            schema = pa.schema([table.arrow_schema.field(name) for name in rows[0]])
            rows = frame_of(self.spark, pa.Table.from_pylist(list(rows), schema=schema))
        source = f"coldlog_stale_{table.name}"
        rows.createOrReplaceTempView(source)
        on = " AND ".join(f"t.{name} = s.{name}" for name in rows.columns)
        with self.commits(), self.encodings(table):
            self.spark.sql(f"MERGE INTO {self.identifier(table)} t USING {source} s ON {on} WHEN MATCHED THEN DELETE")
        self.spark.catalog.dropTempView(source)

    def delete_build_after(self, table: TableDefinition, build_number: int) -> None:
        """Remove rows of builds after `build_number`, which were written by a build that was never published.

        If there is nothing to remove, the file statistics of build_number say so, without a query.
        """
        self._refuse_writing()
        files = list_table_files(self.data_location(table), table, ["build_number"])
        if any(files.ranges.maxima["build_number"] > build_number):
            with self.commits():
                self.spark.sql(f"DELETE FROM {self.identifier(table)} WHERE build_number > {int(build_number)}")
