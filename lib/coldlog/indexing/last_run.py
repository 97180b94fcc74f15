"""Find the last run of run_pipeline, if it succeeded and left a witness.

It counts only if no other job has held the warehouse since, but for those that change no row that a run depends on
(`handing_on`). Jobs that run beside writers (`JOBS_BESIDE_WRITERS`) do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coldlog.errors import ColdlogError
from coldlog.indexing.witness import KEY, Witness, find_change, has_open_work, read_table_states
from coldlog.tables.definitions.job_runs import RunOutcome
from coldlog.tables.delta.run_rows import read_newest_run

RUN_PIPELINE, MAINTAIN_TABLES, VALIDATE_TABLES = "run_pipeline", "maintain_tables", "validate_tables"
_LEAVING_WITNESSES = (RUN_PIPELINE, MAINTAIN_TABLES, VALIDATE_TABLES)
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
    if row is None or row["job"] not in _LEAVING_WITNESSES or row["outcome"] != RunOutcome.SUCCEEDED.value:
        return None
    summary = json.loads(str(row["summary"]))
    witness = summary.get(KEY)
    if not witness:
        return None
    return LastRun(witness=witness, full_run_id=summary.get(SINCE, row["run_id"]))


@contextmanager
def handing_on(uri: str, last: LastRun | None, summary: dict[str, object]) -> Iterator[None]:
    """Hand the witness of the last run on in the `summary` of a job that changes no row that a run depends on.

    The witness gets the versions that the job leaves. It is lost if the tables had changed before, or if the job leaves
    work for a build.
    """
    is_of_now = last is not None and find_change(last.witness, read_table_states(uri)) is None
    yield
    if last is not None and is_of_now and not has_open_work(uri):
        summary |= {SINCE: last.full_run_id, KEY: {**last.witness, **read_table_states(uri)}}
