"""warehouse: how are the tables read and written?

A warehouse is a folder of Delta tables. Every read and write goes through here: reads name the columns of the
definition, writes bring the rows to them first, so a table cannot drift from its definition unseen. Writes that would
change nothing make no commit. `attach` creates what is missing and registers the tables by name in the session's
catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coldlog.errors import UsageError
from coldlog.tables.catalog import ALL_TABLES
from coldlog.tables.definition import TableDefinition

DATABASE = "coldlog"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """The tables below `uri`, as `spark` sees them."""

    spark: SparkSession
    uri: str

    def location(self, table: TableDefinition) -> str:
        return f"{self.uri.rstrip('/')}/{table.name}"

    def identifier(self, table: TableDefinition) -> str:
        """The table's name in statements: by path, whatever the catalog holds."""
        return "delta.`" + self.location(table).replace("`", "``") + "`"

    def create_missing(self) -> None:
        """Creates every table that is not there yet; changes none that is."""
        for table in ALL_TABLES:
            if not self.has(table):
                self.spark.sql(table.create_statement(self.identifier(table), self.location(table)))

    def require_tables(self) -> None:
        """A `UsageError` names the tables that are missing."""
        missing = [table.name for table in ALL_TABLES if not self.has(table)]
        if missing:
            raise UsageError(
                f"{self.uri} is no warehouse of coldlog: {', '.join(missing)} missing; run the pipeline into it first, "
                "or correct warehouse.uri"
            )

    def has(self, table: TableDefinition) -> bool:
        return DeltaTable.isDeltaTable(self.spark, self.location(table))

    def read(self, table: TableDefinition) -> DataFrame:
        """All columns of the definition; a table that is missing or lacks one is a `UsageError`."""
        try:
            return self.spark.read.format("delta").load(self.location(table)).select(*table.column_names)
        except AnalysisException as missing:
            raise UsageError(
                f"{self.location(table)} is not a {table.name} table of coldlog ({missing.getCondition()}); "
                "run the pipeline into this warehouse first, or correct warehouse.uri"
            ) from missing

    def view(self, table: TableDefinition) -> str:
        """The name of a temporary view of the table, for `IDENTIFIER(:table)`, which takes no paths of Delta tables."""
        name = f"coldlog_view_{table.name}"
        self.read(table).createOrReplaceTempView(name)
        return name

    def local(self, table: TableDefinition, rows: Iterable[dict[str, object]] | pa.Table) -> DataFrame:
        """Rows made on the driver, in the table's schema."""
        arrow = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows), schema=table.arrow_schema)
        return self.spark.createDataFrame(arrow)

    def append(self, table: TableDefinition, rows: DataFrame) -> None:
        with self._encodings(table):
            rows.select(*table.column_names).write.format("delta").mode("append").save(self.location(table))

    @contextmanager
    def _encodings(self, table: TableDefinition) -> Iterator[None]:
        """Delta hands a writer's options for Parquet on to nobody; the session's reach it, and go again behind it."""
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

    def merge(self, table: TableDefinition, rows: DataFrame, *, update: tuple[str, ...] = (), remove: str = "") -> None:
        """Inserts rows with a new key and updates the others: the columns named in `update`, or all.

        Keys may not repeat in `rows`. With `update`, `rows` needs only the key and these columns, and nothing is
        inserted. `remove` names a boolean column of `rows`: where it is true, the stored row goes, in the same commit.
        """
        names = (*table.key, *update) if update else table.column_names
        source = f"coldlog_merge_{table.name}"
        rows.select(*names, *([remove] if remove else [])).createOrReplaceTempView(source)
        on = " AND ".join(f"t.{name} = s.{name}" for name in table.key)
        changes = ", ".join(f"t.{name} = s.{name}" for name in names if name not in table.key)
        delete = f"WHEN MATCHED AND s.{remove} THEN DELETE" if remove else ""
        insert = "" if update else "WHEN NOT MATCHED THEN INSERT *"
        self.spark.sql(
            f"MERGE INTO {self.identifier(table)} t USING {source} s ON {on} {delete} "
            f"WHEN MATCHED THEN UPDATE SET {changes} {insert}"
        )
        self.spark.catalog.dropTempView(source)

    def delete_keys(self, table: TableDefinition, keys: DataFrame) -> None:
        """Removes the rows whose key is in `keys`."""
        self.delete_matching(table, keys.select(*table.key))

    def delete_matching(self, table: TableDefinition, rows: DataFrame) -> None:
        """Removes every row that equals a row of `rows` in all columns of `rows`; those may not repeat."""
        source = f"coldlog_stale_{table.name}"
        rows.createOrReplaceTempView(source)
        on = " AND ".join(f"t.{name} = s.{name}" for name in rows.columns)
        self.spark.sql(f"MERGE INTO {self.identifier(table)} t USING {source} s ON {on} WHEN MATCHED THEN DELETE")
        self.spark.catalog.dropTempView(source)

    def delete_build_after(self, table: TableDefinition, build_number: int) -> None:
        """Removes rows of builds after `build_number`: what a build left that never came to be published.

        File statistics on build_number keep this to a look at the transaction log when there is nothing to remove.
        """
        left = self.read(table).where(F.col("build_number") > F.lit(build_number))
        if left.head(1):
            self.spark.sql(f"DELETE FROM {self.identifier(table)} WHERE build_number > {int(build_number)}")

    def register(self) -> None:
        """Registers the tables in the session's catalog as `coldlog.<table>`, for people who write SQL.

        A name that points to another warehouse is pointed here; the data it pointed to stays where it is.
        """
        self.spark.sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        for table in ALL_TABLES:
            name = f"{DATABASE}.{table.name}"
            location = self.location(table).replace("\\", "\\\\").replace("'", "\\'")
            self.spark.sql(f"DROP TABLE IF EXISTS {name}")
            self.spark.sql(f"CREATE TABLE {name} USING DELTA LOCATION '{location}'")
