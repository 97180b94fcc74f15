"""Test the whole pipeline on mirrors of log directories: the broker's answers, for every set of copied files.

All mirrors are one archive, which is indexed before and after some of its partitions change.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.log_directory_writer import write_partition
from builders.mirror_writer import SIDE_FILES, golden_topics, write_mirror
from builders.segment_builder import Batch, Record, Segment, build_segment
from builders.side_files import build_leader_epoch_checkpoint
from coldlog.archive.layouts.layout import LayoutOptions, SegmentFileKind
from coldlog.archive.open_archive import open_archive
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.expectation_suites import load_suites
from coldlog.upkeep.validate import validate_tables
from contents.table_contents import rows_in
from worlds.golden_warehouse import golden_queries, is_true_answer, run_pipeline, write_log_start_offsets
from worlds.kafka_sample import true_segments

INDEXES = frozenset({SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX})
LOGS_ALONE = frozenset({"late.events", "payments.live", "orders"})
WHOLE, UPLOADED, CHANGING = "whole.", "", "changing."
"""How topics of the mirrors begin."""
STAYS, GROWS, REPLACED, SHRINKS = (f"{CHANGING}{how}" for how in ("stays", "grows", "replaced", "shrinks"))
COMPACTED = f"{CHANGING}compacted"
TABLES = {table.name: table for table in ALL_TABLES}
DECODED = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, TXN_SEGMENTS)
SAME_FACTS = (
    "topic", "partition", "is_current", "log_start_offset", "leader_epoch_lineage", "earliest_offset",
    "latest_tiered_offset", "max_timestamp_ms", "max_timestamp_offset", "record_count", "gap_count", "stable_offset",
    "open_transaction_count",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A warehouse of mirrors, and the prefix of the topics that a test reads."""

    warehouse: Warehouse
    prefix: str

    def rows(self, table: TableDefinition, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
        """Rows of topics with the prefix, sorted; the prefix is removed."""
        rows = [row for row in rows_in(self.warehouse, table) if _prefix_of(row["topic"]) == self.prefix]
        stripped = [{**row, "topic": row["topic"].removeprefix(self.prefix)} for row in rows]
        return sorted((tuple(row[name] for name in columns) for row in stripped), key=repr)


def _prefix_of(topic: str) -> str:
    return next((prefix for prefix in (WHOLE, CHANGING) if topic.startswith(prefix)), UPLOADED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The build number of each listed segment, and answers, before and after the mirror changed."""

    builds_before: dict[tuple[str, int, int], int]
    builds_after: dict[tuple[str, int, int], int]
    answers_before: dict[str, list[object]]
    answers_after: dict[str, list[object]]


@pytest.fixture(scope="module")
def indexed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Warehouse, Changes]:
    """All mirrors as one, indexed before and after some of its partitions changed."""
    folder = tmp_path_factory.mktemp("mirrors")
    mirror, topics = folder / "mirror", golden_topics()
    write_mirror(mirror / "2" / "prod", topics=topics, kinds=SIDE_FILES, prefix=WHOLE)
    for bit, names, kinds in (("0", topics - LOGS_ALONE, INDEXES), ("1", LOGS_ALONE, frozenset[SegmentFileKind]())):
        _upload(mirror / bit / "prod", names, kinds)
    folders = _write_changing(mirror / "3" / "prod")
    log_starts = write_log_start_offsets(folder / "log_starts.csv", (UPLOADED, WHOLE))
    archive = open_archive(str(mirror), "log_directories", LayoutOptions(above_partitions="*/prod"))

    def run() -> tuple[Warehouse, dict[tuple[str, int, int], int], dict[str, list[object]]]:
        warehouse = run_pipeline(spark, archive, folder / "warehouse", log_start_offsets=log_starts)
        rows = warehouse.read(SEGMENTS).where("is_listed").select("topic", "partition", "start_offset", "build_number")
        with OffsetReader(warehouse.uri) as reader:
            asked = {topic: [(topic, 0, time_ms) for time_ms in (5, 15, 29, 1_015)] for topic in folders}
            answers = {topic: reader.list_offsets(requests) for topic, requests in asked.items()}
        offsets = {topic: [answer["offset"] for answer in found] for topic, found in answers.items()}
        return warehouse, {tuple(row[:3]): row[3] for row in rows.collect()}, offsets

    _, builds_before, answers_before = run()
    _change(folders)
    warehouse, builds_after, answers_after = run()
    return warehouse, Changes(
        builds_before=builds_before,
        builds_after=builds_after,
        answers_before=answers_before,
        answers_after=answers_after,
    )


def _upload(above: Path, topics: Collection[str], kinds: Collection[SegmentFileKind]) -> None:
    """Write a mirror as Pinterest's uploader does with one bit of entropy."""
    write_mirror(above, topics=topics, kinds=kinds, with_topic_ids=False)
    for partition in above.iterdir():
        last = max(partition.glob("*.log")).stem
        (partition / "offset.wm").write_text(last)
        (partition / "_metadata").write_text('{"metadata": {}}')


def _write_changing(above: Path) -> dict[str, Path]:
    """Write partitions of three segments; the last log of two of them is not complete yet, another one is compacted."""
    folders: dict[str, Path] = {}
    for topic in (STAYS, GROWS, REPLACED, SHRINKS):
        segments = [Segment(batches=_batches(first), index_interval_bytes=0) for first in (0, 10, 20)]
        folders[topic] = write_partition(above, topic, 0, segments)
        (folders[topic] / "partition.metadata").unlink()
        if topic in (STAYS, GROWS):
            last = folders[topic] / f"{20:020d}.log"
            os.truncate(last, last.stat().st_size // 2)
    of_new_leader = (replace(_batches(5)[0], base_offset=7, records=_batches(7)[0].records[:3], leader_epoch=1),)
    segments = [
        Segment(batches=(*_batches(0)[:1], *of_new_leader)),
        *(Segment(batches=tuple(replace(each, leader_epoch=1) for each in _batches(first))) for first in (10, 20)),
    ]
    folders[COMPACTED] = write_partition(above, COMPACTED, 0, segments)
    # The new leader's first records, 5 and 6, were removed.
    (folders[COMPACTED] / "leader-epoch-checkpoint").write_bytes(build_leader_epoch_checkpoint([(0, 0), (1, 5)]))
    return folders


def _change(folders: Mapping[str, Path]) -> None:
    """The last log grows, one log is replaced by another of the same size, one is deleted."""
    (folders[GROWS] / f"{20:020d}.log").write_bytes(build_segment(_batches(20)))
    replaced = folders[REPLACED] / f"{10:020d}.log"
    size_bytes, modified_ns = replaced.stat().st_size, replaced.stat().st_mtime_ns
    replaced.write_bytes(build_segment(_batches(10, later_ms=1_000)))
    os.utime(replaced, ns=(modified_ns + 10**9, modified_ns + 10**9))
    assert replaced.stat().st_size == size_bytes
    for path in folders[SHRINKS].glob(f"{0:020d}.*"):
        path.unlink()


@pytest.fixture(params=["whole", "uploaded"])
def mirrored(request: pytest.FixtureRequest, indexed: tuple[Warehouse, Changes]) -> Mirrored:
    """A mirror of every file of the log directories, and one of the files that an uploader copies."""
    return Mirrored(warehouse=indexed[0], prefix={"whole": WHOLE, "uploaded": UPLOADED}[request.param])


@pytest.mark.parametrize("broker_compatible", [False, True])
def test_every_answer_of_the_broker_is_given(mirrored: Mirrored, broker_compatible: bool) -> None:
    queries = golden_queries()
    with OffsetReader(mirrored.warehouse.uri, LookupOptions(broker_compatible=broker_compatible)) as reader:
        answers = reader.list_offsets([(f"{mirrored.prefix}{q['topic']}", q["partition"], q["ts"]) for q in queries])
    wrong = [
        (query, answer)
        for query, answer in zip(queries, answers, strict=True)
        if not is_true_answer(query, answer, broker_compatible=broker_compatible)
    ]
    assert wrong == []
    assert sum(answer["offset"] is not None for answer in answers) > 5_000


def test_partition_metadata_equals_that_of_the_tiered_archive(mirrored: Mirrored, golden: Warehouse) -> None:
    """Also the lineage, the stable offset and open transactions of topics of which only logs were copied."""
    tiered = Mirrored(warehouse=golden, prefix="")
    assert mirrored.rows(PARTITION_METADATA, SAME_FACTS) == tiered.rows(PARTITION_METADATA, SAME_FACTS)


def test_aborted_transactions_equal_those_in_the_brokers_indexes(mirrored: Mirrored) -> None:
    """In the uploader's archive they are found in the logs; some began in an earlier segment."""
    true = [
        (s["start_offset"], (s["topic"], s["partition"], a["pid"], a["first"], a["last"]))
        for s in true_segments("COPY_SEGMENT_FINISHED")
        for a in s["aborted"]
    ]
    assert sum(entry[3] < start for start, entry in true) == 17
    columns = ("topic", "partition", "producer_id", "first_offset", "last_offset")
    assert mirrored.rows(TXN_INDEX, columns) == sorted((entry for _, entry in true), key=repr)


def test_nothing_is_quarantined_or_unrecognized(indexed: tuple[Warehouse, Changes]) -> None:
    warehouse, _ = indexed
    assert len(rows_in(warehouse, QUARANTINE)) == 0
    assert len(rows_in(warehouse, UNRECOGNIZED_OBJECTS)) == 0


def test_every_suite_holds_on_a_mirror(indexed: tuple[Warehouse, Changes]) -> None:
    warehouse, _ = indexed
    suites = [suite for suite in load_suites() if rows_in(warehouse, TABLES[suite.table])]
    assert {suite.table for suite in suites} >= {"segments", "partition_metadata", *(each.name for each in DECODED)}
    validated = validate_tables(warehouse, suites, is_full=True)
    missed = [each for table in validated.tables for each in table.verdicts if not each.is_met]
    found = [(each.expectation.id, each.unexpected_count) for each in missed]
    assert found == [("offsets_touch", 1)], "a compacted log has gaps between its batches"
    assert sum(table.row_count for table in validated.tables) > 2_000


def test_changes_of_a_mirror_are_indexed_and_nothing_else(indexed: tuple[Warehouse, Changes]) -> None:
    before, after = indexed[1].builds_before, indexed[1].builds_after
    assert before.keys() - after.keys() == {(SHRINKS, 0, 0)}
    built = {place for place, number in after.items() if number != before[place]}
    assert built == {(GROWS, 0, 20), (REPLACED, 0, 10)}
    assert len(before) > 500


def test_answers_from_a_mirror_follow_its_changes(indexed: tuple[Warehouse, Changes]) -> None:
    _, changes = indexed
    assert changes.answers_before == {
        STAYS: [5, 15, None, None],
        GROWS: [5, 15, None, None],
        REPLACED: [5, 15, 29, None],
        SHRINKS: [5, 15, 29, None],
        COMPACTED: [7, 15, 29, None],
    }
    assert changes.answers_after == {
        STAYS: [5, 15, None, None],
        GROWS: [5, 15, 29, None],
        REPLACED: [5, 10, 10, 15],
        SHRINKS: [10, 15, 29, None],
        COMPACTED: [7, 15, 29, None],
    }


def _batches(first: int, *, later_ms: int = 0) -> tuple[Batch, ...]:
    """Ten records, each at the time of its offset."""
    return tuple(
        Batch(
            base_offset=base,
            records=tuple(Record(timestamp_ms=later_ms + base + at, value=b"v") for at in range(5)),
        )
        for base in (first, first + 5)
    )
