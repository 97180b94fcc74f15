"""Test that Spark's tasks compare many segments as one process compares few, over rows at random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from coldlog.indexing.events.event_rows import TOMBSTONE, lost_row
from coldlog.indexing.scan import comparison
from coldlog.indexing.scan.comparison import ComparedHere, ComparedInTasks
from coldlog.indexing.scan.listed_rows import LISTED_SCHEMA
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row, key_of
from coldlog.tables.delta.warehouse import Warehouse
from planning import as_large_tables
from tables.drawn_segments import draw_with_events

_UNLISTED: Row = {
    "topic": "a", "partition": 1, "topic_id": "", "unrecognized_name": "a-1", "unrecognized_why": "cannot be listed",
}  # fmt: skip
_PARTITIONS = frozenset({("a", 0), ("a", 2), ("a", 7), ("c", 0)})


@pytest.mark.parametrize("lost_offset", [None, 500])
def test_tasks_find_what_one_process_finds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_offset: int | None
) -> None:
    monkeypatch.setattr(comparison, "_SEGMENTS_A_TASK", 500)
    stored, events, listed = (rows.to_pylist() for rows in draw_with_events(Random(40)))
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    rows = {key_of(SEGMENTS, row): row for row in stored}
    warehouse.append(SEGMENTS, [{name: row.get(name) for name in SEGMENTS.column_names} for row in rows.values()])
    # An event that names another topic than the others of its segment belongs to that one's tasks.
    told = [{name: row.get(name) for name in SEGMENT_EVENTS.column_names} for row in events if row["topic"] == "a"]
    tombstones = [row for row in told if row["event_kind"] == TOMBSTONE]
    for row in tombstones:
        row["topic"] = None
    assert len(tombstones) > 5
    if lost_offset is not None:
        place = {"metadata_partition": 3, "metadata_offset": lost_offset}
        lost = dict.fromkeys(SEGMENT_EVENTS.column_names) | lost_row() | place
        told = [lost, *(row for row in told if row["metadata_offset"] > lost_offset)]
    warehouse.append(SEGMENT_EVENTS, told)
    listing = pa.Table.from_pylist([*listed, _UNLISTED], LISTED_SCHEMA)

    for limited in (warehouse, replace(warehouse, partitions=_PARTITIONS)):
        is_wanted = [limited.partitions is None or (row["topic"], row["partition"]) in _PARTITIONS for row in listed]
        of_run = listing.filter(pa.array([*is_wanted, True]))
        here = ComparedHere.of(limited, of_run.to_batches(), is_mirror=False)
        assert here is not None
        with as_large_tables():
            in_tasks = ComparedInTasks(
                limited, frame_of(spark, of_run), is_mirror=False, has_unlisted=True, segment_count=len(of_run)
            )
            try:
                found = in_tasks._differences.toArrow().to_pylist()
                assert in_tasks.counts() == here.counts()
                assert in_tasks.lost_count() == here.lost_count()
                assert in_tasks.unlisted(5) == here.unlisted(5) == [("a-1", "cannot be listed")]
                assert not in_tasks.is_another_archive()
            finally:
                in_tasks.forget()
        assert sorted(map(_values, found)) == sorted(map(_values, here._differences))
        assert min(here.counts().values()) > 10
        statuses = {row["index_status"] for row in found}
        assert {"indexed", "orphan", "gone", "pending"} <= statuses


def _values(row: Row) -> str:
    return str(sorted(row.items()))
