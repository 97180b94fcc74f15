"""segments: which remote log segments are there, what was made of each, and which offsets does each serve?

One row a remote log segment, that is one upload with an id of its own: what the metadata topic announced of it (where
that is read), where its objects lie, what the build read, what `materialize_metadata` decided. Lookups read only
segments with `served_from_offset` set, and only the rows of the index tables that carry their `served_build_number`: so
everything is published by the one commit that sets these. A newer build of a segment is its `build_number` until then,
and the older one answers on.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldlog.archive.layouts.layout import ListedSegment, SegmentObject, object_kind
from coldlog.tables.definitions.definition import Column, TableDefinition

SEGMENTS = TableDefinition(
    name="segments",
    comment="Remote log segments: metadata, objects, index status and the offsets each one serves to lookups",
    key=("topic", "partition", "start_offset", "segment_id"),
    clustered_by=("topic", "partition", "start_offset"),
    skipping_columns=(
        "topic",
        "partition",
        "start_offset",
        "end_offset",
        "index_status",
        "build_number",
        "served_from_offset",
        "previous_running_max_timestamp_ms",
        "running_max_timestamp_ms",
    ),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id, Kafka's 22 characters"),
        Column(name="start_offset", type="BIGINT", required=True, comment="Base offset of the segment"),
        Column(name="segment_id", type="STRING", required=True, comment="Id of this upload, Kafka's 22 characters"),
        Column(name="end_offset", type="BIGINT", comment="Last offset, inclusive; NULL until known"),
        Column(name="max_timestamp_ms", type="BIGINT", comment="Largest record timestamp; control records count"),
        Column(name="max_timestamp_offset", type="BIGINT", comment="Lowest offset with max_timestamp_ms"),
        Column(name="min_timestamp_ms", type="BIGINT", comment="Smallest record timestamp; NULL at batch depth"),
        Column(
            name="metadata_max_timestamp_ms",
            type="BIGINT",
            comment="What Kafka's metadata should say: largest batch timestamp, or the file time if that is negative",
        ),
        Column(name="size_bytes", type="BIGINT", comment="Bytes of the original log; NULL where only reading it tells"),
        Column(
            name="segment_leader_epochs",
            type="ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>",
            comment="Leader epochs of the batches and the first offset of each",
        ),
        Column(name="state", type="STRING", required=True, comment="RemoteLogSegmentState"),
        Column(
            name="state_source",
            type="STRING",
            required=True,
            comment="listing: concluded from the objects present; events: from the remote log metadata",
        ),
        Column(name="announced_start_offset", type="BIGINT", comment="Base offset, as announced; NULL: no event"),
        Column(name="announced_end_offset", type="BIGINT", comment="Last offset, as announced"),
        Column(name="announced_max_timestamp_ms", type="BIGINT", comment="Largest timestamp (or file time), announced"),
        Column(name="announced_size_bytes", type="BIGINT", comment="Bytes of the log, as announced"),
        Column(
            name="announced_leader_epochs",
            type="ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>",
            comment="Leader epochs, as announced; the first offset of the first is the segment's",
        ),
        Column(name="announced_txn_index_empty", type="BOOLEAN", comment="As announced; NULL: not said, it may not be"),
        Column(name="broker_id", type="INT", comment="Broker of the last event"),
        Column(name="event_timestamp_ms", type="BIGINT", comment="Time of the last event"),
        Column(name="custom_metadata", type="BINARY", comment="Storage plugin's own, of the last event"),
        Column(name="was_copied", type="BOOLEAN", comment="It was COPY_SEGMENT_FINISHED once"),
        Column(name="dropped_event_count", type="BIGINT", comment="Events dropped: no valid transition"),
        Column(name="txn_index_empty", type="BOOLEAN", comment="True: no abort marker in it; NULL: unknown"),
        Column(name="is_listed", type="BOOLEAN", required=True, comment="The last scan found objects of it"),
        Column(
            name="objects",
            type="ARRAY<STRUCT<kind: STRING, name: STRING, size_bytes: BIGINT>>",
            required=True,
            comment="Objects of the archive that hold it, by kind of file, indexes (several small files) or manifest",
        ),
        Column(name="missing_kinds", type="ARRAY<STRING>", required=True, comment="Required files that are not there"),
        Column(name="log_modified_ms", type="BIGINT", comment="Modification time of the log object"),
        Column(
            name="index_status",
            type="STRING",
            required=True,
            comment="pending, indexed, quarantined, incomplete, gone, orphan (no event announced it)",
        ),
        Column(name="index_depth", type="STRING", comment="record or batch: how deep it is indexed"),
        Column(
            name="build_number", type="BIGINT", comment="Its newest build: rows of the index tables with this number"
        ),
        Column(
            name="superseded_build_numbers",
            type="ARRAY<BIGINT>",
            comment="Earlier builds whose rows are still to be removed; NULL when there are none",
        ),
        Column(
            name="counted_from_offset",
            type="BIGINT",
            comment="Running maxima and stairs count records from here on: the start, or a log start offset inside it",
        ),
        Column(name="counted_max_timestamp_ms", type="BIGINT", comment="Largest timestamp from there on"),
        Column(name="counted_max_timestamp_offset", type="BIGINT", comment="Lowest offset from there on that has it"),
        Column(name="batch_count", type="BIGINT", comment="Record batches"),
        Column(name="record_count", type="BIGINT", comment="Records, control records included"),
        Column(name="control_batch_count", type="BIGINT", comment="Control batches"),
        Column(name="commit_marker_count", type="BIGINT", comment="Commit markers"),
        Column(name="abort_marker_count", type="BIGINT", comment="Abort markers"),
        Column(name="codecs", type="ARRAY<STRING>", comment="Compression codecs of its batches"),
        Column(
            name="leader_epoch_checkpoint",
            type="ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>",
            comment="Lineage up to its end, from the checkpoint that came with it",
        ),
        Column(name="open_transaction_count", type="BIGINT", comment="Transactions open at its end"),
        Column(name="open_from_offset", type="BIGINT", comment="First offset of the oldest of them; NULL: none"),
        Column(name="is_within_lineage", type="BOOLEAN", comment="By Kafka's rule; NULL: no lineage is known"),
        Column(name="served_from_offset", type="BIGINT", comment="First offset it answers for; NULL: not served"),
        Column(name="served_to_offset", type="BIGINT", comment="Last offset it answers for, inclusive"),
        Column(name="served_build_number", type="BIGINT", comment="Build whose rows lookups read; NULL: not served"),
        Column(name="served_index_depth", type="STRING", comment="How deep that build went: record or batch"),
        Column(name="not_served_reason", type="STRING", comment="Why lookups pass it over"),
        Column(
            name="previous_running_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp served before it in its partition; NULL: none",
        ),
        Column(
            name="running_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp served up to and with it; holds the answer to T if previous < T <= this",
        ),
        Column(
            name="broker_previous_running_max_timestamp_ms",
            type="BIGINT",
            comment="The same over metadata_max_timestamp_ms: where a broker would begin",
        ),
        Column(name="broker_running_max_timestamp_ms", type="BIGINT", comment="See the column before"),
    ),
)


def listed_segment(row: Mapping[str, object]) -> ListedSegment:
    """The segment of a row of `segments`, with its objects as listed; `TypeError` for a row of another table."""
    objects = tuple(
        SegmentObject(kind=object_kind(each["kind"]), name=each["name"], size_bytes=each["size_bytes"], modified_ms=0)
        for each in row["objects"]  # type: ignore[attr-defined]  # an Arrow list column
    )
    return ListedSegment(
        topic=str(row["topic"]),
        topic_id=str(row["topic_id"]),
        partition=required_integer(row["partition"]),
        start_offset=required_integer(row["start_offset"]),
        segment_id=str(row["segment_id"]),
        objects=objects,
        missing_kinds=(),
    )


def required_integer(value: object) -> int:
    """An integer column of a row; `TypeError` for anything else."""
    if not isinstance(value, int):
        raise TypeError(f"an integer was expected in a row of segments, found {value!r}")
    return value
