"""Publish which segments may hold aborted transactions, and for which offsets each is the next one.

The serving plan finds the rows (`index/txn_segments.py`). This module writes those that differ from the stored ones.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.delta.row_edits import Row, changed_rows, key_of
from coldlog.tables.delta.warehouse import Warehouse

_IS_NO_MORE = "is_no_more"


def publish_txn_segments(warehouse: Warehouse, wanted: DataFrame | list[Row]) -> int:
    """Update `txn_segments` to the `wanted` rows; return the number of changed rows."""
    if not isinstance(wanted, DataFrame):
        stored = warehouse.rows_if_small(TXN_SEGMENTS, TXN_SEGMENTS.column_names)
        if stored is not None:
            return _publish_here(warehouse, wanted, stored)
        wanted = warehouse.local(TXN_SEGMENTS, wanted)
    changes = _changes(wanted, warehouse.read(TXN_SEGMENTS)).persist()
    try:
        count = changes.count()
        if count:
            warehouse.merge(TXN_SEGMENTS, changes, remove=_IS_NO_MORE, count=count)
    finally:
        changes.unpersist()
    return count


def _publish_here(warehouse: Warehouse, wanted: list[Row], stored: list[Row]) -> int:
    kept = {key_of(TXN_SEGMENTS, row) for row in wanted}
    changes = [row | {_IS_NO_MORE: False} for row in changed_rows(TXN_SEGMENTS, stored, wanted)]
    changes += [row | {_IS_NO_MORE: True} for row in stored if key_of(TXN_SEGMENTS, row) not in kept]
    warehouse.merge(TXN_SEGMENTS, changes, remove=_IS_NO_MORE)
    return len(changes)


def _changes(wanted: DataFrame, stored: DataFrame) -> DataFrame:
    """Return the rows to write, and with `is_no_more` those to remove."""
    key = list(TXN_SEGMENTS.key)
    others = [name for name in TXN_SEGMENTS.column_names if name not in key]
    before = stored.select(
        *key, F.lit(True).alias("is_stored"), *(F.col(name).alias(f"stored_{name}") for name in others)
    )
    both = wanted.withColumn("is_wanted", F.lit(True)).join(before, key, "full_outer")
    is_same = F.col("is_wanted") & F.col("is_stored")
    for name in others:
        is_same = is_same & F.col(name).eqNullSafe(F.col(f"stored_{name}"))
    kept = (F.coalesce(name, f"stored_{name}").alias(name) for name in others)
    return both.where(is_same.isNull() | ~is_same).select(*key, *kept, F.col("is_wanted").isNull().alias(_IS_NO_MORE))
