"""tier_quotas: until when is what a broker's copies have taken paid for?

One row a broker. Written without Spark, by compare and set (`small_table`), as `tier_schedule` is.
"""

from __future__ import annotations

from coldlog.tables.definitions.definition import Column, TableDefinition

TIER_QUOTAS = TableDefinition(
    name="tier_quotas",
    comment="What all copies for a broker have taken of its write quota",
    key=("broker_id",),
    clustered_by=("broker_id",),
    skipping_columns=("broker_id",),
    columns=(
        Column(name="broker_id", type="INT", required=True, comment="broker.id of those that copy"),
        Column(
            name="paid_until_us",
            type="BIGINT",
            required=True,
            comment="Epoch microseconds; the next segment is copied then, or later",
        ),
        Column(name="taken_bytes", type="BIGINT", required=True, comment="Of logs, since the row was made"),
    ),
)
"""Each segment taken moves `paid_until_us` on by what it takes at the quota."""
