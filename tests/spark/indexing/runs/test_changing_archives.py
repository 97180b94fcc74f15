"""Test pipeline runs on an archive that grows, shrinks, breaks and is repaired.

The archive is indexed after each change. The tests compare what the tables had after each run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, WrittenSegment, write_archive
from builders.message_sets import build_message_set
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.formats.kafka.producer_snapshot import ProducerSnapshot, ProducerStateEntry, write_producer_snapshot
from coldlog.indexing.scan.scan import scan_segments
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from worlds.golden_warehouse import run_pipeline

GROWN = TopicPartition(topic="a.b-1_c", partition=3)


def _segment(start: int) -> Segment:
    """Four batches of two records; the timestamp is 1,000 ms plus the offset."""
    batches = []
    for base in range(start, start + 8, 2):
        records = Record(timestamp_ms=1_000 + base, value=b"v" * 30), Record(timestamp_ms=1_001 + base)
        batches.append(Batch(base_offset=base, records=records))
    return Segment(batches=tuple(batches), index_interval_bytes=0)


Damage = Callable[[WrittenSegment], None]


def _cut(at: Callable[[int], int]) -> Damage:
    def damage(written: WrittenSegment) -> None:
        os.truncate(written.log, at(written.log.stat().st_size))

    return damage


def _flip(suffix: str, at: int) -> Damage:
    def damage(written: WrittenSegment) -> None:
        path = written.stem.with_name(written.stem.name + suffix)
        content = bytearray(path.read_bytes())
        content[at] ^= 0xFF
        path.write_bytes(content)

    return damage


def _replace(suffix: str, content: bytes) -> Damage:
    def damage(written: WrittenSegment) -> None:
        Path(str(written.stem) + suffix).write_bytes(content)

    return damage


def _remove(suffix: str) -> Damage:
    return lambda written: Path(str(written.stem) + suffix).unlink()


LATER_SNAPSHOT = write_producer_snapshot(
    ProducerSnapshot(
        entries=(
            ProducerStateEntry(
                producer_id=1,
                producer_epoch=0,
                last_sequence=0,
                last_offset=99,
                offset_delta=0,
                timestamp_ms=0,
                coordinator_epoch=0,
                current_txn_first_offset=-1,
            ),
        )
    )
)
DAMAGES: dict[str, tuple[Damage, str]] = {
    "flipped-record": (_flip(".log", 70), "crc_mismatch"),
    "flipped-crc": (_flip(".log", 18), "crc_mismatch"),
    "flipped-length": (_flip(".log", 8), "batch_length_invalid"),
    "cut-in-a-batch": (_cut(lambda size: size - 3), "log_truncated"),
    "cut-between-batches": (_cut(lambda size: size // 2), "offset_index_invalid"),
    "empty-log": (_replace(".log", b""), "log_empty"),
    "rubbish-log": (_replace(".log", b"\xff" * 200), "batch_length_invalid"),
    "old-magic": (
        _replace(".log", build_message_set(1, 0, [Record(timestamp_ms=1, value=b"x" * 80)])),
        "unsupported_magic",
    ),
    "rubbish-index": (_replace(".index", b"\x00\x00\x00"), "offset_index_invalid"),
    "foreign-index": (_replace(".index", b"\x00\x00\x00\x01\x00\x00\x00\x07"), "offset_index_invalid"),
    "rubbish-timeindex": (_replace(".timeindex", b"\x00" * 13), "time_index_invalid"),
    "promising-txnindex": (_replace(".txnindex", bytes(2) + bytes(7) + b"\x01" + bytes(24)), "txn_index_invalid"),
    "flipped-snapshot": (_flip(".snapshot", 3), "producer_snapshot_invalid"),
    "rubbish-checkpoint": (_replace(".leader_epoch_checkpoint", b"hello"), "leader_epoch_checkpoint_invalid"),
    "flipped-epoch": (_flip(".log", 14), "header_invalid"),
    "later-producers": (_replace(".snapshot", LATER_SNAPSHOT), "log_truncated"),
    "no-log": (_remove(".log"), ""),
    "no-index": (_remove(".index"), ""),
    "no-snapshot": (_remove(".snapshot"), ""),
}


SALVAGED = {
    "flipped-record": 10, "flipped-crc": 10, "flipped-length": 10, "flipped-epoch": 10, "cut-in-a-batch": 9,
    "cut-between-batches": 9, "later-producers": 9, "promising-txnindex": 9, "flipped-snapshot": 9,
    "rubbish-checkpoint": 9,
}  # fmt: skip
"""Damages that leave something sound, and the offset that then answers 1009."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Contents of the tables and answers after a run. `versions` has every table except job_runs."""

    versions: dict[str, int]
    status: dict[tuple[str, int, int], str]
    damages: dict[str, tuple[list[str], list[dict[str, object]] | None]]
    quarantine: dict[str, dict[str, object]]
    index_files: set[str]
    build_numbers: list[int]
    gap_counts: set[int]
    answers: dict[tuple[str, int], int | None]


