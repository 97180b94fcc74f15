"""Define the table of offsets that consumer groups of `coldlog serve` have committed.

One row per group and partition. The table is written without Spark, by compare and set (`small_table`). Jobs with Spark
neither create nor maintain it.

Endpoints that share groups also have a row for each node, and one for each slot of groups, in which `group_id` is empty
(`coldlog.serve.groups.slots`): so one commit is computed from the lease and writes the offsets.
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
        Column(
            name="group_id", type="STRING", required=True, comment="Consumer group; empty: a node or a slot, see topic"
        ),
        Column(
            name="topic",
            type="STRING",
            required=True,
            comment="Topic name, without serve.topic_prefix; without a group: node or slot",
        ),
        Column(
            name="partition",
            type="INT",
            required=True,
            comment="Partition number; of a node serve.node_id, of a slot its number",
        ),
        Column(
            name="committed_offset",
            type="BIGINT",
            required=True,
            comment="The next offset to read; of a node how often it was renewed, of a slot the epoch of its lease",
        ),
        Column(
            name="leader_epoch",
            type="INT",
            required=True,
            comment="Of the last record read; -1: unknown; of a slot the node that took it last",
        ),
        Column(
            name="metadata",
            type="STRING",
            required=True,
            comment="What the client has noted; of a node its address and process, of a slot the process",
        ),
        Column(
            name="committed_ms",
            type="BIGINT",
            required=True,
            comment="Last commit, or last time with members; of a node its renewal, of a slot when it was taken",
        ),
        Column(
            name="topic_id",
            type="STRING",
            comment="Id of the topic at the commit: the offset does not count if it was created again; NULL: unknown",
        ),
    ),
)
