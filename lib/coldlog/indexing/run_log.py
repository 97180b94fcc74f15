"""Record each run in `job_runs`, also when it fails or is killed.

The row is written as `running` when the run starts, and replaced when the run ends. The row of a killed run stays. The
next run that holds the warehouse for writing changes it to `killed`, because no other run can be writing then. If the
warehouse is not locked (see `coldlog.tables.leases.warehouse_lock`), this can hit a run that is still alive. That run
corrects the row when it ends. Jobs that do not hold the warehouse are recorded by `coldlog.tables.delta.run_rows`.

Each change of the table is one commit without a Spark job (`coldlog.tables.delta.plain_commit`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import functions as F

from coldlog.tables.definitions.job_runs import JOB_RUNS, RunOutcome
from coldlog.tables.delta.locations import table_location
from coldlog.tables.delta.plain_commit import LaterWriterError, commit_rows
from coldlog.tables.delta.row_edits import Row, RowChange
from coldlog.tables.delta.run_rows import new_run_row, now_ms, reason_of
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tables.leases.warehouse_lease import APPLICATION, WarehouseLease

_IS_RUNNING: Row = {"outcome": RunOutcome.RUNNING.value}
_KILLED: Row = {
    "outcome": RunOutcome.KILLED.value,
    "error": "the process was killed before it could record an end",
}


@contextmanager
def recorded_run(warehouse: Warehouse, name: str) -> Iterator[dict[str, object]]:
    """Record the run of the job `name`; yield the summary, which the job fills.

    The caller must hold the warehouse for writing.
    """
    summary: dict[str, object] = {}
    row = new_run_row(name, now_ms())
    # Nobody knows when a killed run ended: its `finished_ms` stays NULL.
    _change(
        warehouse,
        RowChange(added=[row], where=_IS_RUNNING, values=_KILLED),
    )
    outcome, error = RunOutcome.FAILED, ""
    try:
        yield summary
        outcome, error = RunOutcome.SUCCEEDED, ""
    except BaseException as failed:
        error = reason_of(failed)
        raise
    finally:
        complete: Row = {
            "finished_ms": now_ms(),
            "outcome": outcome.value,
            "error": error or None,
            "summary": json.dumps(summary, sort_keys=True),
        }
        # `started_ms` names the file, `run_id` the row.
        this_run: Row = {"started_ms": row["started_ms"], "run_id": row["run_id"]}
        if not _change(warehouse, RowChange(where=this_run, values=complete)):
            _change(warehouse, RowChange(added=[row | complete]))


def record_unchanged_run(
    uri: str, lease: WarehouseLease | None, name: str, started_ms: int, summary: Mapping[str, object]
) -> bool:
    """Record a run that ended without Spark, in one commit; False if that needs Spark, and nothing was written."""
    row = new_run_row(name, started_ms)
    row |= {"outcome": RunOutcome.SUCCEEDED.value, "summary": json.dumps(summary, sort_keys=True)}
    change = RowChange(added=[row | {"finished_ms": now_ms()}], where=_IS_RUNNING, values=_KILLED)
    transaction = None
    if lease is not None:
        lease.require()
        transaction = APPLICATION, lease.next_version()
    count = _commit(table_location(uri, JOB_RUNS.name), change, lease, transaction)
    if lease is not None:
        lease.confirm()
    return count is not None


def _change(warehouse: Warehouse, change: RowChange) -> int:
    """Change `job_runs` without a Spark job, or by MERGE if it needs Spark; return the number of changed rows."""
    count = warehouse.change_rows(JOB_RUNS, change)
    if count is not None:
        return count
    stored = warehouse.read(JOB_RUNS)
    for name, value in change.where.items():
        stored = stored.where(F.col(name) == F.lit(value))
    changed = [row | change.values for row in stored.toArrow().to_pylist()] if change.where else []
    if changed or change.added:
        warehouse.merge(JOB_RUNS, warehouse.local(JOB_RUNS, [*changed, *change.added]))
    return len(changed)


def _commit(
    location: str, change: RowChange, lease: WarehouseLease | None, transaction: tuple[str, int] | None
) -> int | None:
    """`commit_rows`, but `LeaseLostError` if a later holder of the lease has written the table."""
    try:
        return commit_rows(location, JOB_RUNS, change, transaction)
    except LaterWriterError:
        if lease is not None:
            lease.confirm()
        raise
