"""Define the table of offsets that consumer groups of `coldlog serve` have committed.

One row per group and partition. The table is written without Spark, by compare and set (`small_table`). Jobs with Spark
neither create nor maintain it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

COMMITTED_OFFSETS = TableDefinition(
    name="committed_offsets",
    comment="Where consumer groups of coldlog serve go on reading",
    key=("group_id", "topic", "partition"),
    clustered_by=("group_id", "topic", "partition"),
    skipping_columns=("group_id", "topic", "partition"),
    columns=(
        Column(name="group_id", type="STRING", required=True, comment="Consumer group"),
        Column(name="topic", type="STRING", required=True, comment="Topic name, without serve.topic_prefix"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="committed_offset", type="BIGINT", required=True, comment="The next offset to read"),
        Column(name="leader_epoch", type="INT", required=True, comment="Of the last record read; -1: unknown"),
        Column(name="metadata", type="STRING", required=True, comment="What the client has noted"),
        Column(name="committed_ms", type="BIGINT", required=True, comment="Last commit, or last time with members"),
    ),
)
