"""Test that a warehouse of an older release, whose tables lack the newest columns, goes on working."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from worlds.written_topics import START_MS

_LATER = {
    SEGMENTS.name: ("damaged_files", "holes", "served_holes", "served_open_from_offset"),
    PARTITION_METADATA.name: ("unserved_ranges", "finished_max_timestamp_ms"),
}


def _write_as_before(spark: SparkSession, warehouse: str, place: Path) -> str:
    """Copy the warehouse; its tables do not have the later columns."""
    shutil.copytree(warehouse, place)
    for name, columns in _LATER.items():
        rows = spark.read.format("delta").load(f"{warehouse}/{name}").drop(*columns)
        shutil.rmtree(place / name)
        rows.coalesce(1).write.format("delta").save(str(place / name))
    return str(place)


def test_lookups_answer_and_say_what_is_not_known_until_the_next_run(
    spark: SparkSession, written_uri: str, tmp_path: Path
) -> None:
    asked = [("gap", 0, START_MS), ("overlap", 0, START_MS), ("bad", 0, 2**50)]

    def answers(uri: str) -> list[dict[str, object]]:
        with OffsetReader(uri) as reader:
            return reader.list_offsets(asked)

    def without(rows: list[dict[str, object]], *names: str) -> list[dict[str, object]]:
        return [{name: value for name, value in row.items() if name not in names} for row in rows]

    newest = answers(written_uri)
    older = _write_as_before(spark, written_uri, tmp_path / "older")
    before = answers(older)
    later = ("is_exact", "passed_over_from_offset", "passed_over_to_offset", "route")
    assert without(before, *later) == without(newest, *later)
    assert [row["is_exact"] for row in before] == [None] * 3
    both, local = "remote_then_local", "local_only"
    assert [row["route"] for row in before] == [both, both, local], "by the largest timestamp served"
    assert [row["route"] for row in newest] == [both, both, both], "the segment that is damaged may have it"

    warehouse = Warehouse(spark=spark, uri=older)
    warehouse.create_missing()
    assert answers(older) == before, "the columns are there, and the rows are the old ones"
    materialize_metadata(warehouse)
    assert answers(older) == newest

    # The versions before are still read, and what they do not have is not known.
    past = Warehouse(spark=spark, uri=older, as_of="v0")
    assert [tuple(row) for row in past.read(SEGMENTS).select("holes").distinct().collect()] == [(None,)]
    attach_warehouse(spark, older, as_of="v0")
    values = ", ".join(f"({at}, '{topic}', {time_ms}L)" for at, (topic, _, time_ms) in enumerate(asked))
    rows = spark.sql(
        f"SELECT route, is_exact FROM VALUES {values} AS q(number, topic, timestamp_ms), "
        "LATERAL list_offsets(q.topic, 0, q.timestamp_ms) ORDER BY number"
    )
    assert [tuple(row) for row in rows.collect()] == [(row["route"], row["is_exact"]) for row in before]
