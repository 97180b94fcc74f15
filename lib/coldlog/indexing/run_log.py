"""Record each run in `job_runs`, also when it fails or is killed.

The row is written as `running` when the run starts, and replaced when the run ends. The row of a killed run stays. The
next run that holds the warehouse for writing changes it to `killed`, because no other run can be writing then. If the
warehouse is not locked (see `coldlog.tables.delta.warehouse_lock`), this can hit a run that is still alive. That run
corrects the row when it ends.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from coldlog.tables.definitions.job_runs import JOB_RUNS, RunOutcome
from coldlog.tables.delta.warehouse import Warehouse


@contextmanager
def recorded_run(warehouse: Warehouse, name: str) -> Iterator[dict[str, object]]:
    """Record the run of the job `name`; yield the summary, which the job fills.

    The caller must hold the warehouse for writing.
    """
    mark_killed_runs(warehouse)
    summary: dict[str, object] = {}
    row: dict[str, object] = {
        "run_id": uuid.uuid4().hex,
        "job": name,
        "started_ms": _now_ms(),
        "finished_ms": None,
        "outcome": RunOutcome.RUNNING.value,
        "error": None,
        "summary": json.dumps(summary),
    }
    warehouse.append(JOB_RUNS, warehouse.local(JOB_RUNS, [row]))
    outcome, error = RunOutcome.FAILED, "interrupted"
    try:
        yield summary
        outcome, error = RunOutcome.SUCCEEDED, ""
    except Exception as failed:
        error = str(failed).partition("\n")[0] or type(failed).__name__
        raise
    finally:
        ended = {"finished_ms": _now_ms(), "outcome": outcome.value, "error": error or None}
        complete = row | ended | {"summary": json.dumps(summary, sort_keys=True)}
        warehouse.merge(JOB_RUNS, warehouse.local(JOB_RUNS, [complete]))


def mark_killed_runs(warehouse: Warehouse) -> int:
    """Change every row from `running` to `killed`; return the number of rows.

    Nobody knows when a killed run ended: `finished_ms` stays NULL.
    """
    unfinished = warehouse.read(JOB_RUNS).where(f"outcome = '{RunOutcome.RUNNING.value}'").toArrow().to_pylist()
    if unfinished:
        ended = {"outcome": RunOutcome.KILLED.value, "error": "the process was killed before it could record an end"}
        warehouse.merge(JOB_RUNS, warehouse.local(JOB_RUNS, [row | ended for row in unfinished]))
    return len(unfinished)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
