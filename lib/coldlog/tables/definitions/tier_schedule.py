"""tier_schedule: when is each partition of the tier processed next, and who processes it now?

One row a topic-partition and task. Written without Spark, by compare and set (`small_table`), and no part of the tables
that the jobs with Spark make and maintain.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TIER_SCHEDULE = TableDefinition(
    name="tier_schedule",
    comment="When each partition of the tier is processed next, and by whom it is now",
    key=("task", "topic", "partition", "topic_id"),
    clustered_by=("task", "topic", "partition"),
    skipping_columns=("task", "topic", "partition"),
    columns=(
        Column(name="task", type="STRING", required=True, comment="copy or expire"),
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(
            name="next_processing_ms", type="BIGINT", required=True, comment="Not before this time; 0: new, at once"
        ),
        Column(name="lease_holder", type="STRING", comment="Who processes it now; NULL: nobody"),
        Column(name="lease_expires_ms", type="BIGINT", comment="Until when nobody else may"),
        Column(
            name="is_marked_deleted", type="BOOLEAN", required=True, comment="Unassigned while it is processed: it goes"
        ),
        Column(name="last_error", type="STRING", comment="Of the last processing; NULL: it succeeded"),
        Column(name="failed_ms", type="BIGINT", comment="When that was"),
        Column(name="assigned_by", type="INT", required=True, comment="broker.id of the run that assigned it last"),
    ),
)
