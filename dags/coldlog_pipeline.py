"""coldlog_pipeline: what is new in the archive, read, published and checked every hour.

| task | what it does |
|---|---|
| `scan_segments` | lists the archive, and reads Kafka's metadata topic where it is configured |
| `build_indexes` | reads the new segments and indexes them |
| `materialize_metadata` | lets lookups see them |
| `validate_tables` | checks what was written; fails on what is critical |

A run costs what is new, and one that finds nothing writes nothing. Every task may be started again whatever became of
the one before. Runs never overlap; a run that takes longer than an hour is followed by one run, not by those it missed.

Each task tells Airflow of the tables that it writes (assets `coldlog.<table>`). To go on from what was published,
schedule on `coldlog.partition_metadata`; to go on from what was checked, on `coldlog.validation_results`.
"""

from __future__ import annotations

from airflow.sdk import DAG, chain

from coldlog_jobs import DEPLOYMENT, START_DATE, ColdlogJob

WRITTEN_TABLES = {
    "scan_segments": ("segments", "segment_events", "log_start_offsets", "unrecognized_objects", "quarantine"),
    "build_indexes": ("segments", "offset_index", "time_index", "txn_index", "quarantine"),
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
