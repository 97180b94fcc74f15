"""Define the table of tier partitions: where each one starts, and which offsets are in the tier.

One row per topic-partition. Like `tier_schedule`, it is written without Spark, by compare and set (`small_table`). The
log start is written before anything is deleted; scan_segments uses it like a supplied log start offset.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TIER_PARTITIONS = TableDefinition(
    name="tier_partitions",
    comment="Log starts that expiry has moved, and the offsets that the tier holds",
    key=("topic", "partition", "topic_id"),
    clustered_by=("topic", "partition"),
    skipping_columns=("topic", "partition"),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="log_start_offset", type="BIGINT", comment="Log start after expiry; NULL: nothing expired"),
        Column(name="earliest_remote_offset", type="BIGINT", comment="First offset in the tier; NULL: none"),
        Column(name="latest_remote_offset", type="BIGINT", comment="Last offset in the tier, inclusive; NULL: none"),
        Column(name="retrieved_ms", type="BIGINT", comment="When both offsets were last retrieved"),
    ),
)
