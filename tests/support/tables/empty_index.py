"""The tables of a warehouse in which nothing is archived yet, and requests for one partition of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from coldlog.lookups.questions import Questions
from coldlog.lookups.served_index import ServedIndex, WarehouseFiles
from coldlog.model.list_offsets import NEWEST_VERSION
from coldlog.tables.delta.files.table_files import ColumnRanges, TableFiles


def empty_index() -> ServedIndex:
    """An index of no partition."""
    bounds = {"topic": np.empty(0, dtype=np.object_), "partition": np.empty(0, dtype=np.int64)}
    table = TableFiles(location="", version=0, paths=(), ranges=ColumnRanges(minima=bounds, maxima=bounds, count=0))
    return ServedIndex(WarehouseFiles(partitions=table, segments=table, batches=table, stairs=table, intervals=table))


def asked(*timestamps_ms: int, version: int = NEWEST_VERSION, leader_epoch: int = -1) -> Questions:
    """Requests for orders-0."""
    count = len(timestamps_ms)
    return Questions(
        topics=pa.array(["orders"] * count, pa.string()),
        partitions=np.zeros(count, dtype=np.int64),
        timestamps_ms=np.array(timestamps_ms, dtype=np.int64),
        leader_epochs=np.full(count, leader_epoch, dtype=np.int64),
        is_committed=np.zeros(count, dtype=np.bool_),
        versions=np.full(count, version, dtype=np.int64),
        is_invalid=np.zeros(count, dtype=np.bool_),
    )
