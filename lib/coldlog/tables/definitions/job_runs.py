"""Define the table of runs: what each run of a job did, and how long it took.

One row per run that writes the warehouse; the row exists from the start of the run. Jobs of `JOBS_BESIDE_WRITERS` hold
no lock of the warehouse: their row is written when they end. `summary` holds the job's counts as JSON.
"""

from __future__ import annotations

from enum import StrEnum

from coldlog.tables.definitions.definition import Column, TableDefinition


class RunOutcome(StrEnum):
    """How a run ended; the `outcome` column of `job_runs`."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"


JOBS_BESIDE_WRITERS = frozenset({"copy_segments", "expire_segments", "replay_topics", "lookup_offsets", "list_offsets"})
"""These run at any time, and what they change is in tables that no step of a pipeline writes."""

JOB_RUNS = TableDefinition(
    name="job_runs",
    comment="Runs of jobs",
    key=("run_id",),
    clustered_by=("started_ms",),
    skipping_columns=("started_ms", "job", "outcome"),
    columns=(
        Column(name="run_id", type="STRING", required=True, comment="Id of the run"),
        Column(name="job", type="STRING", required=True, comment="Name of the job"),
        Column(name="started_ms", type="BIGINT", required=True, comment="When it started"),
        Column(name="finished_ms", type="BIGINT", comment="When it ended; NULL: it is running, or was killed"),
        Column(
            name="outcome",
            type="STRING",
            required=True,
            comment="running, succeeded, failed, or killed (it recorded no end; set by the next run)",
        ),
        Column(name="error", type="STRING", comment="Why it failed"),
        Column(name="summary", type="STRING", required=True, comment="Counts at the end of the run, as JSON"),
    ),
)
