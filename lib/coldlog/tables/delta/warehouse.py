"""Read and write the tables of a warehouse with Spark.

A warehouse is a folder of Delta tables. All reads and writes of jobs with Spark use this module. Reads select the
columns of the table's definition, and writes select them too, so a table cannot differ from its definition unnoticed.

- A write that would change nothing makes no commit.
- A small table costs no query: its rows are read, and few rows are changed, in this process (`plain_commit`).
- A warehouse `as_of` a moment of the past is read as it was then and cannot be written.
- With a `lease` (a warehouse on S3), every commit carries the lease's number; none is made after a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import RLock

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from coldlog.errors import ColdlogError, UsageError
from coldlog.model.states import IndexDepth
from coldlog.runtime.arrow_frames import frame_of
from coldlog.runtime.setting_uris import require_same_place
from coldlog.tables.definitions.catalog import ALL_TABLES, INDEX_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.as_of import find_moment, find_version
from coldlog.tables.delta.data_files import DataFile
from coldlog.tables.delta.delta_log import (
    add_files,
    file_count_if_known,
    find_data_location,
    newest_version,
    stored_column_names,
    unnamed_damage,
)
from coldlog.tables.delta.file_checksums import damaged
from coldlog.tables.delta.locations import spark_uri
from coldlog.tables.delta.log_check import LOG_FOLDER, check_log, newest_commit_path
from coldlog.tables.delta.manifest import HELD_TABLES, NUMBERED_TABLES, check_published
from coldlog.tables.delta.plain_commit import LaterWriterError, commit_rows, create_table
from coldlog.tables.delta.row_edits import Change, Row, RowChange, RowMerge, RowRemoval
from coldlog.tables.delta.table_files import (
    NoTableError,
    list_table_files,
    read_columns,
    read_file_rows,
    read_if_small,
)
from coldlog.tables.delta.table_history import list_commits
from coldlog.tables.leases.lease_objects import FOLDER
from coldlog.tables.leases.warehouse_lease import APPLICATION, LeaseLostError, WarehouseLease

_IDEMPOTENT_WRITE = "spark.databricks.delta.write"
_CANNOT_BE_REBUILT = (*(table for table in INDEX_TABLES if table is not INTERVAL_INDEX), SEGMENT_EVENTS)
_DEFAULTS = "spark.databricks.delta.properties.defaults."
_FEW_ROWS = 1_000
"""So many are read and written in this process: Spark's planning takes longer."""
_FEW_FILES = 8
_SMALL_TABLES = 10
"""So many times `_FEW_ROWS` are worked on in this process where Spark would start tasks in Python for them."""
_SMALL_TABLE_FILES = 64
_TABLES_AT_ONCE = 8
"""Each table takes some requests to the store, one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """The tables below `uri`, as `spark` sees them.

    `as_of` is a time (ISO 8601 or epoch milliseconds) or `v<N>`, a version of partition_metadata; None is now. It is
    resolved at the first read and kept, so one object shows one moment.

    `partitions`, if they are given, are topics and partitions: of tables with these columns, only their rows are read.
    """

    spark: SparkSession
    uri: str
    as_of: str | None = None
    lease: WarehouseLease | None = None
    partitions: frozenset[tuple[str, int]] | None = None
    _lock: RLock = field(default_factory=RLock, init=False, repr=False, compare=False)
    _versions: dict[str, int | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _moments: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def as_of_ms(self) -> int | None:
        """The moment of `as_of`; None is now."""
        if self.as_of is None:
            return None
        if not self._moments:
            self.require_tables()
            self._moments.append(find_moment(self.as_of, list_commits(self.spark, self.location(PARTITION_METADATA))))
        return self._moments[0]

    def version(self, table: TableDefinition) -> int | None:
        """The table's version at the moment of `as_of`; None if it did not exist yet."""
        moment_ms = self.as_of_ms
        if moment_ms is None:
            raise UsageError(f"the warehouse {self.uri} is read as it is now; set warehouse.as_of to fix a version")
        if table.name not in self._versions:
            commits = list_commits(self.spark, self.location(table))
            self._versions[table.name] = find_version(commits, moment_ms, table.name)
        return self._versions[table.name]

    def newest_version(self, table: TableDefinition) -> int:
        """The table's newest version."""
        return newest_version(self.spark, self.location(table))

    def _refuse_writing(self) -> None:
        if self.as_of is not None:
            raise UsageError(f"a warehouse as of {self.as_of} is read-only; unset warehouse.as_of to write to it")

    @contextmanager
    def commits(self) -> Iterator[tuple[str, int] | None]:
        """Wrap one commit, so that it is made only if this lease is still valid.

        Yields the transaction identifier (application, number) of the commit; Spark's own writers read it from the
        session. OPTIMIZE and VACUUM carry no identifier: for them, the lease is checked before and after.
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
        """Block every holder of an earlier lease; call this before any read."""
        lease = self.lease
        if lease is None:
            return
        lease.require()
        tables = [table for table in ALL_TABLES if self.has(table)]

        def fence_table(table: TableDefinition) -> None:
            no_rows = self.local(table, [])
            writer = no_rows.write.format("delta").mode("append").option("txnAppId", APPLICATION)
            with self._requiring_a_commit(table, lease):
                writer.option("txnVersion", str(lease.first_version)).save(self.location(table))

        with ThreadPoolExecutor(_TABLES_AT_ONCE) as commits:
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
            raise ColdlogError(
                f"a commit to {self.location(table)} was skipped: the table has a later writer than lease "
                f"{lease.number}, so objects below {self.uri}/{FOLDER} were lost; when no job writes this warehouse, "
                "delete everything below that folder and run again: new leases get higher numbers"
            )

    def location(self, table: TableDefinition) -> str:
        """The place of a table; `UsageError` if the readers without Spark would look elsewhere."""
        place = f"{spark_uri(self.uri)}/{table.name}"
        require_same_place(place)
        return place

    def identifier(self, table: TableDefinition) -> str:
        """The table's name in statements: its path, so that the catalog does not matter."""
        return "delta.`" + self.location(table).replace("`", "``") + "`"

    def create_missing(self) -> int:
        """Create every missing table, and add missing columns to tables of an older release.

        Returns the number of created tables. Raises `UsageError` if a table is missing whose rows cannot be made again
        from `segments`, or if a table has no column that is required.
        """
        self._refuse_writing()
        self._check_logs()
        self.data_location(SEGMENTS)  # raises `UsageError` before any write if tasks cannot write there
        with ThreadPoolExecutor(_TABLES_AT_ONCE) as checks:
            are_there = list(checks.map(self.has, ALL_TABLES))
        missing = [table for table, is_there in zip(ALL_TABLES, are_there, strict=True) if not is_there]
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
            schema = StructType.fromDDL(", ".join(column.ddl for column in table.columns)).json()
            if not create_table(self.location(table), table, schema, defaults):
                self.spark.sql(table.create_statement(self.identifier(table), self.location(table)))

        with ThreadPoolExecutor(_TABLES_AT_ONCE) as creations:
            for creation in [creations.submit(create, table) for table in missing]:
                creation.result()
        return len(missing)

    def _add_columns(self, tables: Sequence[TableDefinition]) -> None:
        with ThreadPoolExecutor(_TABLES_AT_ONCE) as reads:
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

    def require_tables(self) -> None:
        """Raise `UsageError` with the names of missing tables, `ColdlogError` if the log of a table is damaged."""
        self._check_logs()
        missing = [table.name for table in ALL_TABLES if not self.has(table)]
        if missing:
            raise UsageError(
                f"{self.uri} is not a warehouse of coldlog: {', '.join(missing)} missing; run the pipeline into it "
                "first, or correct warehouse.uri"
            )

    def _check_logs(self) -> None:
        for table in ALL_TABLES:
            check_log(self.location(table))
        held = [table for table in HELD_TABLES if self.has(table)]
        if all(table in held for table in NUMBERED_TABLES):
            check_published(self.uri, held)

    def has(self, table: TableDefinition) -> bool:
        try:
            return DeltaTable.isDeltaTable(self.spark, self.location(table))
        except (IllegalArgumentException, Py4JJavaError) as unreadable:
            is_lost = "Could not find any delta files" in str(unreadable)
            if isinstance(unreadable, Py4JJavaError) and not is_lost:
                why = unnamed_damage(unreadable, self.location(table))
                if why is None:
                    raise
                raise damaged(f"{self.location(table)}/{LOG_FOLDER}", why) from unreadable
            if is_lost:  # delta-rs needs only the checkpoint of its version
                raise damaged(newest_commit_path(self.location(table)), "it is missing") from unreadable
            why = str(unreadable).partition("\n")[0]
            raise damaged(f"{self.location(table)}/{LOG_FOLDER}", why) from unreadable

    def read(self, table: TableDefinition, version: int | None = None) -> DataFrame:
        """Read all columns of the definition, of a `version` if one is given.

        The rows of a small table are read at once, in this process: Spark would plan and run a query to find its files.
        So its frame does not change if rows are written after this call. A missing table or column raises
        `UsageError`, a damaged log or file `ColdlogError`.
        """
        small = None if self.as_of is not None else self._small(table, _FEW_ROWS, _FEW_FILES, version=version)
        if small is not None:
            return self.local(table, small)
        rows = self._load(table, version)
        return rows if self._partitions_of(table) is None else self.limited(rows)

    def limited(self, rows: DataFrame) -> DataFrame:
        """Keep rows of the `partitions`, if they are given; for a frame with the columns topic and partition."""
        if self.partitions is None:
            return rows
        schema = pa.schema([SEGMENTS.arrow_schema.field(name) for name in ("topic", "partition")])
        wanted = [{"topic": topic, "partition": number} for topic, number in self.partitions]
        frame = frame_of(self.spark, pa.Table.from_pylist(wanted, schema))
        return rows.join(F.broadcast(frame), ["topic", "partition"], "left_semi")

    def _small(
        self,
        table: TableDefinition,
        most_rows: int,
        most_files: int,
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table | None:
        check_log(self.location(table))
        try:
            return read_if_small(
                self.data_location(table),
                table,
                most_rows,
                version=version,
                columns=columns,
                most_files=most_files,
                partitions=self._partitions_of(table),
            )
        except NoTableError:
            return None  # Spark's error is raised

    def _partitions_of(self, table: TableDefinition) -> frozenset[tuple[str, int]] | None:
        """The partitions to which reads of this table are limited."""
        is_limited = {"topic", "partition"} <= set(table.key)
        return self.partitions if is_limited else None

    def _load(self, table: TableDefinition, version: int | None) -> DataFrame:
        reader = self.spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        elif self.as_of is not None:
            version = self.version(table)
            if version is None:
                return self.local(table, [])
            reader = reader.option("versionAsOf", version)
        check_log(self.location(table), version)
        try:
            rows = reader.load(self.location(table))
            # The past may lack columns that the newest version got since.
            names = table.column_names if self.as_of is None else table.select_list(rows.columns)
            return rows.selectExpr(*names)
        except AnalysisException as missing:
            raise UsageError(
                f"{self.location(table)} is not a {table.name} table of coldlog ({missing.getCondition()}); "
                "run the pipeline into this warehouse first, or correct warehouse.uri"
            ) from missing

    def is_known_empty(self, table: TableDefinition, *, is_just_loaded: bool = False) -> bool:
        """Whether Delta knows without a query that the table has no files."""
        return file_count_if_known(self.spark, self.location(table), is_just_loaded=is_just_loaded) == 0

    def small_rows(self, table: TableDefinition, columns: Sequence[str]) -> list[Row]:
        """Read columns of every row, of all partitions, in this process, without a query; for tables whose rows fit in
        the driver."""
        files = list_table_files(self.data_location(table), table, [], as_of_ms=self.as_of_ms)
        return list(read_file_rows(files, columns))

    def greatest(self, table: TableDefinition, column: str) -> int | None:
        """Return the greatest value of a column, of all partitions, without a query; None if there is none."""
        files = list_table_files(self.data_location(table), table, [], as_of_ms=self.as_of_ms)
        found: int | None = pc.max(read_columns(files, table, [column])[column]).as_py()
        return found

    def rows_if_small(self, table: TableDefinition, columns: Sequence[str]) -> list[Row] | None:
        """Read columns of every row in this process; None if the table is too large, or needs Spark."""
        rows = self.small_table(table, columns)
        return None if rows is None else rows.to_pylist()

    def small_table(self, table: TableDefinition, columns: Sequence[str] | None = None) -> pa.Table | None:
        """As `rows_if_small`, in columns; without `columns`, all of them."""
        return self._small(table, _SMALL_TABLES * _FEW_ROWS, _SMALL_TABLE_FILES, columns=columns)

    def view(self, table: TableDefinition) -> str:
        """Create a temporary view of the table and return its name, for `IDENTIFIER(:table)`, which takes no paths."""
        name = f"coldlog_view_{table.name}"
        self._load(table, None).createOrReplaceTempView(name)
        return name

    def local(self, table: TableDefinition, rows: Iterable[dict[str, object]] | pa.Table) -> DataFrame:
        """Make a frame of rows from the driver, in the table's schema."""
        arrow = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=table.arrow_schema)
        return frame_of(self.spark, arrow)

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
        with self.commits(), checked, self._encodings(table):
            rows.select(*table.column_names).write.format("delta").mode("append").save(self.location(table))

    def change_rows(self, table: TableDefinition, change: Change) -> int | None:
        """Make the change in one commit without a Spark job; return the number of changed rows.

        None: the table needs Spark, and nothing was written (`commit_rows`).
        """
        with self.commits() as transaction:
            try:
                return commit_rows(self.data_location(table), table, change, transaction)
            except LaterWriterError:
                if self.lease is not None:
                    self.lease.confirm()
                raise

    @staticmethod
    def _few(rows: DataFrame | Sequence[Row], names: Sequence[str], count: int | None) -> Sequence[Row] | None:
        """Return rows that are few enough to be written without Spark; None if they are not, or may not be."""
        if isinstance(rows, DataFrame):
            is_few = count is not None and count <= _FEW_ROWS
            return rows.select(*names).toArrow().to_pylist() if is_few else None
        return rows if len(rows) <= _SMALL_TABLES * _FEW_ROWS else None

    def data_location(self, table: TableDefinition) -> str:
        """The place where tasks write files for `add_files`."""
        return find_data_location(self.spark, self.location(table))

    def add_files(self, table: TableDefinition, files: Sequence[DataFile]) -> None:
        """Append the rows of files that are already at the table's location."""
        checked = nullcontext() if self.lease is None else self._requiring_a_commit(table, self.lease)
        with self.commits() as transaction, checked:
            add_files(self.spark, self.location(table), files, [] if transaction is None else [transaction])

    @contextmanager
    def _encodings(self, table: TableDefinition) -> Iterator[None]:
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
        rows: DataFrame | Sequence[Row],
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
            if not few or self.change_rows(table, change) is not None:
                return
        if not isinstance(rows, DataFrame):
            fields = [table.arrow_schema.field(name) for name in names]
            fields += [pa.field(remove, pa.bool_())] if remove else []
            rows = frame_of(self.spark, pa.Table.from_pylist(list(rows), schema=pa.schema(fields)))
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
        with self.commits():
            self.spark.sql(
                f"MERGE INTO {self.identifier(table)} t USING {source} s ON {on} {delete} "
                f"WHEN MATCHED THEN UPDATE SET {changes} {insert}"
            )
        self.spark.catalog.dropTempView(source)

    def rows_if_few(self, rows: DataFrame) -> DataFrame | list[Row]:
        """Return the rows themselves if they are few, to change tables without Spark's planning; else the frame."""
        few = rows.limit(_FEW_ROWS + 1).toArrow()
        return few.to_pylist() if few.num_rows <= _FEW_ROWS else rows

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
        with self.commits():
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
