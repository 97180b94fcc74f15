"""Test reading the metadata topic: at once, in parts, from a table, in killed runs, damaged, or of another cluster."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from builders.metadata_events import DELETE, SEGMENT, UPDATE
from builders.metadata_topic import values_of, write_topic
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.errors import UsageError
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.indexing.events.event_sources import TableSource
from coldlog.indexing.events.read_events import ReadSummary, read_events
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import table_rows
from planning import as_large_tables
from worlds.golden_warehouse import log_segments_source
from worlds.kafka_sample import KAFKA_SAMPLE

RLMM = KAFKA_SAMPLE / "rlmm"
PARTITIONS = (0, 1, 2)


def _log(directory: Path, partition: int) -> Path:
    return directory / f"{METADATA_TOPIC}-{partition}" / f"{0:020d}.log"


@pytest.fixture(scope="module")
def empty_tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only the tables that are needed to read the topic."""
    folder = tmp_path_factory.mktemp("empty-tables")
    warehouse = Warehouse(spark=spark, uri=str(folder))
    for table in (SEGMENT_EVENTS, QUARANTINE):
        spark.sql(table.create_statement(warehouse.identifier(table), warehouse.location(table)))
    return folder


@pytest.fixture
def events_only(spark: SparkSession, tmp_path: Path, empty_tables: Path) -> Warehouse:
    """A warehouse of these tables."""
    location = shutil.copytree(empty_tables, tmp_path / "warehouse", copy_function=shutil.copyfile)
    return Warehouse(spark=spark, uri=str(location))


def _read(warehouse: Warehouse, directory: Path) -> ReadSummary:
    return read_events(warehouse, log_segments_source(directory))


def _version(warehouse: Warehouse) -> int:
    return DeltaTable(warehouse.location(SEGMENT_EVENTS)).version()


def _rows(warehouse: Warehouse, table: TableDefinition) -> list[dict[str, Any]]:
    """The rows of a table, read without Spark."""
    rows: list[dict[str, Any]] = DeltaTable(warehouse.location(table)).to_pyarrow_table().to_pylist()
    return rows


def _borders(log: Path) -> list[int]:
    """Where batches end in the file."""
    headers = read_batch_headers(
        memoryview(log.read_bytes()), position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 26
    ).headers
    return [0, *(int(end) for end in headers.position + headers.size_bytes)]


def _copy_shares(directory: Path, shares: tuple[float, float, float]) -> Path:
    """Copy the topic as it was when each partition had this share of its batches."""
    for partition, share in zip(PARTITIONS, shares, strict=True):
        log = _log(RLMM, partition)
        borders = _borders(log)
        copy = _log(directory, partition)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(log.read_bytes()[: borders[int(share * (len(borders) - 1))]])
    return directory


def test_topic_read_in_pieces_equals_the_topic_read_at_once(
    events_only: Warehouse, golden_with_events: Warehouse, tmp_path: Path
) -> None:
    """Few records are read in the driver, many by tasks; they are the same."""
    counts = []
    pieces = ((0.3, 0.0, 0.01), (0.3, 0.5, 0.02), (1.0, 0.5, 0.9), (1.0, 1.0, 1.0))
    for number, shares in enumerate(pieces):
        topic = _copy_shares(tmp_path / "topic", shares)
        with as_large_tables() if number % 2 else nullcontext():
            summary = _read(events_only, topic)
        counts.append(summary.new_event_count)
        assert (summary.unreadable_count, summary.damaged_partition_count, summary.missing_offset_count) == (0, 0, 0)
    assert min(counts) > 0
    assert sum(counts) == 731
    assert table_rows(events_only, SEGMENT_EVENTS) == table_rows(golden_with_events, SEGMENT_EVENTS)

    version = _version(events_only)
    assert _read(events_only, RLMM).new_event_count == 0
    assert _version(events_only) == version, "a reading that finds nothing new writes nothing"


class _Killed(BaseException):
    """End a run as a kill does; no handler catches it."""


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_read_that_is_killed_at_its_append_repeats_and_loses_nothing(
    events_only: Warehouse,
    golden_with_events: Warehouse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_behind: bool,
) -> None:
    append = Warehouse.append

    def killed(self: Warehouse, table: TableDefinition, rows: object, **named: object) -> None:
        if is_behind:
            append(self, table, rows, **named)  # type: ignore[arg-type]  # handed on as it comes
        raise _Killed

    for directory in (_copy_shares(tmp_path / "topic", (0.5, 0.2, 0.7)), RLMM):
        with monkeypatch.context() as patch:
            patch.setattr(Warehouse, "append", killed)
            with pytest.raises(_Killed):
                _read(events_only, directory)
        again = _read(events_only, directory)
        assert (again.new_event_count == 0) is is_behind
    assert table_rows(events_only, SEGMENT_EVENTS) == table_rows(golden_with_events, SEGMENT_EVENTS)


