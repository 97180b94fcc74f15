"""Print the results of a validation.

One row per table, then one row per failed expectation: its severity, how many rows fail, where, and what was found.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldlog.errors import ColdlogError
from coldlog.runtime.console import counted
from coldlog.runtime.job import Job
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.checkpoint import Verdict
from coldlog.upkeep.data_docs import data_docs_folder, data_docs_place
from coldlog.upkeep.expectation_suites import ExpectationSeverity, load_suites
from coldlog.upkeep.validate import ALL_BUILDS, TableValidation, ValidationSummary, validate_tables

_CRITICAL, _WARNING = ExpectationSeverity.CRITICAL, ExpectationSeverity.WARNING
_BY_BUILD = frozenset(table.name for table in INDEX_TABLES)
_SHOWN_PLACES = 3


def validate_and_show(job: Job, warehouse: Warehouse, *, is_full: bool) -> dict[str, object]:
    """Validate, print the results and return the summary for `job_runs`.

    A failed critical expectation raises `ColdlogError`.
    """
    place = data_docs_place(job.settings)
    with job.console.stage("validate") as stage:
        with data_docs_folder(place) as folder:
            summary = validate_tables(warehouse, load_suites(), is_full=is_full, data_docs=folder)
        validated = [table for table in summary.tables if table.scope is not None]
        stage.add(f"{counted(len(validated), 'table')} validated, {len(summary.tables) - len(validated)} unchanged")
        stage.add(counted(sum(len(table.verdicts) for table in validated), "expectation"))
        stage.add(
            f"{summary.count_failed(_CRITICAL)} critical failed", counted(summary.count_failed(_WARNING), "warning")
        )
    show_validation(job, summary)
    if summary.has_data_docs:
        job.console.note(f"to read these results as pages, open {place.index}")
    require_critical(summary)
    return {
        "run_id": summary.run_id,
        "tables": len(validated),
        "rows": sum(table.row_count for table in validated),
        "warnings": summary.count_failed(_WARNING),
    }


def show_validation(job: Job, summary: ValidationSummary) -> None:
    """Print the tables, then the failed expectations."""
    console = job.console
    console.result()
    console.table(
        ["table", "version", "rows", "of builds", "expectations", "passed", "critical failed", "warnings"],
        [_table_cells(table) for table in summary.tables],
    )
    failed = [
        (severity.value, table.table, verdict)
        for severity in ExpectationSeverity
        for table in summary.tables
        for verdict in table.failed(severity)
    ]
    if failed:
        console.result()
        console.table(
            ["severity", "table", "expectation", "expected", "failing rows", "examples"],
            [
                (
                    severity,
                    table,
                    each.expectation.id,
                    each.expectation.description,
                    each.unexpected_count,
                    _places(each),
                )
                for severity, table, each in failed
            ],
        )


def _table_cells(table: TableValidation) -> tuple[object, ...]:
    if table.scope is None:
        return (table.table, table.version, 0, "unchanged", 0, 0, 0, 0)
    critical, warnings = len(table.failed(_CRITICAL)), len(table.failed(_WARNING))
    count, scope = len(table.verdicts), table.scope
    builds = "all" if scope.after_build == ALL_BUILDS else f"{scope.after_build + 1}..{scope.until_build}"
    return (
        table.table, table.version, table.row_count, builds if table.table in _BY_BUILD else "all", count,
        count - critical - warnings, critical, warnings,
    )  # fmt: skip


def _places(verdict: Verdict) -> str:
    if verdict.problem is not None:
        return f"could not be evaluated: {verdict.problem}"
    return "; ".join(_place(row) for row in verdict.sample[:_SHOWN_PLACES])


def _place(row: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in row.items() if value is not None)


def require_critical(summary: ValidationSummary) -> None:
    """Raise `ColdlogError` with the critical expectations that are not met."""
    failed = [f"{table.table}.{each.expectation.id}" for table in summary.tables for each in table.failed(_CRITICAL)]
    if failed:
        raise ColdlogError(
            f"{counted(len(failed), 'critical expectation')} not met: {', '.join(failed)}; column sample of table "
            "validation_results shows the rows, and the next run checks them again"
        )
