"""Define the table of intervals, for segments whose log the build did not read (depth `sidecar`).

One row per interval of a segment's log of about `sidecar.stride_bytes`, from the segment's offset and time index. The
first batch of the segment with a timestamp of at least T is in the interval with previous_running_max_timestamp_ms < T
<= running_max_timestamp_ms (`index.log_intervals` has the proof). Timestamps are those of batch headers: if no record
of the interval has one, the first match is in a later interval.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

INTERVAL_INDEX = TableDefinition(
    name="interval_index",
    comment="Intervals of the logs of segments at sidecar depth, with the running maximum of the timestamp",
    key=("topic", "partition", "after_offset", "segment_id"),
    clustered_by=("topic", "partition", "after_offset"),
    skipping_columns=("topic", "partition", "after_offset", "last_offset", "build_number", "running_max_timestamp_ms"),
    properties={"delta.parquet.format.version": "2.12.0"},
    delta_packed=(
        "after_offset",
        "last_offset",
        "position",
        "size_bytes",
        "previous_running_max_timestamp_ms",
        "running_max_timestamp_ms",
    ),
    row_group_rows=65_536,
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="segment_id", type="STRING", required=True, comment="Segment that holds the interval"),
        Column(
            name="build_number", type="BIGINT", required=True, comment="The row counts only if segments has this number"
        ),
        Column(
            name="after_offset",
            type="BIGINT",
            required=True,
            comment="Last offset before the interval; its batches end after this one",
        ),
        Column(name="last_offset", type="BIGINT", required=True, comment="Last offset of the interval, inclusive"),
        Column(
            name="position",
            type="BIGINT",
            required=True,
            comment="Byte position in the log of a batch at or before the first one of the interval",
        ),
        Column(
            name="size_bytes",
            type="BIGINT",
            required=True,
            comment="Bytes from position on that hold the whole interval; batches of the next one may follow in them",
        ),
        Column(
            name="previous_running_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp of the segment before this interval; NULL: no earlier timestamp",
        ),
        Column(
            name="running_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp of the segment up to and including this interval; NULL: no timestamp yet",
        ),
    ),
)
