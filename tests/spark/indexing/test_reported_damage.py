"""Test that damage that a lookup finds in a log is in the tables after the next build."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from coldlog.archive.open_archive import open_archive
from coldlog.errors import ArchiveError, ColdlogError
from coldlog.fetcher import open_fetcher
from coldlog.indexing.builds.build import BuildSettings, BuildSummary, build_indexes
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.lookups.damage.reported_damage import wait_for_reports
from coldlog.model.fetch import FetchFailure
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.tables.damage_reports import add_damage_reports, read_damage_reports
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse
from contents.record_rows import read
from lookup_jobs import read_answers, run_lookup_offsets
from planning import planned_for_small_tables
from worlds.golden_warehouse import build_settings

TOPIC, PARTITION = "orders", "0"
ROTTEN_AT = 100
"""A byte of the first batch."""
AT_SIDECAR_DEPTH = build_settings(IndexDepth.SIDECAR)


@pytest.fixture
def warehouse(golden_sidecar: Warehouse, tmp_path: Path) -> Warehouse:
    """A copy of the sample's tables at sidecar depth."""
    return Warehouse(spark=golden_sidecar.spark, uri=str(shutil.copytree(golden_sidecar.uri, tmp_path / "warehouse")))


@pytest.fixture
def archive(golden_archive: Path, tmp_path: Path) -> Path:
    """A copy of the sample whose logs can be replaced."""
    return Path(shutil.copytree(golden_archive, tmp_path / "archive", copy_function=os.link))


def _damage(archive: Path, segment: Row) -> None:
    (log,) = archive.rglob(f"*{segment['segment_id']}.log")
    content = bytearray(log.read_bytes())
    content[ROTTEN_AT] ^= 1
    log.unlink()
    log.write_bytes(content)


def _segments(warehouse: Warehouse) -> list[Row]:
    """The served segments of the partition, in the order of their offsets."""
    rows = warehouse.read(SEGMENTS).where(f"topic = '{TOPIC}' AND partition = {PARTITION}").toArrow().to_pylist()
    return sorted((row for row in rows if row["served_from_offset"] is not None), key=lambda row: row["start_offset"])


def test_segments_in_which_a_lookup_finds_damage_are_read_by_the_next_build(
    warehouse: Warehouse, archive: Path, tmp_path: Path
) -> None:
    first, second = _segments(warehouse)[:2]
    assert (first["index_depth"], second["index_depth"]) == ("sidecar", "sidecar")
    _damage(archive, first)
    output, places = tmp_path / "answers", [f"warehouse.uri={warehouse.uri}", f"archive.uri={archive}"]
    asked = ["--topic", TOPIC, "--partition", PARTITION, "--timestamp", "0", "--output", str(output)]

    def look_up(*more: str) -> object:
        run_lookup_offsets(warehouse.spark, asked, *places, *more)
        (answer,) = read_answers(output)
        return answer["error"]

    def build(settings: BuildSettings = AT_SIDECAR_DEPTH) -> BuildSummary:
        return build_indexes(warehouse, open_archive(str(archive), "local_tiered_storage"), settings)

    with planned_for_small_tables(warehouse.spark):
        assert look_up("warehouse.report_damage=false") == "CORRUPT_MESSAGE"
        assert read_damage_reports(warehouse.uri) == []
        assert look_up() == "CORRUPT_MESSAGE"
        (report,) = read_damage_reports(warehouse.uri)
        assert (report["segment_id"], report["reason"]) == (first["segment_id"], "crc_mismatch")
        wrong = report | {name: second[name] for name in (*SEGMENTS.key, "build_number")}
        void = report | {"build_number": 0}  # as a build leaves it that was killed before it removed the report
        add_damage_reports(warehouse.uri, [wrong, void])
        assert build().reported_count == 2
        assert read_damage_reports(warehouse.uri) == []
        materialize_metadata(warehouse)
        built = _segments(warehouse)[:2]
        assert [row["index_depth"] for row in built] == ["record", "record"]
        assert [row["holes"] is not None for row in built] == [True, False]
        with OffsetReader(warehouse.uri) as reader:
            found = reader.offset_for_timestamp(TOPIC, int(PARTITION), 0)
        assert found is not None
        assert (found.offset > 0, found.is_exact) == (True, False)
        assert build(replace(AT_SIDECAR_DEPTH, retry_quarantined=True)).damaged_log_count == 1
        assert _segments(warehouse)[0]["holes"] == built[0]["holes"], "its log is read at sidecar depth too"


@pytest.mark.parametrize("depth", [IndexDepth.RECORD, IndexDepth.SIDECAR])
def test_segment_in_which_a_fetch_or_a_reading_finds_damage_is_read_by_the_next_build(
    golden: Warehouse, golden_sidecar: Warehouse, archive: Path, tmp_path: Path, depth: IndexDepth
) -> None:
    """At record depth the log was read completely before it was damaged."""
    before = golden if depth is IndexDepth.RECORD else golden_sidecar
    copy = Warehouse(spark=before.spark, uri=str(shutil.copytree(before.uri, tmp_path / "copy")))
    first, second, third = _segments(copy)[:3]
    for each in (first, second, third):
        _damage(archive, each)
    with open_fetcher([f"warehouse.uri={copy.uri}", f"archive.uri={archive}"]) as fetcher:
        assert isinstance(fetcher.fetch_records(TOPIC, int(PARTITION), first["start_offset"]), FetchFailure)
    place = {PARTITION: second["start_offset"]}
    with pytest.raises(ArchiveError, match=second["segment_id"]):
        read(copy, archive, subscribe=TOPIC, startingOffsets=json.dumps({TOPIC: place}))
    if depth is IndexDepth.SIDECAR:
        # The planning reads the interval with this time. At record depth it knows the offset.
        with pytest.raises(ColdlogError, match=f"CORRUPT_MESSAGE: segment {third['segment_id']}"):
            read(copy, archive, subscribe=TOPIC, startingTimestamp=third["max_timestamp_ms"])
    count = 3 if depth is IndexDepth.SIDECAR else 2
    assert wait_for_reports(60)
    with planned_for_small_tables(copy.spark):
        layout = open_archive(str(archive), "local_tiered_storage")
        assert build_indexes(copy, layout, build_settings(depth)).reported_count == count
        materialize_metadata(copy)
    assert read_damage_reports(copy.uri) == []
    assert [row["holes"] is not None for row in _segments(copy)[:4]] == [True] * count + [False] * (4 - count)
