"""txn_segments: from any offset on, which segment is the next that may hold aborted transactions?

One row a segment that serves lookups and whose transaction index is not known to be empty, for each of its leader
epochs (KIP-1058). Segments without aborts have no row, so the table grows with the aborts and not with the archive. The
row that answers a question is the only one whose interval holds the offset: a search, however many rows there are.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TXN_SEGMENTS = TableDefinition(
    name="txn_segments",
    comment="Segments that may hold aborted transactions, with the offsets from which each is the next one",
    key=("topic", "partition", "topic_id", "leader_epoch", "to_offset"),
    clustered_by=("topic", "partition", "leader_epoch", "to_offset"),
    skipping_columns=(
        "topic",
        "partition",
        "leader_epoch",
        "epoch_from_offset",
        "log_from_offset",
        "to_offset",
    ),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="leader_epoch", type="INT", required=True, comment="Leader epoch of the offsets"),
        Column(
            name="epoch_from_offset",
            type="BIGINT",
            required=True,
            comment="From here on it is the next one within its leader epoch; offsets in a gap have none",
        ),
        Column(
            name="log_from_offset",
            type="BIGINT",
            required=True,
            comment="From here on it is the next one of the partition, whatever the leader epoch",
        ),
        Column(
            name="to_offset", type="BIGINT", required=True, comment="Its last offset of that leader epoch, inclusive"
        ),
        Column(name="segment_id", type="STRING", required=True, comment="The segment"),
        Column(name="start_offset", type="BIGINT", required=True, comment="Its base offset"),
        Column(name="end_offset", type="BIGINT", required=True, comment="Its last offset"),
        Column(
            name="is_certain",
            type="BOOLEAN",
            required=True,
            comment="True: it holds some; false: nothing says that not",
        ),
    ),
)
