"""Remove rows of superseded builds from the index tables.

`segments` marks the builds that are superseded. The build that lookups still read is kept: a segment that was built
again answers from its older build until `materialize_metadata` publishes the newer one.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse


def remove_superseded(warehouse: Warehouse) -> None:
    """Remove the rows of builds that `segments` marks as superseded and that no longer answer, then the marks."""
    rows = warehouse.rows_if_small(SEGMENTS, (*SEGMENTS.key, "superseded_build_numbers", "served_build_number"))
    if rows is not None:
        _remove_here(warehouse, rows)
        return
    marked = warehouse.read(SEGMENTS).where(F.col("superseded_build_numbers").isNotNull())
    answers_on = F.array_contains("superseded_build_numbers", F.col("served_build_number"))
    kept = F.when(answers_on, F.array("served_build_number"))
    replaced = marked.where(~F.equal_null("superseded_build_numbers", kept))
    if not replaced.head(1):
        return
    build_number = F.explode("superseded_build_numbers").alias("build_number")
    stale = replaced.select("topic", "partition", "segment_id", "served_build_number", build_number)
    stale = stale.where(~F.equal_null("build_number", F.col("served_build_number"))).drop("served_build_number")
    stale_rows = warehouse.rows_if_few(stale)
    for table in INDEX_TABLES:
        warehouse.delete_matching(table, stale_rows)
    marks = replaced.select(*SEGMENTS.key, kept.alias("superseded_build_numbers"))
    warehouse.merge(SEGMENTS, warehouse.rows_if_few(marks), update=("superseded_build_numbers",))


def _remove_here(warehouse: Warehouse, segments: list[Row]) -> None:
    """As `remove_superseded`, of few segments."""
    stale, marks = list[Row](), list[Row]()
    for row in segments:
        superseded, served = row["superseded_build_numbers"], row["served_build_number"]
        if superseded is None:
            continue
        kept = [served] if served in superseded else None
        if superseded == kept:
            continue
        marks.append({name: row[name] for name in SEGMENTS.key} | {"superseded_build_numbers": kept})
        place = {name: row[name] for name in ("topic", "partition", "segment_id")}
        stale += [place | {"build_number": number} for number in superseded if number != served]
    if marks:
        for table in INDEX_TABLES:
            warehouse.delete_matching(table, stale)
        warehouse.merge(SEGMENTS, marks, update=("superseded_build_numbers",))
