"""superseded_builds: which rows of the index tables does nobody need any more?

Those of builds that `segments` marks as superseded, but for the one that lookups still read: a segment that was built
again answers from its older build until `materialize_metadata` publishes what the newer one says.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse


def remove_superseded(warehouse: Warehouse) -> None:
    """Removes the rows of builds that `segments` marks as superseded, then the marks; not those that still answer."""
    marked = warehouse.read(SEGMENTS).where(F.col("superseded_build_numbers").isNotNull())
    answers_on = F.array_contains("superseded_build_numbers", F.col("served_build_number"))
    kept = F.when(answers_on, F.array("served_build_number"))
    replaced = marked.where(~F.equal_null("superseded_build_numbers", kept))
    if not replaced.head(1):
        return
    each = F.explode("superseded_build_numbers").alias("build_number")
    stale = replaced.select("topic", "partition", "segment_id", "served_build_number", each)
    stale = stale.where(~F.equal_null("build_number", F.col("served_build_number"))).drop("served_build_number")
    for table in INDEX_TABLES:
        warehouse.delete_matching(table, stale)
    left = replaced.select(*SEGMENTS.key, kept.alias("superseded_build_numbers"))
    warehouse.merge(SEGMENTS, left, update=("superseded_build_numbers",))


def last_build_number(warehouse: Warehouse) -> int:
    """The number of the last build that was published; 0 before the first."""
    newest = warehouse.read(SEGMENTS).agg(F.max("build_number")).collect()[0][0]
    return 0 if newest is None else int(newest)
