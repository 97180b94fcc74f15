"""Define the table of stairs, which has the first record at or after any timestamp.

One row per stair: a record whose timestamp is higher than that of every earlier record of its segment. The first record
at or after T is always a stair, and the only one with previous_timestamp_ms < T <= timestamp_ms. So the answer is
exact, and the archive is not read.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TIME_INDEX = TableDefinition(
    name="time_index",
    comment="Stairs of indexed segments: records with a higher timestamp than every earlier record",
    key=("topic", "partition", "offset", "segment_id"),
    clustered_by=("topic", "partition", "offset"),
    skipping_columns=("topic", "partition", "offset", "timestamp_ms", "build_number", "batch_base_offset"),
    properties={"delta.parquet.format.version": "2.12.0"},
    delta_packed=("batch_base_offset", "offset", "timestamp_ms", "previous_timestamp_ms"),
    row_group_rows=65_536,
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="segment_id", type="STRING", required=True, comment="Segment that holds the record"),
        Column(
            name="build_number", type="BIGINT", required=True, comment="The row counts only if segments has this number"
        ),
        Column(name="batch_base_offset", type="BIGINT", required=True, comment="First offset of the record's batch"),
        Column(name="offset", type="BIGINT", required=True, comment="Offset of the record"),
        Column(name="timestamp_ms", type="BIGINT", required=True, comment="Timestamp of the record"),
        Column(
            name="previous_timestamp_ms",
            type="BIGINT",
            comment="Timestamp of the previous stair; NULL for the first stair of a segment",
        ),
        Column(name="leader_epoch", type="INT", required=True, comment="Partition leader epoch of its batch"),
    ),
)
