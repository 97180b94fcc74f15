"""Define the table of the metadata topic's events.

One row per record of `__remote_log_metadata`, with the values of the record. Records that cannot be read are kept too,
with the reason. If the topic lost records before they were read, one row of kind `lost` has the last of their offsets.
Maintenance forgets the events of segments that were deleted long ago: of each metadata partition, one row of kind
`forgotten` counts them, at the greatest of their offsets. The greatest offset of each metadata partition shows how far
the topic has been read. Rows are appended in one commit, so a killed run has appended all of them or none.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

SEGMENT_EVENTS = TableDefinition(
    name="segment_events",
    comment="Events of the remote log metadata topic, as written there",
    key=("metadata_partition", "metadata_offset"),
    clustered_by=("topic", "partition"),
    skipping_columns=("topic", "partition", "metadata_partition", "metadata_offset"),
    row_group_rows=16_384,
    columns=(
        Column(name="metadata_partition", type="INT", required=True, comment="Partition of the metadata topic"),
        Column(name="metadata_offset", type="BIGINT", required=True, comment="Offset of the event in that partition"),
        Column(name="record_timestamp_ms", type="BIGINT", comment="Timestamp of the record that holds the event"),
        Column(
            name="event_kind",
            type="STRING",
            required=True,
            comment="segment (api key 0), segment_update (1), partition_delete (2), segment_snapshot (3), tombstone "
            "(a key without a value), unreadable, lost (the topic no longer had the records up to this offset), "
            "forgotten (events of segments that were deleted long ago)",
        ),
        Column(name="topic", type="STRING", comment="Topic name; NULL: the event names none"),
        Column(name="topic_id", type="STRING", comment="Topic id"),
        Column(name="partition", type="INT", comment="Partition number"),
        Column(name="segment_id", type="STRING", comment="Id of the upload"),
        Column(name="state", type="STRING", comment="RemoteLogSegmentState or RemotePartitionDeleteState"),
        Column(name="start_offset", type="BIGINT", comment="Base offset; only a segment's first event has it"),
        Column(
            name="end_offset",
            type="BIGINT",
            comment="Last offset, inclusive; can be after the last batch; updates have it since message version 1",
        ),
        Column(name="max_timestamp_ms", type="BIGINT", comment="Largest batch timestamp, or a file time"),
        Column(name="broker_id", type="INT", comment="Broker that wrote the event"),
        Column(name="event_timestamp_ms", type="BIGINT", comment="Time of the event, by the broker's clock"),
        Column(name="size_bytes", type="BIGINT", comment="Bytes of the log"),
        Column(
            name="segment_leader_epochs",
            type="ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>",
            comment="Leader epochs of the segment and the first offset of each",
        ),
        Column(name="custom_metadata", type="BINARY", comment="Custom metadata of the storage plugin"),
        Column(
            name="txn_index_empty",
            type="BOOLEAN",
            comment="True: no aborted transaction; NULL: not announced, it may have some",
        ),
        Column(name="record_key", type="BINARY", comment="Key of the record; NULL: none (Kafka up to 4.4 writes none)"),
        Column(name="value", type="BINARY", comment="Value of the record, also with fields that coldlog does not know"),
        Column(name="problem", type="STRING", comment="Why the event cannot be read; NULL: it was read"),
        Column(name="event_count", type="BIGINT", comment="How many events a forgotten row stands for; NULL: one"),
    ),
)
