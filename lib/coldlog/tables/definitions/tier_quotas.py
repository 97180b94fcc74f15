"""Define the table of write quotas: when a broker's next segment may be copied.

One row per broker. Like `tier_schedule`, it is written without Spark, by compare and set (`small_table`).
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TIER_QUOTAS = TableDefinition(
    name="tier_quotas",
    comment="How much of a broker's write quota its copies have used",
    key=("broker_id",),
    clustered_by=("broker_id",),
    skipping_columns=("broker_id",),
    columns=(
        Column(name="broker_id", type="INT", required=True, comment="broker.id of the runs that copy"),
        Column(
            name="paid_until_us",
            type="BIGINT",
            required=True,
            comment="Epoch microseconds; the next segment is not copied before this time",
        ),
        Column(name="taken_bytes", type="BIGINT", required=True, comment="Log bytes copied since the row was created"),
    ),
)
"""Each copied segment moves `paid_until_us` forward by the time that its bytes take at the quota."""
