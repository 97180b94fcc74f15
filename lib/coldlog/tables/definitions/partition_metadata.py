"""Define the table of partitions: what the archive holds and serves of each.

One row per topic-partition and incarnation of its topic. If a topic was deleted and created again, `is_current` marks
the incarnation that lookups by topic name use: the one whose newest segment was written last, whether it was deleted
since or not. If nothing is known of when segments were written, because they are deleted, the last deletion counts; on
ties, the higher id.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

PARTITION_METADATA = TableDefinition(
    name="partition_metadata",
    comment="What the archive holds and serves of each partition",
    key=("topic", "partition", "topic_id"),
    clustered_by=("topic", "partition"),
    skipping_columns=("topic", "partition", "max_timestamp_ms"),
    row_group_rows=8_192,
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="is_current", type="BOOLEAN", required=True, comment="Lookups by topic name use this incarnation"),
        Column(name="log_start_offset", type="BIGINT", comment="First offset that still exists; NULL: unknown"),
        Column(
            name="log_start_source",
            type="STRING",
            comment="Its source: supplied, deleted_segments (events), leader_epochs (newest checkpoint); "
            "checkpoint_lost: the newest checkpoint is damaged, the log starts there or later; first_segment: the "
            "first segment that is known, as the newest checkpoint may be older than the last deletion",
        ),
        Column(name="earliest_offset", type="BIGINT", comment="First offset served; NULL: none"),
        Column(name="latest_tiered_offset", type="BIGINT", comment="Last offset served, inclusive; NULL: none"),
        Column(name="max_timestamp_ms", type="BIGINT", comment="Largest timestamp served; NULL: none"),
        Column(
            name="max_timestamp_offset", type="BIGINT", comment="Lowest offset with max_timestamp_ms; NULL: unknown"
        ),
        Column(
            name="finished_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp of all COPY_SEGMENT_FINISHED segments, served or not: the route of ListOffsets "
            "depends on it; 9223372036854775807: not known of one of them; NULL: there is none",
        ),
        Column(name="segment_count", type="BIGINT", required=True, comment="Segments, without those that are deleted"),
        Column(name="served_segment_count", type="BIGINT", required=True, comment="Segments that answer lookups"),
        Column(
            name="unserved_segment_count",
            type="BIGINT",
            required=True,
            comment="Segments that do not answer lookups, without those that are deleted",
        ),
        Column(name="pending_segment_count", type="BIGINT", required=True, comment="Segments waiting for the build"),
        Column(name="quarantined_segment_count", type="BIGINT", required=True, comment="Segments in quarantine"),
        Column(name="txn_index_segment_count", type="BIGINT", required=True, comment="Served segments with aborts"),
        Column(name="txn_index_empty", type="BOOLEAN", comment="True: no served segment holds an abort marker"),
        Column(name="size_bytes", type="BIGINT", required=True, comment="Bytes of the logs served"),
        Column(
            name="record_count",
            type="BIGINT",
            required=True,
            comment="Records of the segments served, without those at sidecar depth, which are not counted",
        ),
        Column(
            name="leader_epoch_lineage",
            type="ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>",
            required=True,
            comment="Leader epochs with records, from the newest checkpoint; the first begins at the log start, or "
            "before it if log_start_source is first_segment",
        ),
        Column(
            name="stable_offset",
            type="BIGINT",
            comment="First offset of the oldest transaction open at the archive end; read_committed stops here",
        ),
        Column(name="open_transaction_count", type="BIGINT", comment="Transactions open at the archive end"),
        Column(
            name="gap_count",
            type="BIGINT",
            required=True,
            comment="Places where offsets between served segments are missing",
        ),
        Column(
            name="unserved_ranges",
            type="ARRAY<STRUCT<from_offset: BIGINT, to_offset: BIGINT, max_timestamp_bound_ms: BIGINT>>",
            comment="Offsets that lookups pass over, where the bound of their timestamps is larger than in all before, "
            "and those after the last served one; bound NULL: any timestamp; NULL: not known",
        ),
    ),
)
