"""Define the table of how far each partition of the metadata topic has been read.

Everything here follows from `segment_events`. It is kept for a table of so many events that a run does not look through
them. The rows count only if `segment_events` still is as `events_state` says. The table is written without Spark, by
compare and set (`small_table`). Jobs with Spark neither create nor maintain it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

METADATA_POSITIONS = TableDefinition(
    name="metadata_positions",
    comment="How far each partition of the metadata topic has been read",
    key=("metadata_partition",),
    clustered_by=("metadata_partition",),
    skipping_columns=("metadata_partition",),
    columns=(
        Column(name="metadata_partition", type="INT", required=True, comment="Partition of the metadata topic"),
        Column(name="last_offset", type="BIGINT", required=True, comment="Offset of the last record that was read"),
        Column(name="value", type="BINARY", comment="Value of that record; NULL: it has none"),
        Column(name="has_problem", type="BOOLEAN", required=True, comment="Whether that record is no event"),
        Column(name="event_count", type="BIGINT", required=True, comment="Number of events without a problem"),
        Column(name="last_event_offset", type="BIGINT", comment="Offset of the last of these; NULL: there is none"),
        Column(
            name="lost_offsets",
            type="ARRAY<BIGINT>",
            required=True,
            comment="Last offset of each run of records that the topic had lost before they were read",
        ),
        Column(
            name="events_state",
            type="STRING",
            required=True,
            comment="Id and version of segment_events with which this row agrees",
        ),
    ),
)
