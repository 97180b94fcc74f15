"""Find the first offset at or after a timestamp.

Runs when it is triggered, and reads only the tables. Give **either** `topic` and `timestamp` (epoch milliseconds, or
ISO 8601 such as `2026-01-05T10:00:00Z`; without `partition`, every partition of the topic is answered) **or**
`requests`, a CSV or JSON lines file or a Delta table with the columns `topic, partition, timestamp_ms`. Answers are
written to the task's log, or as JSON lines to the file `output` on the machine where the task runs.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from coldlog_jobs import DEPLOYMENT, START_DATE, ColdlogJob, lookup_arguments

ABSOLUTE = "^(/|[a-z][a-z0-9+.-]*://)"

with DAG(
    "coldlog_lookup",
    description="Look up offsets for timestamps in an archive of Kafka log segments",
    schedule=None,
    start_date=START_DATE,
    catchup=False,
    max_active_runs=1,
    default_args=DEPLOYMENT.default_args,
    params={
        "topic": Param(None, type=["null", "string"], description="Name of the topic"),
        "partition": Param(None, type=["null", "integer"], minimum=0, description="Partition; empty: all partitions"),
        "timestamp": Param(
            None,
            type=["null", "string", "integer"],
            description="Epoch milliseconds, or ISO 8601 (no zone: UTC)",
        ),
        "requests": Param(
            None,
            type=["null", "string"],
            pattern=ABSOLUTE,
            description="File or Delta table of requests, absolute path",
        ),
        "output": Param(
            None, type=["null", "string"], pattern="^/", description="Absolute path of the file for the answers"
        ),
    },
    tags=["coldlog", "kafka"],
    doc_md=__doc__,
):
    ColdlogJob(task_id="lookup_offsets", job="lookup_offsets", job_arguments=lookup_arguments)
