"""Test that parts of an archive that was indexed without its logs can be indexed deeper later."""

from __future__ import annotations

import io
import json
import shutil
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from coldlog.archive.open_archive import open_archive
from coldlog.errors import RetriableError, UsageError
from coldlog.indexing import pipeline
from coldlog.indexing.builds.build import deepen_indexes
from coldlog.indexing.deepened_part import DeepenedPart
from coldlog.indexing.pipeline import deepen
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.scan.log_starts import merge_log_start_offsets
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import BUILD_NUMBERS, rows_in, table_rows
from damage.cut_runs import copies_behind, copies_behind_each_write, copies_in_order
from planning import planned_for_small_tables
from read_quotas import shared_quota, taken_bytes
from stores.faulty_layout import FaultyLayout
from worlds.golden_warehouse import build_settings, golden_queries


@pytest.fixture
def warehouse(golden_sidecar: Warehouse, tmp_path: Path) -> Warehouse:
    """A copy of the sample's tables at sidecar depth."""
    return Warehouse(spark=golden_sidecar.spark, uri=str(shutil.copytree(golden_sidecar.uri, tmp_path / "warehouse")))


def _depths(warehouse: Warehouse, column: str) -> dict[tuple[str, str], int]:
    """How many segments of each topic are indexed at each depth."""
    rows = warehouse.read(SEGMENTS).where(f"{column} IS NOT NULL").groupBy("topic", column).count().collect()
    return {(row[0], row[1]): row[2] for row in rows}


def test_parts_are_deepened_until_the_tables_are_those_of_a_deep_build(
    warehouse: Warehouse, golden_with_events: Warehouse, golden_archive: Path
) -> None:
    opener = partial(open_archive, str(golden_archive), "local_tiered_storage")
    options = LookupOptions(batches=BatchReader(open_layout=opener, limits=build_settings().options.limits))
    asked = requests_from_rows([(q["topic"], q["partition"], q["ts"]) for q in golden_queries()])

    def answers() -> pa.Table:
        return find_offsets_for_timestamps(warehouse, asked, options)

    def deepened(depth: IndexDepth, *topics: str) -> int:
        part = DeepenedPart(depth=depth, topics=topics)
        return deepen_indexes(warehouse, opener(), build_settings(), part).indexed_count

    true = find_offsets_for_timestamps(golden_with_events, asked)
    with planned_for_small_tables(warehouse.spark):
        before = _depths(warehouse, "served_index_depth")
        assert deepened(IndexDepth.BATCH, "no-such-topic") == 0
        assert deepened(IndexDepth.BATCH, "orders*", "pay*") > 20
        assert _depths(warehouse, "served_index_depth") == before, "nothing is published yet"
        assert answers().equals(true)
        materialize_metadata(warehouse)
        now = _depths(warehouse, "served_index_depth")
        assert {depth for (topic, depth) in now if topic.startswith(("orders", "pay"))} == {"batch"}
        others = [{k: n for k, n in each.items() if not k[0].startswith(("orders", "pay"))} for each in (now, before)]
        assert others[0] == others[1]
        assert answers().equals(true)
        assert deepened(IndexDepth.RECORD, "*") > 250
        assert deepened(IndexDepth.RECORD, "*") == 0, "what is deep enough is not read again"
        materialize_metadata(warehouse)
    assert answers().equals(true)
    assert len(rows_in(warehouse, INTERVAL_INDEX)) == 0
    for table in (*INDEX_TABLES, PARTITION_METADATA, SEGMENTS):
        rows, expected = (table_rows(each, table, without=BUILD_NUMBERS) for each in (warehouse, golden_with_events))
        assert rows == expected, table.name


def _job(warehouse: Warehouse, archive: Path, *changed: str, **arguments: str | None) -> Job:
    places = [f"warehouse.uri={warehouse.uri}", f"archive.uri={archive}"]
    settings = load_settings("local", [*places, *shared_quota(1 << 30), *changed])
    given = {"topics": None, "since": None, "until": None, "depth": "record"} | arguments
    console = Console(progress=io.StringIO(), results=io.StringIO())
    return Job(spark=warehouse.spark, settings=settings, arguments=Namespace(**given), console=console)


def _with_moved_log_start(warehouse: Warehouse) -> tuple[Row, int]:
    """Move the log start of orders-0 into its first served segment; return the segment and the offset."""
    served = [row for row in rows_in(warehouse, SEGMENTS) if (row["topic"], row["partition"]) == ("orders", 0)]
    first = min((row for row in served if row["served_to_offset"]), key=lambda row: int(row["served_from_offset"]))
    start = (first["served_from_offset"] + first["served_to_offset"]) // 2
    merge_log_start_offsets(warehouse, {("orders", 0): start})
    return first, start


def test_a_segment_into_which_the_log_start_has_moved_is_counted_again(
    warehouse: Warehouse, golden_archive: Path
) -> None:
    """A scan has found the log start, and the run ended before its build."""
    first, start = _with_moved_log_start(warehouse)
    with planned_for_small_tables(warehouse.spark):
        deepen(_job(warehouse, golden_archive, topics="payments"))
    (row,) = [row for row in rows_in(warehouse, SEGMENTS) if row["segment_id"] == first["segment_id"]]
    assert (row["served_from_offset"], row["counted_from_offset"]) == (start, start)
    assert {row["served_index_depth"] for row in rows_in(warehouse, SEGMENTS) if row["topic"] == "payments"} >= {
        "record"
    }


