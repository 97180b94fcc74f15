"""tier_partitions: where does each partition of the tier begin, and which offsets are in it?

One row a topic-partition. Written without Spark, by compare and set (`small_table`), as `tier_schedule` is. The log
start is written before anything is deleted; scan_segments takes it up as one of those that were supplied.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TIER_PARTITIONS = TableDefinition(
    name="tier_partitions",
    comment="Log starts that expiry moved, and which offsets the tier holds",
    key=("topic", "partition", "topic_id"),
    clustered_by=("topic", "partition"),
    skipping_columns=("topic", "partition"),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="log_start_offset", type="BIGINT", comment="Where expiry let the log begin; NULL: nothing expired"),
        Column(name="earliest_remote_offset", type="BIGINT", comment="First offset in the tier; NULL: none"),
        Column(name="latest_remote_offset", type="BIGINT", comment="Last offset in the tier, inclusive; NULL: none"),
        Column(name="retrieved_ms", type="BIGINT", comment="When both were retrieved last"),
    ),
)
