"""Find the listed segments whose announcement the metadata topic may have lost.

If retention removed records of a metadata partition before they were read, a listed segment without an event is either
an orphan or was announced in the lost records. A broker copies the segments of a partition one after another, by
offset. So the announcement came after those of earlier segments and before those of later segments. It can be lost only
if lost records lie between the two.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from coldlog.indexing.events.positions import read_positions
from coldlog.tables.delta.warehouse import Warehouse

_PARTITION = ("topic_id", "partition")
_INT64_MAX = 2**63 - 1


def lost_offsets(warehouse: Warehouse) -> dict[int, list[int]]:
    """Read the last offset of each run of lost records, by metadata partition; usually there are none."""
    positions = read_positions(warehouse, has_values=False)
    return {partition: list(each.lost_offsets) for partition, each in positions.items() if each.lost_offsets}


def with_lost_announcements(segments: DataFrame, lost: dict[int, list[int]]) -> DataFrame:
    """Add the column `may_be_announced` to `segments`, which are listed or announced.

    Segments announced with their offsets have `metadata_partition` and `metadata_offset` set.
    """
    if not lost:
        return segments.withColumn("may_be_announced", F.lit(False))
    by_offset = Window.partitionBy(*_PARTITION).orderBy(F.coalesce("start_offset", "announced_start_offset"))
    before = by_offset.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    after = by_offset.rangeBetween(1, Window.unboundedFollowing)
    announced_at = F.when(F.col("announced_start_offset").isNotNull(), F.col("metadata_offset"))
    places = {
        "announced_before_at": F.coalesce(F.max(announced_at).over(before), F.lit(-1)),
        "announced_after_at": F.coalesce(F.min(announced_at).over(after), F.lit(_INT64_MAX)),
        "lost_at": F.try_element_at(_literal(lost), F.max("metadata_partition").over(Window.partitionBy(*_PARTITION))),
    }
    between = F.expr("exists(lost_at, lost -> announced_before_at < lost AND lost < announced_after_at) IS TRUE")
    return segments.withColumns(places).withColumn("may_be_announced", between).drop(*places)


def _literal(lost: dict[int, list[int]]) -> Column:
    pairs = [(F.lit(partition), F.array(*map(F.lit, offsets))) for partition, offsets in lost.items()]
    return F.create_map(*(part for pair in pairs for part in pair))
