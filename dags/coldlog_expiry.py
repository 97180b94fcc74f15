"""Delete segments that have outlived their retention from the tier, once a day.

`expire_segments` deletes segments that `copy_segments` has copied and that exceed the retention; its log names each
segment and the reason. Nothing expires unless `coldlog_settings` has `retention.ms`, `retention.bytes` or
`expire.retentions`. It must also have `broker.id`, `archive.uri` and `metadata.uri`. The next run of `coldlog_pipeline`
updates the tables.

This DAG does not wait for the pipeline or the maintenance, and writes none of their tables. Leases keep runs on
different partitions, so it can run at the same time as copies and as another run of itself. If a run is killed, the
next run continues its work.
"""

from __future__ import annotations

from airflow.sdk import DAG

from coldlog_jobs import DEPLOYMENT, START_DATE, ColdlogJob

with DAG(
    "coldlog_expiry",
    description="Delete what has outlived its retention from coldlog's tier",
    schedule=DEPLOYMENT.expiry_schedule,
    start_date=START_DATE,
    catchup=False,
    max_active_runs=1,
    default_args=DEPLOYMENT.default_args,
    tags=["coldlog", "kafka"],
    doc_md=__doc__,
):
    ColdlogJob(task_id="expire_segments", job="expire_segments")