def test_delta_table_gives_the_same_events_as_the_log_segments(
    events_only: Warehouse, golden_with_events: Warehouse, tmp_path: Path
) -> None:
    """A table as a stream from Kafka writes it: wider types, more columns, one record written twice."""
    location = str(tmp_path / "kafka")
    records = golden_with_events.read(SEGMENT_EVENTS).select(
        F.lit(METADATA_TOPIC).alias("topic"),
        F.col("metadata_partition").alias("partition"),
        F.col("metadata_offset").alias("offset"),
        F.timestamp_millis("record_timestamp_ms").alias("timestamp"),
        "value",
    )
    early = records.where("offset < 100 AND partition <> 1")
    early.unionByName(early.limit(5)).write.format("delta").save(location)
    first = read_events(events_only, TableSource(uri=location))
    assert 100 < first.new_event_count < 731
    records.where("offset >= 90 OR partition = 1").write.format("delta").mode("append").save(location)
    second = read_events(events_only, TableSource(uri=location))
    assert first.new_event_count + second.new_event_count == 731
    assert (first.missing_offset_count, second.missing_offset_count) == (0, 0)
    assert table_rows(events_only, SEGMENT_EVENTS) == table_rows(golden_with_events, SEGMENT_EVENTS)


def test_a_table_without_records_is_refused(events_only: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a Delta table"):
        read_events(events_only, TableSource(uri=str(tmp_path / "nothing")))
    write_deltalake(tmp_path / "other", pa.table({"partition": [0], "key": [0]}))
    with pytest.raises(UsageError, match="has no column offset, value"):
        read_events(events_only, TableSource(uri=str(tmp_path / "other")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no directory __remote_log_metadata-<partition>"):
        _read(events_only, tmp_path / "empty")


def test_topic_of_another_cluster_is_refused(events_only: Warehouse, tmp_path: Path) -> None:
    own = values_of([SEGMENT, UPDATE, DELETE])
    _read(events_only, write_topic(tmp_path / "own", {0: own, 4: own[:2]}))
    rows = table_rows(events_only, SEGMENT_EVENTS)
    other = {
        "other value at the last offset": {0: own, 4: [own[0], own[0], own[0]]},
        "no value there": {0: [own[0], own[1], None], 4: own},
    }
    for name, values in other.items():
        with pytest.raises(UsageError, match="holds another event at offset"):
            _read(events_only, write_topic(tmp_path / name, values))
    assert table_rows(events_only, SEGMENT_EVENTS) == rows
    assert _read(events_only, write_topic(tmp_path / "own", {0: own, 4: own})).new_event_count == 1


def test_values_that_cannot_be_read_are_rows_with_a_problem(events_only: Warehouse, tmp_path: Path) -> None:
    good = values_of([SEGMENT, UPDATE])
    bad = [None, b"", b"\x02\x00\x00", b"\x01\x09\x00", good[0][:-1], good[1] + b"\x00", b"\xff" * 40]  # type: ignore[index, operator]
    topic = write_topic(tmp_path / "topic", {0: [good[0], *bad, good[1]], 2: [None]})
    summary = _read(events_only, topic)
    assert (summary.new_event_count, summary.unreadable_count, summary.damaged_partition_count) == (10, 8, 0)
    rows = sorted(
        _rows(events_only, SEGMENT_EVENTS), key=lambda row: (row["metadata_partition"], row["metadata_offset"])
    )
    assert [row["event_kind"] for row in rows] == ["segment", *["unreadable"] * 7, "segment_update", "unreadable"]
    assert [row["value"] for row in rows] == [good[0], *bad, good[1], None]
    assert all(bool(row["problem"]) == (row["event_kind"] == "unreadable") for row in rows)
    assert rows[3]["problem"] != rows[5]["problem"]
    # The last record of partition 2 has no value: it is known again all the same.
    assert _read(events_only, topic).new_event_count == 0


def _flipped(log: Path, at: int) -> None:
    content = bytearray(log.read_bytes())
    content[at] ^= 0xFF
    log.write_bytes(content)


def test_damage_stops_only_its_partition_and_is_quarantined_until_repaired(
    events_only: Warehouse, golden_with_events: Warehouse, tmp_path: Path
) -> None:
    topic = _copy_shares(tmp_path / "topic", (1.0, 1.0, 1.0))
    border = _borders(_log(topic, 1))[7]
    _flipped(_log(topic, 1), border + 70)
    summary = _read(events_only, topic)
    assert summary.damaged_partition_count == 1
    known = sum(row["metadata_partition"] != 1 for row in _rows(golden_with_events, SEGMENT_EVENTS))
    in_damaged = sum(row["metadata_partition"] == 1 for row in _rows(events_only, SEGMENT_EVENTS))
    assert summary.new_event_count == known + in_damaged
    assert 7 <= in_damaged < 731 - known
    (row,) = _rows(events_only, QUARANTINE)
    assert (row["topic"], row["partition"], row["reason"]) == (METADATA_TOPIC, 1, "crc_mismatch")
    assert (row["object_name"], row["position"]) == (f"{METADATA_TOPIC}-1/{0:020d}.log", border)
    assert (row["start_offset"], row["attempt_count"]) == (0, 1)

    _flipped(_log(topic, 0), _borders(_log(topic, 0))[-2] + 70)
    again = _read(events_only, topic)
    assert (again.new_event_count, again.damaged_partition_count) == (0, 2)
    rows = {each["partition"]: each for each in _rows(events_only, QUARANTINE)}
    assert (rows[1]["attempt_count"], rows[1]["first_seen_ms"]) == (2, row["first_seen_ms"])
    assert rows[0]["attempt_count"] == 1

    mended = _read(events_only, _copy_shares(topic, (1.0, 1.0, 1.0)))
    assert (mended.new_event_count, mended.damaged_partition_count) == (731 - known - in_damaged, 0)
    assert _rows(events_only, QUARANTINE) == []
    assert table_rows(events_only, SEGMENT_EVENTS) == table_rows(golden_with_events, SEGMENT_EVENTS)


def test_missing_offsets_are_counted(events_only: Warehouse, tmp_path: Path) -> None:
    values = values_of([SEGMENT, UPDATE]) * 5
    topic = write_topic(tmp_path / "topic", {0: values})
    borders = _borders(_log(topic, 0))
    content = _log(topic, 0).read_bytes()
    _log(topic, 0).write_bytes(content[borders[2] : borders[4]] + content[borders[7] :])
    assert _read(events_only, topic).missing_offset_count == 2 + 3
    assert _read(events_only, topic).missing_offset_count == 0


def test_directories_of_other_topics_are_ignored(events_only: Warehouse, tmp_path: Path) -> None:
    topic = write_topic(tmp_path / "data", {0: values_of([SEGMENT])})
    shutil.copytree(topic / f"{METADATA_TOPIC}-0", topic / "orders-0")
    shutil.copytree(topic / f"{METADATA_TOPIC}-0", topic / f"{METADATA_TOPIC}-0.0123456789-delete")
    (topic / "meta.properties").write_text("broker.id=1\n")
    assert _read(events_only, topic).new_event_count == 1


def _table(location: Path, rows: Sequence[tuple[object, ...]], value_type: pa.DataType) -> TableSource:
    schema = pa.schema(
        [("partition", pa.string()), ("offset", pa.string()), ("value", value_type), ("timestamp", pa.int64())]
    )
    written = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    write_deltalake(location, written, mode="overwrite", schema_mode="overwrite")
    return TableSource(uri=str(location))


def test_invalid_tables_are_refused_before_any_row_is_written(events_only: Warehouse, tmp_path: Path) -> None:
    good, binary = values_of([SEGMENT, UPDATE]), pa.binary()
    refused: tuple[tuple[Sequence[tuple[object, ...]], pa.DataType, str], ...] = (
        ([("0", "0", "text", 5)], pa.string(), "column value of the table .* is string"),
        ([("p-0", "0", good[0], 5)], binary, "whose partition or offset is not an integer"),
        ([("0", None, good[0], 5)], binary, "whose partition or offset is not an integer"),
        ([("0", "0", good[0], 5), ("0", "0", good[1], 5)], binary, "two values for one offset"),
        ([("0", "0", b"dGV4dA==", 5)], binary, "none of the 1 records"),
    )
    for rows, value_type, complaint in refused:
        with pytest.raises(UsageError, match=complaint):
            read_events(events_only, _table(tmp_path / "table", rows, value_type))
    assert table_rows(events_only, SEGMENT_EVENTS) == []
    again = [("0", "0", good[0], 5), ("0", "0", good[0], 5), ("0", "1", good[1], 6)]
    assert read_events(events_only, _table(tmp_path / "table", again, binary)).new_event_count == 2
    assert [row["record_timestamp_ms"] for row in _rows(events_only, SEGMENT_EVENTS)] == [5, 6]


def test_partitions_that_end_before_the_last_offset_read_are_reported_and_a_topic_of_only_such_is_refused(
    events_only: Warehouse, tmp_path: Path
) -> None:
    own = values_of([SEGMENT, UPDATE, DELETE])
    _read(events_only, write_topic(tmp_path / "own", {0: own, 4: own, 7: own[:1]}))
    shorter = _read(events_only, write_topic(tmp_path / "shorter", {0: own[:2], 7: own[:2]}))
    assert shorter.lost_partitions == (0, 4)
    assert shorter.new_event_count == 1
    with pytest.raises(UsageError, match="ends before the last offset read"):
        _read(events_only, write_topic(tmp_path / "other", {0: own[:1], 1: own}))
    assert len(table_rows(events_only, SEGMENT_EVENTS)) == 8
