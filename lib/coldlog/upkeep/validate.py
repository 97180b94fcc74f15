"""Check the tables against their expectations.

A table is checked against its suite (`expectation_suites`) if it, or a table that its suite reads, has changed since
its last validation. `validation_results` stores which versions were validated. Tables are read in the versions that
they have when the validation begins. Index tables grow with the archive, so only builds after the last validated build
are checked, unless older rows were changed or rows were added to older builds. All other tables are checked completely.
`is_full` checks everything. If critical expectations failed, or if a suite has changed, the next run checks the same
rows again.

A view of an index table has one row per segment. The table's rows are read once, in windows and groups of one segment.
The rows that Great Expectations checks (`checkpoint`) are cached meanwhile; if they are few, they are in the driver.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.tables.definitions.catalog import ALL_TABLES, INDEX_TABLES
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.validation_results import VALIDATION_RESULTS
from coldlog.tables.delta import warehouse_reads
from coldlog.tables.delta.row_changes import are_rows_changed
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.checkpoint import Checkpoints, Verdict, sample_text
from coldlog.upkeep.expectation_suites import AFTER_BUILD, ExpectationSeverity, Suite, View

ALL_BUILDS = -1
_TABLES = {table.name: table for table in ALL_TABLES}

_ROWS_HERE = 10
"""So many times `FEW_ROWS` of a view are checked through pandas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScope:
    """The rows of a table to check: the versions of the tables read, and the builds after `after_build` up to
    `until_build`."""

    versions: Mapping[str, int]
    after_build: int
    until_build: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableValidation:
    """The result for one table. `scope` is None if the table had not changed since `version` was validated."""

    table: str
    version: int
    row_count: int
    scope: TableScope | None
    verdicts: tuple[Verdict, ...]

    def failed(self, severity: ExpectationSeverity) -> tuple[Verdict, ...]:
        """The verdicts on expectations of `severity` that are not met."""
        return tuple(each for each in self.verdicts if not each.is_met and each.expectation.severity is severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSummary:
    """The result of one validation."""

    run_id: str
    tables: tuple[TableValidation, ...]
    has_data_docs: bool

    def count_failed(self, severity: ExpectationSeverity) -> int:
        """Count the expectations of `severity` that are not met."""
        return sum(len(table.failed(severity)) for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What the newest validation of a table checked, and whether all critical expectations were met."""

    versions: Mapping[str, int]
    after_build: int
    until_build: int
    digest: str
    is_sound: bool


def validate_tables(
    warehouse: Warehouse, suites: Sequence[Suite], *, is_full: bool = False, data_docs: Path | None = None
) -> ValidationSummary:
    """Validate the tables of `suites` and store the results; `data_docs` is a folder for pages with them."""
    run_id, now_ms = uuid.uuid4().hex, time.time_ns() // 1_000_000
    versions = _newest_versions(warehouse, suites)
    known = {} if is_full else _read_known(warehouse)
    until_build = _last_build_number(warehouse, versions)
    checkpoints = Checkpoints(suites=suites, data_docs=data_docs)
    tables, rows = [], []
    for suite in suites:
        scope = plan_scope(warehouse, suite, versions, known.get(suite.table), until_build)
        if scope is None:
            version = versions[suite.table]
            tables.append(TableValidation(table=suite.table, version=version, row_count=0, scope=None, verdicts=()))
            continue
        validation, results = _validate_table(warehouse, suite, scope, checkpoints)
        tables.append(validation)
        rows += [{**row, "run_id": run_id, "validated_ms": now_ms} for row in results]
    if rows:
        warehouse.append(VALIDATION_RESULTS, warehouse.local(VALIDATION_RESULTS, rows).coalesce(1))
    return ValidationSummary(run_id=run_id, tables=tuple(tables), has_data_docs=checkpoints.write_data_docs())


def _newest_versions(warehouse: Warehouse, suites: Sequence[Suite]) -> dict[str, int]:
    """Find the newest version of every table that is read. Segments first: the rows it publishes are in the others."""
    others = {name for suite in suites for name in suite.reads} - {SEGMENTS.name}
    return {name: warehouse.newest_version(_TABLES[name]) for name in (SEGMENTS.name, *sorted(others))}


def _last_build_number(warehouse: Warehouse, versions: Mapping[str, int]) -> int:
    row = warehouse.read(SEGMENTS, versions[SEGMENTS.name]).agg(F.max("build_number")).head()
    return int((row[0] if row else None) or 0)


def plan_scope(
    warehouse: Warehouse, suite: Suite, versions: Mapping[str, int], known: _Known | None, until_build: int
) -> TableScope | None:
    """Decide which rows to check; None if nothing has changed since a validation without critical failures."""
    read = {name: versions[name] for name in suite.reads}
    whole = TableScope(versions=read, after_build=ALL_BUILDS, until_build=until_build)
    if known is None or known.digest != suite.digest:
        return whole
    if known.is_sound and known.versions == read:
        return None
    if any(version < known.versions.get(name, 0) for name, version in read.items()):
        return whole  # a table was created again
    # Rows of builds that were not validated are checked anyway.
    after_build = min(known.until_build if known.is_sound else known.after_build, until_build)
    for table in INDEX_TABLES:
        since, until = known.versions.get(table.name), read.get(table.name)
        if since is None or until is None or since == until:
            continue
        if are_rows_changed(warehouse.spark, warehouse.location(table), since, until, until_build=after_build):
            return whole
    return TableScope(versions=read, after_build=after_build, until_build=until_build)


def _read_known(warehouse: Warehouse) -> dict[str, _Known]:
    """Read the newest validation of each table."""
    is_sound = F.bool_and(F.col("success") | (F.col("severity") != ExpectationSeverity.CRITICAL.value))
    facts = ("read_versions", "after_build_number", "build_number", "suite_digest")
    runs = (
        warehouse.read(VALIDATION_RESULTS)
        .groupBy("table_name", "run_id")
        .agg(
            F.max("validated_ms").alias("validated_ms"),
            is_sound.alias("is_sound"),
            *(F.first(f).alias(f) for f in facts),
        )
    )
    newest = runs.groupBy("table_name").agg(
        F.max_by(F.struct("is_sound", *facts), F.struct("validated_ms", "run_id")).alias("run")
    )
    return {
        row["table_name"]: _Known(
            versions=json.loads(row["run"]["read_versions"]),
            after_build=row["run"]["after_build_number"],
            until_build=row["run"]["build_number"],
            digest=row["run"]["suite_digest"],
            is_sound=row["run"]["is_sound"],
        )
        for row in newest.collect()
    }


def _validate_table(
    warehouse: Warehouse, suite: Suite, scope: TableScope, checkpoints: Checkpoints
) -> tuple[TableValidation, list[dict[str, object]]]:
    """Validate one table; return its verdicts and their rows for `validation_results`."""
    names = {name: _register(warehouse.read(_TABLES[name], version), name) for name, version in scope.versions.items()}
    verdicts: dict[str, Verdict] = {}
    element_counts: dict[str, int] = {}
    row_count = 0
    for view in suite.views:
        rows = view_rows(warehouse, view, names, scope.after_build).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            most = _ROWS_HERE * warehouse_reads.FEW_ROWS
            few = rows.limit(most + 1).toArrow()
            is_few = few.num_rows <= most
            count, standing_for = _count_few(few, view) if is_few else _count(rows, view)
            element_counts[view.name] = count
            row_count = standing_for if view is suite.views[0] else row_count
            for verdict in checkpoints.check(view, suite.of_view(view), few if is_few else rows):
                verdicts[verdict.expectation.id] = verdict
        finally:
            rows.unpersist()
    for name in names.values():
        warehouse.spark.catalog.dropTempView(name)
    ordered = tuple(verdicts[each.id] for each in suite.expectations)
    validation = TableValidation(
        table=suite.table, version=scope.versions[suite.table], row_count=row_count, scope=scope, verdicts=ordered
    )
    return validation, [_result_row(suite, validation, scope, element_counts, each) for each in ordered]


def view_rows(warehouse: Warehouse, view: View, tables: Mapping[str, str], after_build: int) -> DataFrame:
    """Return the rows of a view; `tables` maps a table's name to its temporary view."""
    arguments: dict[str, object] = {name: tables[name] for name in view.reads}
    if view.is_by_build:
        arguments[AFTER_BUILD] = after_build
    return warehouse.spark.sql(view.query, args=arguments)


def _register(rows: DataFrame, table: str) -> str:
    name = f"coldlog_validated_{table}"
    rows.createOrReplaceTempView(name)
    return name


def _count(rows: DataFrame, view: View) -> tuple[int, int]:
    """Count the rows of the view, and the rows of the table that they stand for."""
    standing_for = F.lit(1) if view.rows is None else F.col(view.rows)
    counted = rows.agg(F.count("*"), F.coalesce(F.sum(standing_for), F.lit(0))).collect()[0]
    return int(counted[0]), int(counted[1])


def _count_few(rows: pa.Table, view: View) -> tuple[int, int]:
    """As `_count`, of rows in the driver."""
    return rows.num_rows, rows.num_rows if view.rows is None else pc.sum(rows[view.rows]).as_py() or 0


def _result_row(
    suite: Suite, validation: TableValidation, scope: TableScope, element_counts: Mapping[str, int], verdict: Verdict
) -> dict[str, object]:
    expectation = verdict.expectation
    return {
        "table_name": suite.table,
        "expectation_id": expectation.id,
        "severity": expectation.severity.value,
        "success": verdict.is_met,
        "description": expectation.description,
        "view_name": expectation.view,
        "row_count": validation.row_count,
        "element_count": element_counts[expectation.view],
        "unexpected_count": verdict.unexpected_count,
        "sample": sample_text(verdict.sample) if verdict.sample else None,
        "problem": verdict.problem,
        "table_version": validation.version,
        "read_versions": json.dumps(dict(scope.versions), sort_keys=True),
        "after_build_number": scope.after_build,
        "build_number": scope.until_build,
        "suite_digest": suite.digest,
    }
