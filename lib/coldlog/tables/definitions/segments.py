"""Define the table of remote log segments: what was announced, listed and read of each, and which offsets it serves.

One row per remote log segment, that is, per upload with its own id. The row has what the metadata topic announced (if
it is read), where the objects are, what the build read, and what `materialize_metadata` decided. Lookups read only
segments with `served_from_offset` set, and only rows of the index tables that have their `served_build_number`. So the
one commit that sets these columns publishes everything. Until that commit, a newer build is only in `build_number`, and
the older build still answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldlog.archive.layouts.layout import ListedSegment, SegmentObject, object_kind
from coldlog.tables.definitions.definition import Column, TableDefinition

HOLES_TYPE = (
    "ARRAY<STRUCT<from_offset: BIGINT, to_offset: BIGINT, position: BIGINT, end_position: BIGINT, reason: STRING, "
    "max_timestamp_bound_ms: BIGINT>>"
)
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
    row_group_rows=8_192,
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id, 22 characters as in Kafka"),
        Column(name="start_offset", type="BIGINT", required=True, comment="Base offset of the segment"),
        Column(name="segment_id", type="STRING", required=True, comment="Id of the upload, 22 characters as in Kafka"),
        Column(name="end_offset", type="BIGINT", comment="Last offset, inclusive; NULL until known"),
        Column(
            name="max_timestamp_ms",
            type="BIGINT",
            comment="Largest record timestamp, control records included; at sidecar depth that of the time index",
        ),
        Column(name="max_timestamp_offset", type="BIGINT", comment="Lowest offset with max_timestamp_ms"),
        Column(name="min_timestamp_ms", type="BIGINT", comment="Smallest record timestamp; only at record depth"),
        Column(
            name="metadata_max_timestamp_ms",
            type="BIGINT",
            comment="Value for Kafka's metadata: largest batch timestamp, or the file time if that is negative",
        ),
        Column(name="size_bytes", type="BIGINT", comment="Bytes of the original log; NULL: unknown until it is read"),
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
            comment="listing: derived from the listed objects; events: from the remote log metadata",
        ),
        Column(name="announced_start_offset", type="BIGINT", comment="Base offset, as announced; NULL: no event"),
        Column(name="announced_end_offset", type="BIGINT", comment="Last offset, as announced"),
        Column(name="announced_max_timestamp_ms", type="BIGINT", comment="Largest timestamp (or file time), announced"),
        Column(name="announced_size_bytes", type="BIGINT", comment="Bytes of the log, as announced"),
        Column(
            name="announced_leader_epochs",
            type="ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>",
            comment="Leader epochs, as announced; the first one starts at the segment's base offset",
        ),
        Column(
            name="announced_txn_index_empty",
            type="BOOLEAN",
            comment="True: announced without aborted transactions; NULL: not announced, it may have some",
        ),
        Column(name="copy_started_ms", type="BIGINT", comment="Time of the first event; NULL: no event of its copy"),
        Column(name="broker_id", type="INT", comment="Broker of the last event"),
        Column(name="event_timestamp_ms", type="BIGINT", comment="Time of the last event"),
        Column(
            name="custom_metadata", type="BINARY", comment="Custom metadata of the storage plugin, in the last event"
        ),
        Column(name="was_copied", type="BOOLEAN", comment="True: its state was COPY_SEGMENT_FINISHED once"),
        Column(name="dropped_event_count", type="BIGINT", comment="Events that were dropped as invalid transitions"),
        Column(name="txn_index_empty", type="BOOLEAN", comment="True: no abort marker in it; NULL: unknown"),
        Column(name="is_listed", type="BOOLEAN", required=True, comment="The last scan found objects of the segment"),
        Column(
            name="objects",
            type="ARRAY<STRUCT<kind: STRING, name: STRING, size_bytes: BIGINT>>",
            required=True,
            comment="Its objects in the archive; kind is the kind of file, indexes (several small files) or manifest",
        ),
        Column(name="missing_kinds", type="ARRAY<STRING>", required=True, comment="Required files that are missing"),
        Column(
            name="log_modified_ms",
            type="BIGINT",
            comment="Modification time of the log object, or of a mirror's checkpoint if that is later (last log only)",
        ),
        Column(
            name="index_status",
            type="STRING",
            required=True,
            comment="pending, indexed, quarantined, incomplete, gone, orphan (no event announced it)",
        ),
        Column(
            name="index_depth",
            type="STRING",
            comment="Depth of its index: record, batch or sidecar; NULL: it has no index of its present objects",
        ),
        Column(
            name="build_number",
            type="BIGINT",
            comment="Its newest build; its rows in the index tables have this number",
        ),
        Column(
            name="superseded_build_numbers",
            type="ARRAY<BIGINT>",
            comment="Earlier builds whose rows must still be removed; NULL: none",
        ),
        Column(
            name="counted_from_offset",
            type="BIGINT",
            comment="Running maxima and stairs count records from this offset on: the segment's base offset, or a log "
            "start offset inside it",
        ),
        Column(name="counted_max_timestamp_ms", type="BIGINT", comment="Largest timestamp from counted_from_offset on"),
        Column(
            name="counted_max_timestamp_offset",
            type="BIGINT",
            comment="Lowest offset with counted_max_timestamp_ms, from counted_from_offset on",
        ),
        Column(
            name="batch_count",
            type="BIGINT",
            comment="Record batches; at sidecar depth this, the next counts and the codecs are NULL",
        ),
        Column(name="record_count", type="BIGINT", comment="Records, control records included"),
        Column(name="control_batch_count", type="BIGINT", comment="Control batches"),
        Column(name="commit_marker_count", type="BIGINT", comment="Commit markers"),
        Column(name="abort_marker_count", type="BIGINT", comment="Abort markers"),
        Column(name="codecs", type="ARRAY<STRING>", comment="Compression codecs of its batches"),
        Column(
            name="leader_epoch_checkpoint",
            type="ARRAY<STRUCT<leader_epoch: INT, start_offset: BIGINT>>",
            comment="Lineage up to the segment's end, from the checkpoint uploaded with it; NULL: not read, or damaged",
        ),
        Column(name="open_transaction_count", type="BIGINT", comment="Transactions open at its end"),
        Column(
            name="open_from_offset", type="BIGINT", comment="First offset of the oldest open transaction; NULL: none"
        ),
        Column(
            name="damaged_files",
            type="ARRAY<STRING>",
            comment="Files that are damaged, and how; of a log, what is sound was indexed, of others nothing was used",
        ),
        Column(
            name="holes",
            type=HOLES_TYPE,
            comment="Damaged places of its log: the offsets lost there, inclusive (to_offset NULL: the end is unknown; "
            "below from_offset: none), the bytes, and the largest timestamp that can be there; NULL: none",
        ),
        Column(
            name="is_within_lineage",
            type="BOOLEAN",
            comment="Whether its leader epochs are in the lineage, by Kafka's rule; NULL: no lineage is known",
        ),
        Column(name="served_from_offset", type="BIGINT", comment="First offset it answers for; NULL: not served"),
        Column(name="served_to_offset", type="BIGINT", comment="Last offset it answers for, inclusive"),
        Column(name="served_build_number", type="BIGINT", comment="Build whose rows lookups read; NULL: not served"),
        Column(name="served_index_depth", type="STRING", comment="Index depth of that build: record, batch or sidecar"),
        Column(name="served_holes", type=HOLES_TYPE, comment="Holes of that build: offsets it does not answer for"),
        Column(
            name="served_open_from_offset",
            type="BIGINT",
            comment="First offset of the oldest transaction that may be open at served_to_offset, if it does not serve "
            "to its end (NULL: none), or if an earlier segment shows one that open_from_offset does not have",
        ),
        Column(name="not_served_reason", type="STRING", comment="Why lookups do not use it"),
        Column(
            name="previous_running_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp served before it in its partition; NULL: none",
        ),
        Column(
            name="running_max_timestamp_ms",
            type="BIGINT",
            comment="Largest timestamp served up to and including it; it has the answer to T if previous < T <= this",
        ),
        Column(
            name="broker_previous_running_max_timestamp_ms",
            type="BIGINT",
            comment="The same for metadata_max_timestamp_ms, by which a broker chooses the segment",
        ),
        Column(
            name="broker_running_max_timestamp_ms",
            type="BIGINT",
            comment="running_max_timestamp_ms for metadata_max_timestamp_ms",
        ),
    ),
)


def listed_segment(row: Mapping[str, object]) -> ListedSegment:
    """Return the segment of a row of `segments`, with its listed objects; `TypeError` for a row of another table."""
    objects = tuple(
        SegmentObject(kind=object_kind(item["kind"]), name=item["name"], size_bytes=item["size_bytes"], modified_ms=0)
        for item in row["objects"]  # type: ignore[attr-defined]  # an Arrow list column
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


def leader_epochs(row: Mapping[str, object]) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of a row's segment, each with its first offset; none if they are not known."""
    entries = row["segment_leader_epochs"]
    return tuple((each["leader_epoch"], each["start_offset"]) for each in entries) if isinstance(entries, list) else ()


def required_integer(value: object) -> int:
    """Return an integer column of a row; `TypeError` for anything else."""
    if not isinstance(value, int):
        raise TypeError(f"an integer was expected in a row of segments, found {value!r}")
    return value
