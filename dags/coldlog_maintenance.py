"""Keep the tables small and fast to read, once a day.

`maintain_tables` compacts the tables, removes files that no version within the retention needs, and drops index rows
of segments that were deleted long ago. Its log shows what it saved. Answers of lookups do not change, so the task
updates no asset.

Only one job at a time can write to the warehouse. If the pipeline holds the lock, this task fails and is tried again
later. Give both DAGs a pool with one slot (COLDLOG_POOL), and they wait for each other instead.
"""

from __future__ import annotations

from airflow.sdk import DAG

from coldlog_jobs import DEPLOYMENT, START_DATE, ColdlogJob

with DAG(
    "coldlog_maintenance",
    description="Keep coldlog's tables small",
    schedule=DEPLOYMENT.maintenance_schedule,
    start_date=START_DATE,
    catchup=False,
    max_active_runs=1,
    default_args=DEPLOYMENT.default_args,
    tags=["coldlog", "kafka"],
    doc_md=__doc__,
):
    ColdlogJob(task_id="maintain_tables", job="maintain_tables")
