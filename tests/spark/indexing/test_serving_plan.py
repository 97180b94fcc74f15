"""Test that a plan made in this process and one made in Spark's tasks are equal, row by row."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from coldlog.indexing.publish.planned_rows import SERVED_COLUMNS
from coldlog.indexing.publish.serving_plan import ServingPlan
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from planning import as_large_tables

_STATUSES = [status.value for status in (IndexStatus.INDEXED, IndexStatus.QUARANTINED, IndexStatus.ORPHAN)]


def drawn(chance: random.Random, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Change what the plan depends on: states, what was announced, checkpoints, incarnations, what is served."""
    changed = []
    for row in rows:
        copy = dict(row)
        copy["index_status"] = chance.choice([*_STATUSES, *[IndexStatus.INDEXED.value] * 5])
        if chance.random() < 0.2:
            copy["state"] = chance.choice(list(RemoteLogSegmentState)).name
        if chance.random() < 0.3:
            copy["leader_epoch_checkpoint"] = None
        if chance.random() < 0.3:
            copy["announced_leader_epochs"] = copy["segment_leader_epochs"]
            copy["announced_end_offset"] = (copy["end_offset"] or 0) + chance.randrange(3)
        if chance.random() < 0.3:
            copy["topic_id"] = "B" * 22
        if chance.random() < 0.3:
            copy["txn_index_empty"] = chance.choice([None, False])
        if chance.random() < 0.5:
            copy |= dict.fromkeys(SERVED_COLUMNS)
        changed.append(copy)
    return changed


def planned(plan: ServingPlan) -> dict[str, list[Any]]:
    answers: dict[str, Callable[[], DataFrame | list[Any]]] = {
        "changed segments": plan.changed_segments,
        "uncounted segments": plan.uncounted_segments,
        "partitions": plan.partitions,
        "segments with aborts": plan.txn_segments,
    }
    rows = {}
    for name, answer in answers.items():
        found = answer()
        listed = found if isinstance(found, list) else [row.asDict(recursive=True) for row in found.collect()]
        rows[name] = sorted(listed, key=lambda row: repr([(key, row[key]) for key in sorted(row)]))
    return rows


def test_a_plan_is_the_same_here_and_in_tasks(spark: SparkSession, golden_uri: str, tmp_path: Path) -> None:
    """Of the sample as if nothing was served yet, and as it might be; each is under topics of its own."""
    golden = Warehouse(spark=spark, uri=golden_uri)
    stored = golden.rows_if_small(SEGMENTS, SEGMENTS.column_names)
    log_starts = golden.rows_if_small(LOG_START_OFFSETS, LOG_START_OFFSETS.column_names)
    assert stored
    assert log_starts
    variants = {
        "new.": [row | dict.fromkeys(SERVED_COLUMNS) for row in stored],
        "1.": drawn(random.Random(1), stored),
        "2.": drawn(random.Random(2), stored),
    }
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    warehouse.append(SEGMENTS, [row for prefix, rows in variants.items() for row in _renamed(prefix, rows)])
    warehouse.append(LOG_START_OFFSETS, [row for prefix in variants for row in _renamed(prefix, log_starts)])
    with ServingPlan(warehouse) as here:
        of_here, totals = planned(here), here.totals
        assert isinstance(here.partitions(), list)
    with as_large_tables(), ServingPlan(warehouse) as in_tasks:
        assert planned(in_tasks) == of_here
        assert in_tasks.totals == totals
        assert isinstance(in_tasks.partitions(), DataFrame)
    for prefix in variants:
        assert sum(row["topic"].startswith(prefix) for row in of_here["changed segments"]) > 100
        assert any(row["topic"].startswith(prefix) for row in of_here["segments with aborts"])


def _renamed(prefix: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"topic": f"{prefix}{row['topic']}"} for row in rows]
