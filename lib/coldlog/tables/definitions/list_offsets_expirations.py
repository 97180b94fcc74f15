"""list_offsets_expirations: which requests were not answered in time?

What Kafka counts as DelayedRemoteListOffsetsMetrics ExpiresPerSec, by topic and partition. The view
`coldlog.list_offsets_expiration_rates` makes rates of it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

LIST_OFFSETS_EXPIRATIONS = TableDefinition(
    name="list_offsets_expirations",
    comment="Requests of ListOffsets answered REQUEST_TIMED_OUT: a row a run and partition",
    key=("run_id", "topic", "partition"),
    clustered_by=("topic", "partition", "expired_ms"),
    skipping_columns=("topic", "partition", "expired_ms"),
    columns=(
        Column(name="run_id", type="STRING", required=True, comment="Id of the run that was asked"),
        Column(name="expired_ms", type="BIGINT", required=True, comment="When the run counted them"),
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="request_count", type="BIGINT", required=True, comment="Requests for it that timed out"),
        Column(name="timeout_ms", type="BIGINT", required=True, comment="The longest time that one of them had"),
    ),
)
