"""Find the last run of run_pipeline, if it succeeded and left a witness.

It counts only if no other job has held the warehouse since. Jobs that run beside writers (`JOBS_BESIDE_WRITERS`) do not
matter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from coldlog.errors import ColdlogError
from coldlog.indexing.witness import KEY, Witness
from coldlog.tables.definitions.job_runs import RunOutcome
from coldlog.tables.delta.run_rows import read_newest_run

RUN_PIPELINE = "run_pipeline"
SINCE = "unchanged_since_run"
"""The key of the last run that did every step, in the summary of one that ended before Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The run that left the witness, and the last one that did every step."""

    witness: Witness
    full_run_id: str


def find_last_run(uri: str) -> LastRun | None:
    """Find the last run, if it left a witness and its row can be read."""
    try:
        row = read_newest_run(uri)
    except ColdlogError:
        return None
    if row is None or (row["job"], row["outcome"]) != (RUN_PIPELINE, RunOutcome.SUCCEEDED.value):
        return None
    summary = json.loads(str(row["summary"]))
    witness = summary.get(KEY)
    if not witness:
        return None
    return LastRun(witness=witness, full_run_id=summary.get(SINCE, row["run_id"]))
