"""Define the table of the tier's schedule: when each partition is processed next, and which run processes it now.

One row per topic-partition and task. The table is written without Spark, by compare and set (`small_table`). Jobs with
Spark neither create nor maintain it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TIER_SCHEDULE = TableDefinition(
    name="tier_schedule",
    comment="When each partition of the tier is processed next, and which run processes it now",
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
        Column(name="lease_holder", type="STRING", comment="The run that processes it now; NULL: none"),
        Column(name="lease_expires_ms", type="BIGINT", comment="No other run may process it before this time"),
        Column(
            name="is_marked_deleted",
            type="BOOLEAN",
            required=True,
            comment="True: unassigned while it was being processed; the row is removed afterwards",
        ),
        Column(name="last_error", type="STRING", comment="Error of the last processing; NULL: it succeeded"),
        Column(name="failed_ms", type="BIGINT", comment="When the last processing failed"),
        Column(name="assigned_by", type="INT", required=True, comment="broker.id of the run that assigned it last"),
    ),
)
