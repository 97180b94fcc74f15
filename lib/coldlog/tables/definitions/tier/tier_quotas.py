"""Define the table of quotas that processes share: when a broker's next segment may be copied, and the archive read.

One row per broker, and one for all that read. Like `tier_schedule`, it is written without Spark, by compare and set
(`small_table`).
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TIER_QUOTAS = TableDefinition(
    name="tier_quotas",
    comment="How much of a broker's write quota its copies have used, and of the read quota the readers",
    key=("broker_id",),
    clustered_by=("broker_id",),
    skipping_columns=("broker_id",),
    columns=(
        Column(
            name="broker_id",
            type="INT",
            required=True,
            comment="broker.id of the runs that copy; -1: everything that reads the archive with fetch.share_quota",
        ),
        Column(
            name="paid_until_us",
            type="BIGINT",
            required=True,
            comment="Epoch microseconds; the next segment is not copied, the next allowance not used, before then",
        ),
        Column(
            name="taken_bytes",
            type="BIGINT",
            required=True,
            comment="Log bytes copied, or allowed to readers, since the row was created",
        ),
    ),
)
"""Each copied segment or allowance moves `paid_until_us` forward by the time that its bytes take at the quota."""
