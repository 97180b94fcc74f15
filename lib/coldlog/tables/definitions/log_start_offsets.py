"""Define the table of log start offsets: the first offset of a partition that still exists.

One row per topic-partition for which a log start offset was supplied. An archive listing does not show it, because
DeleteRecords leaves no trace there. Lookups return no offset below it.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

LOG_START_OFFSETS = TableDefinition(
    name="log_start_offsets",
    comment="Log start offsets that were supplied to the jobs",
    key=("topic", "partition"),
    clustered_by=("topic", "partition"),
    skipping_columns=("topic", "partition"),
    columns=(
        Column(name="topic", type="STRING", required=True, comment="Topic name"),
        Column(name="partition", type="INT", required=True, comment="Partition number"),
        Column(name="log_start_offset", type="BIGINT", required=True, comment="First offset that still exists"),
    ),
)
