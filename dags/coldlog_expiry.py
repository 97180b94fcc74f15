"""coldlog_expiry: what has outlived its retention deleted from the tier, once a day.

`expire_segments` deletes what `copy_segments` has tiered and what is older, or more, than the retention
allows; its log says which and why. Nothing expires unless `retention.ms`, `retention.bytes` or `expire.retentions` is
in `coldlog_settings`, which must name `broker.id`, `archive.uri` and `metadata.uri` too. Tables follow with the next
run of `coldlog_pipeline`.

It waits neither for the pipeline nor for the maintenance, and writes none of their tables: partitions are kept apart by
leases, so that it may meet copies, and itself. A run that was ended is gone on with by the next one.
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
