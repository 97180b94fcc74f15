"""run_log: how does a run leave its row in `job_runs`, however it ends?

The row is there from the beginning, as `running`, and is replaced when the run ends. A run that was killed leaves it
behind; the next one that holds the warehouse for writing finds it and makes it `killed`, since nothing else can be
writing then. Where a warehouse is not locked (see `coldlog.tables.delta.warehouse_lock`) this may hit a run that lives;
its own row replaces the mistake when it ends.
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
def noted_run(warehouse: Warehouse, name: str) -> Iterator[dict[str, object]]:
    """Notes the run of the job `name`; yields the summary, to be filled while it runs.

    To be entered while the warehouse is held for writing.
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
    """Makes every row that says `running` say `killed`; returns how many there were.

    When a killed run ended is not known: `finished_ms` stays NULL.
    """
    left = warehouse.read(JOB_RUNS).where(f"outcome = '{RunOutcome.RUNNING.value}'").toArrow().to_pylist()
    if left:
        told = {"outcome": RunOutcome.KILLED.value, "error": "its process ended without a word"}
        warehouse.merge(JOB_RUNS, warehouse.local(JOB_RUNS, [row | told for row in left]))
    return len(left)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