def test_a_store_that_does_not_answer_is_the_failure_also_if_nothing_can_be_published_then(
    warehouse: Warehouse, golden_archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler tries such a run again, and not one that the caller must change."""
    first, start = _with_moved_log_start(warehouse)
    layout = FaultyLayout(
        layout=open_archive(str(golden_archive), "local_tiered_storage"),
        unanswered_segment_ids=frozenset({first["segment_id"]}),
    )
    monkeypatch.setattr(pipeline, "paced_opener", lambda _: lambda: layout)
    with planned_for_small_tables(warehouse.spark), pytest.raises(RetriableError, match="does not answer") as caught:
        deepen(_job(warehouse, golden_archive, topics="no-such-topic"))
    assert "nothing is published: 1 segments must be counted again" in caught.value.text_with_notes
    (row,) = [row for row in rows_in(warehouse, SEGMENTS) if row["segment_id"] == first["segment_id"]]
    assert row["served_from_offset"] < start


@dataclass(frozen=True, slots=True, kw_only=True)
class Deepened:
    """A warehouse after the job, with copies behind each write of the job. `segments` are those of the topic before,
    and the job was to read those from the time `border` on."""

    warehouse: Warehouse
    archive: Path
    copies: Path
    segments: list[dict[str, Any]]
    border: int
    first_answers: list[Row]

    def run(self, warehouse: Warehouse) -> None:
        """Run the job; it needs at least two commits of index rows."""
        half = sum(row["size_bytes"] for row in self.segments if row["max_timestamp_ms"] >= self.border) // 2
        times = {"since": str(self.border), "depth": "batch"}
        with planned_for_small_tables(warehouse.spark):
            deepen(_job(warehouse, self.archive, f"build.max_bytes_per_commit={half + 1}", topics="orders", **times))


def _answers(location: Path, archive: Path) -> list[Row]:
    """The answers to all queries about the topic, by a reader without Spark."""
    opener = partial(open_archive, str(archive), "local_tiered_storage")
    options = LookupOptions(batches=BatchReader(open_layout=opener, limits=build_settings().options.limits))
    asked = [(q["topic"], q["partition"], q["ts"]) for q in golden_queries() if q["topic"] == "orders"]
    with OffsetReader(location, options) as reader:
        return reader.list_offsets(asked)


@pytest.fixture(scope="module")
def deepened(golden_sidecar: Warehouse, golden_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Deepened:
    folder = tmp_path_factory.mktemp("deepened")
    location = Path(shutil.copytree(golden_sidecar.uri, folder / "warehouse"))
    warehouse = Warehouse(spark=golden_sidecar.spark, uri=str(location))
    segments = [
        row for row in rows_in(warehouse, SEGMENTS) if (row["topic"], row["index_depth"]) == ("orders", "sidecar")
    ]
    made = Deepened(
        warehouse=warehouse,
        archive=golden_archive,
        copies=folder / "copies",
        segments=segments,
        border=sorted(row["max_timestamp_ms"] for row in segments)[len(segments) // 2],
        first_answers=_answers(location, golden_archive),
    )
    with pytest.MonkeyPatch.context() as patch, copies_behind_each_write(location, made.copies, patch):
        made.run(warehouse)
    return made


def test_answers_are_the_same_wherever_the_job_is_killed(deepened: Deepened) -> None:
    """Behind each of its commits, which is right before the next one."""
    copies = copies_in_order(deepened.copies)
    assert len(copies_behind(deepened.copies, "add_files", OFFSET_INDEX)) >= 2
    assert len(copies_behind(deepened.copies, "merge", SEGMENTS)) >= 3, "at least two builds, and what they serve"
    for location in (*copies, Path(deepened.warehouse.uri)):
        assert _answers(location, deepened.archive) == deepened.first_answers, location.name


def test_job_that_was_killed_before_its_last_build_counts_ends_the_same_when_repeated(deepened: Deepened) -> None:
    """It has published an earlier one, and not materialized it."""
    cut = Warehouse(
        spark=deepened.warehouse.spark, uri=str(copies_behind(deepened.copies, "add_files", OFFSET_INDEX)[-1])
    )
    deepened.run(cut)
    for table in (*INDEX_TABLES, PARTITION_METADATA, SEGMENTS):
        rows, expected = (table_rows(each, table, without=BUILD_NUMBERS) for each in (cut, deepened.warehouse))
        assert rows == expected, table.name


def test_the_job_reads_only_segments_that_may_have_a_record_of_the_times(deepened: Deepened) -> None:
    warehouse, segments, border = deepened.warehouse, deepened.segments, deepened.border
    served = [
        row for row in rows_in(warehouse, SEGMENTS) if (row["topic"], row["served_index_depth"]) == ("orders", "batch")
    ]
    deep = {row["segment_id"] for row in served} & {row["segment_id"] for row in segments}
    assert deep == {row["segment_id"] for row in segments if row["max_timestamp_ms"] >= border}
    read_bytes = sum(row["size_bytes"] for row in segments if row["segment_id"] in deep)
    assert taken_bytes(warehouse.uri) >= read_bytes > 0, "the reads are within the read quota"
    run = [row for row in rows_in(warehouse, JOB_RUNS) if row["job"] == "deepen_indexes"]
    assert [json.loads(row["summary"])["deepen"]["indexed_count"] for row in run] == [len(deep)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "which topics"),
        ({"topics": " , "}, "which topics"),
        ({"topics": "orders", "since": "200", "until": "100"}, "--from 200 is after --to 100"),
        ({"topics": "orders", "since": "soon"}, "soon"),
    ],
)
def test_unusable_options_are_refused(
    golden_sidecar: Warehouse, golden_archive: Path, arguments: dict[str, str], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        deepen(_job(golden_sidecar, golden_archive, **arguments))
