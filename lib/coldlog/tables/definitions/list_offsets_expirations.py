"""Define the table of ListOffsets requests that were not answered in time.

Kafka counts these, by topic and partition, in its metric DelayedRemoteListOffsetsMetrics ExpiresPerSec. The view
`coldlog.list_offsets_expiration_rates` computes rates from the table.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

LIST_OFFSETS_EXPIRATIONS = TableDefinition(
    name="list_offsets_expirations",
    comment="ListOffsets requests answered with REQUEST_TIMED_OUT: one row per run and partition",
    key=("run_id", "topic", "partition"),
    clustered_by=("topic", "partition", "expired_ms"),
    skipping_columns=("topic", "partition", "expired_ms"),
    columns=(
        Column(name="run_id", type="STRING", required=True, comment="Id of the run"),
        Column(name="expired_ms", type="BIGINT", required=True, comment="When the run counted them"),
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="request_count", type="BIGINT", required=True, comment="Requests for the partition that timed out"),
        Column(name="timeout_ms", type="BIGINT", required=True, comment="The longest timeout of these requests"),
    ),
)
