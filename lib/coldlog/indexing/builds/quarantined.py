"""Update `quarantine` to the outcomes of a build. All its rows fit in the driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import functions as F

from coldlog.model.states import IndexStatus
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Key, Row, key_of
from coldlog.tables.delta.warehouse import Warehouse

_FACTS = ("topic", "partition", "topic_id", "start_offset", "segment_id", "reason", "message", "object_name")
_PLACES = ("position", "expected", "found")


def update_quarantine(warehouse: Warehouse, bad: Sequence[Row]) -> None:
    """Add the segments that could not be read (rows of `OUTCOME_SCHEMA`), also to `segments`; remove those that are no
    longer in quarantine."""
    stored = warehouse.small_rows(QUARANTINE, (*QUARANTINE.key, "first_seen_ms", "attempt_count"))
    if bad:
        known = {key_of(QUARANTINE, row): row for row in stored}
        now_ms = time.time_ns() // 1_000_000
        warehouse.merge(QUARANTINE, [_row(row, known.get(key_of(QUARANTINE, row)), now_ms) for row in bad])
        status = [row | {"index_status": IndexStatus.QUARANTINED.value} for row in bad]
        warehouse.merge(SEGMENTS, status, update=("index_status", "leader_epoch_checkpoint"))
    _release(warehouse, {key_of(QUARANTINE, row) for row in [*stored, *bad]})


def _row(outcome: Row, before: Row | None, now_ms: int) -> Row:
    seen = {"first_seen_ms": now_ms, "last_seen_ms": now_ms, "attempt_count": 1}
    if before is not None:
        seen |= {"first_seen_ms": before["first_seen_ms"], "attempt_count": before["attempt_count"] + 1}
    return {name: outcome[name] for name in (*_FACTS, *_PLACES)} | seen


def _release(warehouse: Warehouse, known: set[Key]) -> None:
    """Remove the rows of segments, of all partitions, that are no longer in quarantine."""
    places = frozenset((str(key[0]), int(str(key[1]))) for key in known)
    if not places:
        return
    there = replace(warehouse, partitions=places)
    columns = (*QUARANTINE.key, "index_status")
    rows = there.rows_if_small(SEGMENTS, columns)
    waiting = (IndexStatus.QUARANTINED.value, IndexStatus.PENDING.value)
    if rows is None:
        usable = there.read(SEGMENTS).select(*columns).where(~F.col("index_status").isin(*waiting))
        keys = F.broadcast(warehouse.local_keys(QUARANTINE, known))
        rows = usable.join(keys, list(QUARANTINE.key), "left_semi").toArrow().to_pylist()
    released = {key_of(QUARANTINE, row) for row in rows if row["index_status"] not in waiting} & known
    warehouse.delete_matching(QUARANTINE, [dict(zip(QUARANTINE.key, key, strict=True)) for key in released])
