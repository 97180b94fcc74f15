"""Define the table that gives, for any offset, the next segment that may hold aborted transactions.

One row per leader epoch of each segment that serves lookups and whose transaction index is not known to be empty
(KIP-1058). Segments without aborts have no row, so the table grows with the aborts and not with the archive. Only one
row has the interval that holds an offset. So a lookup is one search, whatever the number of rows.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TXN_SEGMENTS = TableDefinition(
    name="txn_segments",
    comment="Segments that may hold aborted transactions, with the offsets for which each is the next one",
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
            comment="From this offset on it is the next segment in its leader epoch; offsets in a gap have none",
        ),
        Column(
            name="log_from_offset",
            type="BIGINT",
            required=True,
            comment="From this offset on it is the next segment of the partition, in any leader epoch",
        ),
        Column(
            name="to_offset", type="BIGINT", required=True, comment="Its last offset in that leader epoch, inclusive"
        ),
        Column(name="segment_id", type="STRING", required=True, comment="The segment"),
        Column(name="start_offset", type="BIGINT", required=True, comment="Its base offset"),
        Column(name="end_offset", type="BIGINT", required=True, comment="Its last offset"),
        Column(
            name="is_certain",
            type="BOOLEAN",
            required=True,
            comment="True: it holds aborted transactions; false: it may hold some",
        ),
    ),
)
