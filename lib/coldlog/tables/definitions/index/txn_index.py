"""Define the table of aborted transactions.

One row per aborted transaction, in the segment that holds its abort marker, as in Kafka's .txnindex file. The data of
the transaction may be in earlier segments.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TXN_INDEX = TableDefinition(
    name="txn_index",
    comment="Aborted transactions, by the segment that holds the abort marker",
    key=("topic", "partition", "last_offset", "segment_id"),
    clustered_by=("topic", "partition", "last_offset"),
    skipping_columns=("topic", "partition", "first_offset", "last_offset", "build_number"),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="topic_id", type="STRING", required=True, comment="Topic id"),
        Column(name="segment_id", type="STRING", required=True, comment="Segment that holds the abort marker"),
        Column(
            name="build_number", type="BIGINT", required=True, comment="The row counts only if segments has this number"
        ),
        Column(name="producer_id", type="BIGINT", required=True, comment="Producer of the transaction"),
        Column(name="first_offset", type="BIGINT", required=True, comment="First offset of the transaction"),
        Column(name="last_offset", type="BIGINT", required=True, comment="Offset of the abort marker"),
        Column(
            name="last_stable_offset",
            type="BIGINT",
            required=True,
            comment="Last stable offset of the partition when the marker was written",
        ),
    ),
)
