"""segment_events: the table of the metadata topic's events.

One row a record of `__remote_log_metadata`, in the words of the record; nothing is left out, and records that cannot be
read are kept too, with the reason. Where the topic no longer had records that were never read, one row of kind `lost`
stands at the last of their offsets. The greatest offset of each metadata partition is also how far the topic has been
read: rows are appended in one commit, so a run that was killed has read all of it or nothing.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

SEGMENT_EVENTS = TableDefinition(
    name="segment_events",
    comment="Events of the remote log metadata topic, as they were written",
    key=("metadata_partition", "metadata_offset"),
    clustered_by=("topic", "partition"),
    skipping_columns=("topic", "partition", "metadata_partition", "metadata_offset"),
    columns=(
        Column(name="metadata_partition", type="INT", required=True, comment="Partition of the metadata topic"),
        Column(name="metadata_offset", type="BIGINT", required=True, comment="Offset of the event in it"),
        Column(name="record_timestamp_ms", type="BIGINT", comment="Timestamp of the record that holds the event"),
        Column(
            name="event_kind",
            type="STRING",
            required=True,
            comment="segment (api key 0), segment_update (1), partition_delete (2), segment_snapshot (3), tombstone "
            "(a key without a value), unreadable, lost (the topic no longer had the records up to this offset)",
        ),
        Column(name="topic", type="STRING", comment="Topic name; NULL where the event names none"),
        Column(name="topic_id", type="STRING", comment="Topic id"),
        Column(name="partition", type="INT", comment="Partition number"),
        Column(name="segment_id", type="STRING", comment="Id of the upload"),
        Column(name="state", type="STRING", comment="RemoteLogSegmentState or RemotePartitionDeleteState"),
        Column(name="start_offset", type="BIGINT", comment="Base offset; only a segment's first event has it"),
        Column(
            name="end_offset",
            type="BIGINT",
            comment="Last offset, inclusive; may lie behind the last batch; updates have it from message version 1 on",
        ),
        Column(name="max_timestamp_ms", type="BIGINT", comment="Largest batch timestamp, or a file time"),
        Column(name="broker_id", type="INT", comment="Broker that wrote the event"),
        Column(name="event_timestamp_ms", type="BIGINT", comment="Its clock"),
        Column(name="size_bytes", type="BIGINT", comment="Bytes of the log"),
        Column(
            name="segment_leader_epochs",
            type="ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>",
            comment="Leader epochs of the segment and the first offset of each",
        ),
        Column(name="custom_metadata", type="BINARY", comment="What the storage plugin noted"),
        Column(
            name="txn_index_empty", type="BOOLEAN", comment="True: no aborted transaction in it; NULL: not said (may)"
        ),
        Column(name="record_key", type="BINARY", comment="The record's key; NULL: it has none, as up to Kafka 4.4"),
        Column(name="value", type="BINARY", comment="The record's value, with fields that are not known here"),
        Column(name="problem", type="STRING", comment="Why the event cannot be read; NULL: it can"),
    ),
)
