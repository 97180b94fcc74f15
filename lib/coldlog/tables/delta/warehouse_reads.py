"""Read the tables of a warehouse with Spark, and small ones without.

Reads select the columns of the table's definition. The rows of a small table are read in this process, because Spark
would plan and run a query to find its files. `warehouse` adds the writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.runtime.setting_uris import require_same_place
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.runtime.spark.late_session import is_late
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.as_of import find_moment, find_version
from coldlog.tables.delta.delta_log import (
    file_count_if_known,
    find_data_location,
    is_plainly_there,
    list_commits,
    newest_version,
    unnamed_damage,
)
from coldlog.tables.delta.files.file_checksums import damaged
from coldlog.tables.delta.files.table_files import (
    NoTableError,
    greatest_in_file,
    list_table_files,
    read_file_rows,
    read_if_small,
)
from coldlog.tables.delta.locations import spark_uri
from coldlog.tables.delta.log_check import LOG_FOLDER, check_log, newest_commit_path
from coldlog.tables.delta.manifest import HELD_TABLES, NUMBERED_TABLES, check_published
from coldlog.tables.delta.row_edits import Key, Row

FEW_ROWS = 1_000
"""So many are read and written in this process: Spark's planning takes longer."""
TABLES_AT_ONCE = 8
"""Each takes some requests to the store, one after another."""
_FEW_FILES = 8
SMALL_TABLES = 30
"""So many times `FEW_ROWS` are worked on in this process where Spark would start tasks in Python for them."""
WRITTEN_HERE = 150
"""So many times `FEW_ROWS` that are in this process are written by it. Spark's MERGE takes a fifth of a millisecond a
row."""
_GREATEST_TOGETHER = ("build_number", "event_timestamp_ms")
"""Columns of `segments` of which a run wants the greatest values, so that it opens a file once."""
_SMALL_SEGMENTS = 250
"""The same for `segments`, whose rows are mostly worked on by columns. Rows of deleted segments stay, so that the table
grows as long as there is retention."""
_SMALL_TABLE_FILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseReads:
    """The tables below `uri`, as `spark` sees them.

    `as_of` is a time (ISO 8601 or epoch milliseconds) or `v<N>`, a version of partition_metadata; None is now. It is
    resolved at the first read and kept, so one object shows one moment.

    `partitions`, if they are given, are topics and partitions: of tables with these columns, only their rows are read.
    """

    spark: SparkSession
    uri: str
    as_of: str | None = None
    partitions: frozenset[tuple[str, int]] | None = None
    _versions: dict[str, int | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _moments: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _places: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

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

    def location(self, table: TableDefinition) -> str:
        """The place of a table; `UsageError` if the readers without Spark would look elsewhere."""
        place = f"{spark_uri(self.uri)}/{table.name}"
        require_same_place(place)
        return place

    def identifier(self, table: TableDefinition) -> str:
        """The table's name in statements: its path, so that the catalog does not matter."""
        return "delta.`" + self.location(table).replace("`", "``") + "`"

    def require_tables(self) -> None:
        """Raise `UsageError` with the names of missing tables, `ColdlogError` if the log of a table is damaged."""
        there = self._check_logs()
        missing = [table.name for table in ALL_TABLES if table not in there]
        if missing:
            raise UsageError(
                f"{self.uri} is not a warehouse of coldlog: {', '.join(missing)} missing; run the pipeline into it "
                "first, or correct warehouse.uri"
            )

    def _check_logs(self) -> list[TableDefinition]:
        """Check the logs of the tables that are there, and return these tables."""
        for table in ALL_TABLES:
            check_log(self.location(table))
        with ThreadPoolExecutor(TABLES_AT_ONCE) as checks:
            are_there = list(checks.map(self.has, ALL_TABLES))
        there = [table for table, is_there in zip(ALL_TABLES, are_there, strict=True) if is_there]
        if all(table in there for table in NUMBERED_TABLES):
            check_published(self.uri, [table for table in HELD_TABLES if table in there])
        return there

    def has(self, table: TableDefinition) -> bool:
        if is_late(self.spark):
            is_there = is_plainly_there(self.location(table))
            if is_there is not None:
                return is_there
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
        small = None if self.as_of is not None else self._small(table, FEW_ROWS, _FEW_FILES, version=version)
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
        partitions: frozenset[tuple[str, int]] | None = None,
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
                partitions=self._partitions_of(table) if partitions is None else partitions,
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
                f"{self.location(table)} is not coldlog's table {table.name} ({missing.getCondition()}); "
                "run the pipeline into this warehouse first, or correct warehouse.uri"
            ) from missing

    def is_known_empty(self, table: TableDefinition) -> bool:
        """Whether Delta knows without a query that the table has no files."""
        return file_count_if_known(self.spark, self.location(table)) == 0

    def small_rows(self, table: TableDefinition, columns: Sequence[str]) -> list[Row]:
        """Read columns of every row, of all partitions, in this process, without a query; for tables whose rows fit in
        the driver."""
        files = list_table_files(self.data_location(table), table, [], as_of_ms=self.as_of_ms)
        return list(read_file_rows(files, columns))

    def greatest(self, table: TableDefinition, column: str) -> int | None:
        """Return the greatest value of an integer column, of all partitions, without a query; None if there is none.

        The statistics of files say it, or those of their row groups.
        """
        files = list_table_files(self.data_location(table), table, [], as_of_ms=self.as_of_ms)
        together = _GREATEST_TOGETHER if table is SEGMENTS and column in _GREATEST_TOGETHER else (column,)
        found = (greatest_in_file(files.location, path, table, together)[column] for path in files.paths)
        return max((each for each in found if each is not None), default=None)

    def rows_if_small(self, table: TableDefinition, columns: Sequence[str]) -> list[Row] | None:
        """Read columns of every row in this process; None if the table is too large, or needs Spark."""
        rows = self.small_table(table, columns)
        return None if rows is None else rows.to_pylist()

    def small_table(
        self, table: TableDefinition, columns: Sequence[str] | None = None, *, times: int | None = None
    ) -> pa.Table | None:
        """As `rows_if_small`, in columns; without `columns`, all of them. At most `times` times `FEW_ROWS` are read."""
        if times is None:
            times = _SMALL_SEGMENTS if table is SEGMENTS else SMALL_TABLES
        return self._small(table, times * FEW_ROWS, _SMALL_TABLE_FILES, columns=columns)

    def limited_table(
        self, table: TableDefinition, columns: Sequence[str] | None = None, *, times: int = SMALL_TABLES
    ) -> pa.Table | None:
        """As `small_table`, of a table whose key has no partition: rows of the `partitions`, and without a topic."""
        limit = self.partitions
        return self._small(table, times * FEW_ROWS, _SMALL_TABLE_FILES, columns=columns, partitions=limit)

    def rows_if_few(self, rows: DataFrame) -> DataFrame | list[Row]:
        """Return the rows themselves if they are few, to change tables without Spark's planning; else the frame."""
        few = rows.limit(FEW_ROWS + 1).toArrow()
        return few.to_pylist() if few.num_rows <= FEW_ROWS else rows

    def view(self, table: TableDefinition) -> str:
        """Create a temporary view of the table and return its name, for `IDENTIFIER(:table)`, which takes no paths."""
        name = f"coldlog_view_{table.name}"
        self._load(table, None).createOrReplaceTempView(name)
        return name

    def local(self, table: TableDefinition, rows: Iterable[dict[str, object]] | pa.Table) -> DataFrame:
        """Make a frame of rows from the driver, in the table's schema."""
        arrow = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=table.arrow_schema)
        return frame_of(self.spark, arrow)

    def local_keys(self, table: TableDefinition, keys: Iterable[Key]) -> DataFrame:
        """Make a frame of keys from the driver."""
        schema = pa.schema([table.arrow_schema.field(name) for name in table.key])
        rows = [dict(zip(table.key, key, strict=True)) for key in keys]
        return frame_of(self.spark, pa.Table.from_pylist(rows, schema=schema))

    def data_location(self, table: TableDefinition) -> str:
        """The place where tasks write files for `add_files`. It is kept: the JVM takes milliseconds to find it."""
        if table.name not in self._places:
            self._places[table.name] = find_data_location(self.spark, self.location(table))
        return self._places[table.name]
