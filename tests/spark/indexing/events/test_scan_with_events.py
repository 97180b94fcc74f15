"""Test scans of archives that agree or disagree with their announcements in the metadata topic."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.metadata_topic import (
    DELETED,
    DELETING,
    FINISHED,
    became,
    finished,
    partition_deleted,
    partition_of,
    started,
    values_of,
    write_topic,
)
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.formats.kafka.remote_log.remote_log_events import Event
from coldlog.indexing.events.read_events import read_events
from coldlog.indexing.scan.scan import scan_segments
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.model.states import RemotePartitionDeleteState
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import list_table_files
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.expectation_suites import load_suites
from coldlog.upkeep.validate import validate_tables
from contents.table_contents import BUILD_NUMBERS, rows_in, table_rows
from worlds.golden_warehouse import log_segments_source, run_pipeline

Facts = tuple[str, str, bool, int | None]
"""State, index status, whether objects were listed, first offset served."""
LATER = "announced later"
TOPICS = (
    "as announced", "orphan", "missing", "partial", "unfinished", "never begun", "deleted but listed", "being deleted",
    "other size", "not announced", "only updated", "partition deleted", LATER,
)  # fmt: skip
NAMES = {topic: topic.replace(" ", ".") for topic in TOPICS}


def _segment(start: int, *, epoch: int = 0) -> Segment:
    """Four batches of two records; the timestamp is 1,000 ms plus the offset."""
    batches = tuple(
        Batch(
            base_offset=base,
            records=tuple(Record(timestamp_ms=1_000 + base + at, value=b"v" * 20) for at in (0, 1)),
            leader_epoch=epoch,
        )
        for base in range(start, start + 8, 2)
    )
    return Segment(batches=batches, index_interval_bytes=0)


def _remove(written: WrittenSegment, pattern: str = "*") -> None:
    for path in written.stem.parent.glob(written.stem.name + pattern):
        path.unlink()


def _facts(warehouse: Warehouse) -> dict[tuple[str, int], Facts]:
    topics = {name: topic for topic, name in NAMES.items()}
    return {
        (topics[row["topic"]], row["start_offset"]): (
            row["state"], row["index_status"], row["is_listed"], row["served_from_offset"],
        )
        for row in rows_in(warehouse, SEGMENTS)
    }  # fmt: skip


def _ask(warehouse: Warehouse, *asked: tuple[str, int]) -> list[object]:
    requests = requests_from_rows([(NAMES.get(topic, topic), 0, time_ms) for topic, time_ms in asked])
    answers = find_offsets_for_timestamps(warehouse, requests)
    return list(answers.column("offset").to_pylist())


@pytest.mark.timeout(1200)
def test_listing_and_events_are_combined_and_every_disagreement_is_found(spark: SparkSession, tmp_path: Path) -> None:
    archive, topic, location = tmp_path / "archive", tmp_path / "topic", tmp_path / "warehouse"
    partitions = {
        TopicPartition(topic=name, partition=0): [_segment(0), _segment(8), _segment(16)][: 3 if topic == LATER else 2]
        for topic, name in NAMES.items()
    }
    by_name = {name: topic for topic, name in NAMES.items()}
    written = {
        (by_name[each.topic_partition.topic], each.segment.start_offset): each
        for each in write_archive(archive, partitions)
    }
    _remove(written["missing", 8])
    _remove(written["partial", 8], "*.snapshot")
    _remove(written["as announced", 8], "*.index")
    _remove(written["never begun", 8])
    events: list[Event] = []
    for name in TOPICS:
        if name not in ("not announced", "only updated", LATER):
            events += finished(written[name, 0])
    for name in ("as announced", "missing", "partial", "being deleted", "deleted but listed", "partition deleted"):
        events += finished(written[name, 8])
    for name in ("unfinished", "never begun"):
        events.append(started(written[name, 8]))
    events += became(written["deleted but listed", 0], DELETING, DELETED)
    events += [started(written["other size", 8], size_bytes=77), *became(written["other size", 8], FINISHED)]
    events += became(written["only updated", 8], FINISHED)
    events += partition_deleted(partition_of(written["partition deleted", 0]), *RemotePartitionDeleteState)

    write_topic(topic, {0: values_of(events)})
    warehouse = run_pipeline(spark, archive, location, metadata=topic)
    finished_state, deleted_state = "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_FINISHED"
    served = {(name, 0): (finished_state, "indexed", True, 0) for name in TOPICS}
    expected: dict[tuple[str, int], Facts] = served | {
        ("as announced", 8): (finished_state, "indexed", True, 8),
        ("orphan", 8): (finished_state, "orphan", True, None),
        ("missing", 8): (finished_state, "gone", False, None),
        ("partial", 8): (finished_state, "incomplete", True, None),
        ("unfinished", 8): ("COPY_SEGMENT_STARTED", "incomplete", True, None),
        ("never begun", 8): ("COPY_SEGMENT_STARTED", "incomplete", False, None),
        ("deleted but listed", 0): (deleted_state, "gone", True, None),
        ("deleted but listed", 8): (finished_state, "indexed", True, 8),
        ("being deleted", 8): (finished_state, "indexed", True, 8),
        ("other size", 8): (finished_state, "quarantined", True, None),
        ("not announced", 8): (finished_state, "indexed", True, 8),
        ("only updated", 8): (finished_state, "indexed", True, 8),
        ("partition deleted", 0): (deleted_state, "gone", True, None),
        ("partition deleted", 8): (deleted_state, "gone", True, None),
        (LATER, 8): (finished_state, "indexed", True, 8),
        (LATER, 16): (finished_state, "indexed", True, 16),
    }
    assert _facts(warehouse) == expected
    (checked,) = validate_tables(warehouse, [suite for suite in load_suites() if suite.table == SEGMENTS.name]).tables
    unmet = {verdict.expectation.id for verdict in checked.verdicts if not verdict.is_met}
    assert "status_agrees_with_objects" not in unmet, "a log is served without the index that was deleted"
    rows = {(by_name[row["topic"]], row["start_offset"]): row for row in rows_in(warehouse, SEGMENTS)}
    assert rows["as announced", 8]["missing_kinds"] == ["offset_index"]
    assert len(rows["as announced", 8]["damaged_files"]) == 1
    differ = {key for key, row in rows.items() if row["announced_size_bytes"] not in (None, row["size_bytes"])}
    assert differ == {("other size", 8), ("missing", 8), ("never begun", 8)}
    assert rows["missing", 8]["size_bytes"] is None
    assert _largest_timestamps(warehouse) == {
        **dict.fromkeys(TOPICS, (1015, 1015)),
        **dict.fromkeys(("orphan", "unfinished", "never begun"), (1007, 1007)),
        **dict.fromkeys(("missing", "partial", "other size"), (1007, 1015)),
        "partition deleted": (None, None),
        LATER: (1023, 1023),
    }, "what was copied counts, also if it is lost or damaged"
    from_listing = {key for key, row in rows.items() if row["state_source"] == "listing"}
    assert from_listing == {
        ("orphan", 8),
        (LATER, 16),
        *((name, at) for name in ("not announced", "only updated", LATER) for at in (0, 8)),
    }
    asked = [("orphan", 1009), ("unfinished", 1009), ("deleted but listed", 1001), ("being deleted", 1001)]
    asked += [(LATER, 1001), (LATER, 1017)]
    assert _ask(warehouse, *asked) == [None, None, 8, 1, 1, 17]

    # The next run: the orphan is announced, the copy finished, a segment is being deleted, what was lost is back. Of
    # what was indexed from the listing one segment is deleted, and the copy of another was never finished.
    events += [*finished(written["orphan", 8]), *became(written["unfinished", 8], FINISHED)]
    events += became(written["being deleted", 0], DELETING)
    events += [*finished(written[LATER, 0], written[LATER, 8]), *became(written[LATER, 0], DELETING, DELETED)]
    events.append(started(written[LATER, 16]))
    write_topic(topic, {0: values_of(events)})
    again = write_archive(
        tmp_path / "again", {TopicPartition(topic="missing", partition=0): [_segment(0), _segment(8)]}
    )
    for path in again[1].stem.parent.glob(again[1].stem.name + "*"):
        shutil.copy(path, written["missing", 8].stem.parent)
    files = _files_of(warehouse, OFFSET_INDEX)
    run_pipeline(spark, archive, location, metadata=topic)
    expected |= {
        ("orphan", 8): (finished_state, "indexed", True, 8),
        ("unfinished", 8): (finished_state, "indexed", True, 8),
        ("missing", 8): (finished_state, "indexed", True, 8),
        ("being deleted", 0): ("DELETE_SEGMENT_STARTED", "gone", True, None),
        (LATER, 0): (deleted_state, "gone", True, None),
        (LATER, 16): ("COPY_SEGMENT_STARTED", "incomplete", True, None),
    }
    assert _facts(warehouse) == expected
    assert _ask(warehouse, *asked) == [9, 9, 8, 8, 8, None]
    assert files < _files_of(warehouse, OFFSET_INDEX), "what was indexed is not indexed again"
    built = {(by_name[row["topic"]], row["start_offset"]): row for row in rows_in(warehouse, SEGMENTS)}
    news = {key for key, row in built.items() if row["build_number"] != rows[key]["build_number"]}
    assert news == {("orphan", 8), ("unfinished", 8), ("missing", 8)}

    (partition,) = (row for row in rows_in(warehouse, PARTITION_METADATA) if row["topic"] == NAMES[LATER])
    assert (partition["log_start_offset"], partition["log_start_source"]) == (8, "deleted_segments")

    # The copy that was never finished is finished after all: its rows count again, and nothing else changes.
    before = _rows_of_others(warehouse, LATER)
    write_topic(topic, {0: values_of([*events, *became(written[LATER, 16], FINISHED)])})
    run_pipeline(spark, archive, location, metadata=topic)
    assert _rows_of_others(warehouse, LATER) == before
    assert _ask(warehouse, *asked) == [9, 9, 8, 8, 8, 17]
    rows_of_later = [row for row in rows_in(warehouse, SEGMENTS) if row["topic"] == NAMES[LATER]]
    assert {row["build_number"] for row in rows_of_later} == {1}, "nothing is indexed again"
    fresh = run_pipeline(spark, archive, tmp_path / "fresh", metadata=topic)
    told = table_rows(fresh, PARTITION_METADATA), table_rows(warehouse, PARTITION_METADATA)
    assert told[0] == told[1], "told at once or in turn, it is the same"
    assert _served_rows(fresh) == _served_rows(warehouse)


def _largest_timestamps(warehouse: Warehouse) -> dict[str, tuple[int | None, int | None]]:
    """The largest timestamp served, and that of all finished segments."""
    topics = {name: topic for topic, name in NAMES.items()}
    rows = rows_in(warehouse, PARTITION_METADATA)
    return {topics[row["topic"]]: (row["max_timestamp_ms"], row["finished_max_timestamp_ms"]) for row in rows}


def _rows_of_others(warehouse: Warehouse, topic: str) -> list[str]:
    """Rows of the other topics in both tables that lookups begin with."""
    rows = (*table_rows(warehouse, SEGMENTS), *table_rows(warehouse, PARTITION_METADATA))
    return [row for row in rows if f"'topic': '{NAMES[topic]}'" not in row]


def _served_rows(warehouse: Warehouse) -> list[str]:
    names = [name for name in SEGMENTS.column_names if name not in BUILD_NUMBERS]
    served = (row for row in rows_in(warehouse, SEGMENTS) if row["served_from_offset"] is not None)
    return sorted(repr([row[name] for name in names]) for row in served)


def test_archive_may_be_empty_if_all_segments_were_announced_as_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """The first run has no metadata topic."""
    archive, topic = tmp_path / "archive", tmp_path / "topic"
    written = write_archive(archive, {TopicPartition(topic="t", partition=0): [_segment(0), _segment(8)]})
    warehouse = run_pipeline(spark, archive, tmp_path / "warehouse")
    assert _ask(warehouse, ("t", 1009)) == [9]
    for each in written:
        _remove(each)
    events = [*finished(*written), *became(written[0], DELETING, DELETED)]
    write_topic(topic, {0: values_of(events)})
    read_events(warehouse, log_segments_source(topic))
    with pytest.raises(UsageError, match=r"lists no segment, but the warehouse .* has 1"):
        scan_segments(warehouse, open_archive(str(archive), "local_tiered_storage"))
    events += became(written[1], DELETING)
    write_topic(topic, {0: values_of(events)})
    run_pipeline(spark, archive, tmp_path / "warehouse", metadata=topic)
    assert _ask(warehouse, ("t", 1001)) == [None]


def _files_of(warehouse: Warehouse, table: TableDefinition) -> set[str]:
    return set(list_table_files(warehouse.data_location(table), table, []).paths)
