"""Index, publish and check new segments of the archive, every hour.

| task | what it does |
|---|---|
| `scan_segments` | lists the archive, and reads Kafka's metadata topic if it is configured |
| `build_indexes` | reads the new segments and indexes them |
| `materialize_metadata` | publishes them to lookups |
| `validate_tables` | checks what was written; fails if a critical expectation is not met |

The cost of a run depends on what is new; a run that finds nothing new writes nothing. Every task can be started again,
also after a failure. Runs never overlap. After a run that takes longer than an hour, one run follows; missed runs are
not repeated.

Each task updates an asset `coldlog.<table>` for every table that it writes. Schedule on `coldlog.partition_metadata` to
use published data, and on `coldlog.validation_results` to use checked data.
"""

from __future__ import annotations

from airflow.sdk import DAG, chain

from coldlog_jobs import DEPLOYMENT, START_DATE, ColdlogJob

WRITTEN_TABLES = {
    "scan_segments": ("segments", "segment_events", "log_start_offsets", "unrecognized_objects", "quarantine"),
    "build_indexes": ("segments", "offset_index", "time_index", "txn_index", "interval_index", "quarantine"),
    "materialize_metadata": ("segments", "partition_metadata", "txn_segments"),
    "validate_tables": ("validation_results",),
}

with DAG(
    "coldlog_pipeline",
    description="Index what is new in an archive of Kafka log segments",
    schedule=DEPLOYMENT.pipeline_schedule,
    start_date=START_DATE,
    catchup=False,
    max_active_runs=1,
    default_args=DEPLOYMENT.default_args,
    tags=["coldlog", "kafka"],
    doc_md=__doc__,
):
    chain(
        *(
            ColdlogJob(task_id=job, job=job, outlets=DEPLOYMENT.tables(*written))
            for job, written in WRITTEN_TABLES.items()
        )
    )
