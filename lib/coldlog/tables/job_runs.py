"""job_runs: what did each run of a job do, and how long did it take?

One row a run that came to its end, well or badly; `summary` holds the job's own counts as JSON.
"""

from __future__ import annotations

from coldlog.tables.definition import Column, TableDefinition

JOB_RUNS = TableDefinition(
    name="job_runs",
    comment="Runs of jobs",
    key=("run_id",),
    clustered_by=("started_ms",),
    skipping_columns=("started_ms", "job"),
    columns=(
        Column(name="run_id", type="STRING", required=True, comment="Id of the run"),
        Column(name="job", type="STRING", required=True, comment="Name of the job"),
        Column(name="started_ms", type="BIGINT", required=True, comment="When it started"),
        Column(name="finished_ms", type="BIGINT", required=True, comment="When it ended"),
        Column(name="outcome", type="STRING", required=True, comment="succeeded or failed"),
        Column(name="error", type="STRING", comment="Why it failed"),
        Column(name="summary", type="STRING", required=True, comment="Its counts, as JSON"),
    ),
)
