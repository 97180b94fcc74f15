"""Define the table of record batches: where each batch is, and the running maximum of the timestamp.

One row per record batch of an indexed segment; batch headers are enough to fill it. The batch that holds the first
offset at or after T in a segment is the only one with
previous_running_max_timestamp_ms < T <= running_max_timestamp_ms.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

OFFSET_INDEX = TableDefinition(
    name="offset_index",
    comment="Record batches of indexed segments, with the running maximum of the timestamp",
    key=("topic", "partition", "base_offset", "segment_id"),
    clustered_by=("topic", "partition", "base_offset"),
    skipping_columns=("topic", "partition", "base_offset", "last_offset", "build_number", "running_max_timestamp_ms"),
    properties={"delta.parquet.format.version": "2.12.0"},
    delta_packed=(
        "base_offset",
        "last_offset",
        "position",
        "size_bytes",
        "max_timestamp_ms",
        "min_timestamp_ms",
        "previous_running_max_timestamp_ms",
        "running_max_timestamp_ms",
        "record_count",
        "base_sequence",
    ),
    row_group_rows=65_536,
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="segment_id", type="STRING", required=True, comment="Segment that holds the batch"),
        Column(
            name="build_number", type="BIGINT", required=True, comment="The row counts only if segments has this number"
        ),
        Column(name="base_offset", type="BIGINT", required=True, comment="First offset of the batch"),
        Column(name="last_offset", type="BIGINT", required=True, comment="Last offset of the batch, inclusive"),
        Column(name="position", type="BIGINT", required=True, comment="Byte position of the batch in the log"),
        Column(name="size_bytes", type="INT", required=True, comment="Bytes of the batch, header included"),
        Column(name="leader_epoch", type="INT", required=True, comment="Partition leader epoch"),
        Column(
            name="max_timestamp_ms", type="BIGINT", required=True, comment="Largest timestamp, from the batch header"
        ),
        Column(
            name="min_timestamp_ms",
            type="BIGINT",
            comment="Smallest timestamp of its records; NULL: no records, or they differ and were not decoded",
        ),
        Column(
            name="previous_running_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp of the segment before this batch; NULL: no earlier record",
        ),
        Column(
            name="running_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp of the segment up to and including this batch; NULL: no record yet",
        ),
        Column(name="record_count", type="INT", required=True, comment="Records in the batch"),
        # Not from the decoders: a reader of the tables has no codecs.
        Column(name="codec", type="STRING", required=True, comment="none, gzip, snappy, lz4 or zstd"),
        Column(name="timestamp_type", type="STRING", required=True, comment="CreateTime or LogAppendTime"),
        Column(name="is_transactional", type="BOOLEAN", required=True, comment="Part of a transaction"),
        Column(name="is_control", type="BOOLEAN", required=True, comment="Holds a commit or abort marker"),
        Column(name="producer_id", type="BIGINT", required=True, comment="Producer id; -1: not idempotent"),
        Column(name="producer_epoch", type="SMALLINT", required=True, comment="Producer epoch; -1: none"),
        Column(name="base_sequence", type="INT", required=True, comment="Sequence of the first record; -1: none"),
    ),
)
