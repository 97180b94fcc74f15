"""log_start_offsets: from which offset on does a partition still exist?

One row a topic-partition that somebody supplied a log start offset for; an archive listing cannot say it (DeleteRecords
leaves no trace there). Lookups answer nothing below it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

LOG_START_OFFSETS = TableDefinition(
    name="log_start_offsets",
    comment="Log start offsets as supplied to the jobs",
    key=("topic", "partition"),
    clustered_by=("topic", "partition"),
    skipping_columns=("topic", "partition"),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="log_start_offset", type="BIGINT", required=True, comment="First offset that still exists"),
    ),
)