def _see(warehouse: Warehouse) -> Seen:
    """Read the tables without Spark."""
    tables = {t.name: DeltaTable(f"{warehouse.uri}/{t.name}") for t in ALL_TABLES if t is not JOB_RUNS}
    rows = {each.name: tables[each.name].to_pyarrow_table().to_pylist() for each in (SEGMENTS, QUARANTINE)}
    index, known = (tables[each.name].to_pyarrow_table() for each in (OFFSET_INDEX, PARTITION_METADATA))
    asked = [(topic, time) for topic in (GROWN.topic, *DAMAGES) for time in (1003, 1009, 1017, 1019)]
    requests = requests_from_rows([(topic, GROWN.partition, time) for topic, time in asked])
    answers = find_offsets_for_timestamps(warehouse, requests).column("offset").to_pylist()
    return Seen(
        versions={name: table.version() for name, table in tables.items()},
        status={(row["topic"], row["partition"], row["start_offset"]): row["index_status"] for row in rows["segments"]},
        damages={
            row["topic"]: (row["damaged_files"], row["holes"]) for row in rows["segments"] if row["damaged_files"]
        },
        quarantine={row["topic"]: row for row in rows["quarantine"]},
        index_files=set(tables[OFFSET_INDEX.name].file_uris()),
        build_numbers=index.column("build_number").to_pylist(),
        gap_counts=set(known.filter(pc.field("topic") == GROWN.topic).column("gap_count").to_pylist()),
        answers=dict(zip(asked, answers, strict=True)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The warehouse of an archive that changed before each run, and its contents after each run."""

    warehouse: Warehouse
    first: Seen
    repeated: Seen
    grown: Seen
    shrunk: Seen
    returned: Seen


@pytest.fixture(scope="module")
def course(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Course:
    """One topic grows, loses a segment and gets it back. Every other topic has a damaged segment, which is repaired."""
    folder = tmp_path_factory.mktemp("course")
    archive, whole, parked = folder / "archive", folder / "whole", folder / "parked"
    damaged = [TopicPartition(topic=name, partition=GROWN.partition) for name in DAMAGES]
    places = {place: [_segment(0), _segment(8), _segment(16)] for place in damaged}
    middles = {each.topic_partition: each for each in write_archive(archive, places) if each.segment.start_offset == 8}
    shutil.copytree(archive / ARCHIVE_FOLDER, whole)
    for place in damaged:
        DAMAGES[place.topic][0](middles[place])
    _, middle = write_archive(archive, {GROWN: [_segment(0), _segment(8)]})

    def run() -> Seen:
        return _see(run_pipeline(spark, archive, folder / "it's a ware house"))

    warehouse = Warehouse(spark=spark, uri=str(folder / "it's a ware house"))
    first, repeated = run(), run()
    write_archive(archive, {GROWN: [_segment(0), _segment(8), _segment(16)]})
    quarantine = warehouse.identifier(QUARANTINE)
    spark.sql(f"UPDATE {quarantine} SET expected = 'last offset 9 at byte 152' WHERE topic = 'foreign-index'")
    grown = run()
    parked.mkdir()
    moved = [path for path in middle.stem.parent.iterdir() if path.name.startswith(middle.stem.name)]
    for path in moved:
        shutil.move(path, parked / path.name)
    for place in damaged:
        shutil.rmtree(archive / ARCHIVE_FOLDER / place.folder)
        shutil.copytree(whole / place.folder, archive / ARCHIVE_FOLDER / place.folder, copy_function=shutil.copy)
    shrunk = run()
    for path in moved:
        shutil.move(parked / path.name, path)
    return Course(
        warehouse=warehouse,
        first=first,
        repeated=repeated,
        grown=grown,
        shrunk=shrunk,
        returned=run(),
    )


def test_runs_over_an_archive_that_grows_shrinks_and_returns_read_only_changes(course: Course) -> None:
    name, place = GROWN.topic, (GROWN.topic, GROWN.partition, 8)
    assert course.first.answers[name, 1009] == 9
    assert course.repeated.versions == course.first.versions, "a run that finds nothing new writes nothing"
    assert course.repeated.index_files < course.grown.index_files, "what was there is not written again"
    assert course.grown.build_numbers.count(2) == 4
    assert course.grown.answers[name, 1017] == 17
    assert course.shrunk.status[place] == "gone"
    assert course.shrunk.answers[name, 1009] == 16
    assert course.shrunk.gap_counts == {1}
    assert course.returned.answers[name, 1009] == 9
    index_versions = [each.versions[OFFSET_INDEX.name] for each in (course.shrunk, course.returned)]
    assert index_versions[0] == index_versions[1], "what came back unchanged is not read again"


def test_each_damaged_segment_is_salvaged_or_quarantined_alone(course: Course) -> None:
    seen, partition = course.first, GROWN.partition
    reasons = {topic: row["reason"] for topic, row in seen.quarantine.items()}
    assert reasons == {name: reason for name, (_, reason) in DAMAGES.items() if reason and name not in SALVAGED}
    assert seen.damages.keys() == SALVAGED.keys()
    assert {name: seen.answers[name, 1009] for name in DAMAGES} == {name: SALVAGED.get(name, 16) for name in DAMAGES}
    with_holes = {name for name, (_, holes) in seen.damages.items() if holes}
    assert SALVAGED.keys() - with_holes == {"promising-txnindex", "flipped-snapshot", "rubbish-checkpoint"}
    for name, (_, reason) in DAMAGES.items():
        status = "indexed" if name in SALVAGED else "quarantined" if reason else "incomplete"
        assert seen.status[name, partition, 8] == status
        assert seen.status[name, partition, 0] == seen.status[name, partition, 16] == "indexed"
        assert (seen.answers[name, 1003], seen.answers[name, 1019]) == (3, 19)
    facts = seen.quarantine
    assert str(facts["rubbish-log"]["object_name"]).endswith(".log")
    assert facts["rubbish-log"]["position"] == 0
    assert str(facts["foreign-index"]["object_name"]).endswith(".index")
    (text,), holes = seen.damages["flipped-crc"]
    assert "expected crc" in text
    assert [(hole["from_offset"], hole["to_offset"]) for hole in holes or ()] == [(8, 9)]


def test_damaged_segment_is_tried_again_when_another_rule_refused_it_and_indexed_when_repaired(course: Course) -> None:
    assert course.repeated.versions == course.first.versions, "what is known to be bad is not tried again"
    tried = {topic for topic, row in course.grown.quarantine.items() if row["attempt_count"] != 1}
    assert tried == {"foreign-index"}, "an older rule refused it"
    repaired = {place: status for place, status in course.shrunk.status.items() if place[0] != GROWN.topic}
    assert set(repaired.values()) == {"indexed"}
    assert (course.shrunk.quarantine, course.shrunk.damages) == ({}, {})
    assert {course.shrunk.answers[name, 1009] for name in DAMAGES} == {9}


def test_archive_that_lists_no_segment_any_more_is_refused(course: Course, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE_FOLDER / GROWN.folder).mkdir(parents=True)
    before = course.warehouse.newest_version(SEGMENTS)
    with pytest.raises(UsageError, match="lists no segment, but the warehouse"):
        scan_segments(course.warehouse, open_archive(str(tmp_path), "local_tiered_storage"))
    assert course.warehouse.newest_version(SEGMENTS) == before
