"""Test the data source over built archives: overlaps, gaps, compaction, transactions across segments, damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyspark.sql.datasource as ds
import pytest
from pyspark.sql import SparkSession

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.model.states import IsolationLevel
from coldlog.reader import OffsetReader
from coldlog.records.source.datasource import register_source
from coldlog.records.source.options import read_options
from coldlog.records.source.stream_positions import Position, read_position
from coldlog.records.source.streaming import latest_position, plan_micro_batch
from coldlog.runtime.spark.spark_versions import SparkSeries
from coldlog.tables.damage_reports import clear_damage_reports, read_damage_reports
from coldlog.tables.delta.warehouse import Warehouse
from contents.record_rows import moment, read
from worlds.written_topics import COMMITTED_OFFSETS, START_MS, Written, copy_written, damage_segment


@pytest.fixture(scope="module")
def copied(written_uri: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Written]:
    """An archive that was intact when it was indexed; then one log was damaged and another cut."""
    archive, warehouse, written = copy_written(written_uri, tmp_path_factory.mktemp("written"))
    damage_segment(written["hurt"][1])
    log = written["short"][2].log
    log.write_bytes(log.read_bytes()[:-10])
    return archive, warehouse, written


@pytest.fixture(scope="module")
def archive(copied: tuple[Path, Path, Written]) -> Path:
    return copied[0]


@pytest.fixture(scope="module")
def written(copied: tuple[Path, Path, Written]) -> Written:
    return copied[2]


@pytest.fixture(scope="module")
def indexed(spark: SparkSession, copied: tuple[Path, Path, Written]) -> Warehouse:
    return Warehouse(spark=spark, uri=str(copied[1]))


@pytest.mark.pushdown
def test_every_offset_of_overlapping_uploads_is_read_once_from_the_served_log(
    indexed: Warehouse, archive: Path
) -> None:
    found = read(indexed, archive, subscribe="overlap")
    assert found.offsets() == list(range(120))
    said = [value[:1] for value in found.rows["value"].to_pylist()]
    assert said == [b"v"] * 50 + [b"n"] * 70
    middle = read(
        indexed, archive, ds.GreaterThanOrEqual(("offset",), 42), ds.LessThan(("offset",), 53), subscribe="overlap"
    )
    assert middle.offsets() == list(range(42, 53))


@pytest.mark.pushdown
def test_gap_is_data_loss_only_if_its_offsets_are_asked_for(indexed: Warehouse, archive: Path) -> None:
    with pytest.raises(UsageError, match="gap-0 are missing: 50 to 99 are in no served segment"):
        read(indexed, archive, subscribe="gap")
    around = [*range(50), *range(100, 150)]
    assert read(indexed, archive, subscribe="gap", failOnDataLoss=False).offsets() == around
    assert read(indexed, archive, ds.LessThan(("offset",), 50), subscribe="gap").offsets() == around[:50]
    assert read(indexed, archive, subscribe="gap", startingOffsets='{"gap":{"0":100}}').offsets() == around[50:]
    with pytest.raises(UsageError, match="50 to 54 are in no served segment"):
        read(indexed, archive, subscribe="gap", endingOffsets='{"gap":{"0":55}}')
    with pytest.raises(UsageError, match="starting offset 400 of gap-0 is after the ending offset 150"):
        read(indexed, archive, subscribe="gap", startingOffsets='{"gap":{"0":400}}')


@pytest.mark.pushdown
def test_lost_end_of_a_log_is_data_loss_only_if_it_is_asked_for(indexed: Warehouse, archive: Path) -> None:
    with pytest.raises(UsageError, match="bad-end-0 are missing: 100 and later ones are in no served segment"):
        read(indexed, archive, subscribe="bad-end")
    with pytest.raises(UsageError, match="torn-0 are missing: .*; 145 and later ones are in no served segment"):
        read(indexed, archive, subscribe="torn")
    sound = [*range(100)]
    assert read(indexed, archive, subscribe="bad-end", failOnDataLoss=False).offsets() == sound
    assert read(indexed, archive, ds.LessThan(("offset",), 100), subscribe="bad-end").offsets() == sound
    assert read(indexed, archive, subscribe="bad-end", endingOffsets='{"bad-end":{"0":100}}').offsets() == sound


def test_stream_does_not_pass_over_lost_offsets_in_silence(
    indexed: Warehouse, archive: Path, series: SparkSeries, tmp_path: Path
) -> None:
    """It waits before them; when later ones are archived, or a run that ends with the archive has read all, they are
    reported."""
    places = {"warehouse.uri": indexed.uri, "archive.uri": str(archive)}
    waiting = read_options({**places, "subscribe": "bad-end"}, is_stream=True)
    assert read_position(latest_position(waiting, {"bad-end": {"0": 100}})).offsets == {("bad-end", 0): 100}
    continued = read_options({**places, "subscribe": "gap"}, is_stream=True)
    begun: Position = {"gap": {"0": 50}}
    with pytest.raises(UsageError, match="gap-0 are missing: 50 to 99 are in no served segment"):
        plan_micro_batch(continued, begun, latest_position(continued, begun))
    if not series.limits_streams:
        return
    register_source(indexed.spark, places)
    stream = indexed.spark.readStream.format("coldlog").option("subscribe", "bad-end")
    for is_strict in (False, True):
        reading = stream.options(startingOffsets="earliest", failOnDataLoss=is_strict).load()
        writing = reading.writeStream.format("noop").option("checkpointLocation", str(tmp_path / f"{is_strict}"))
        query = writing.trigger(availableNow=True).start()
        if is_strict:
            with pytest.raises(Exception, match="bad-end-0 are missing: 100 and later ones are in no served segment"):
                query.awaitTermination()
        else:
            query.awaitTermination()
        assert sum(each["numInputRows"] for each in query.recentProgress) == 100


def test_offsets_that_a_damaged_log_has_lost_are_data_loss(indexed: Warehouse, archive: Path) -> None:
    with pytest.raises(UsageError, match="torn-0 are missing: .*60 to 69 are in no served segment"):
        read(indexed, archive, subscribe="torn")
    sound = [*range(5, 60), *range(70, 80), *range(85, 145)]
    for task_bytes in (1, 1 << 20):
        tolerant = read(indexed, archive, subscribe="torn", failOnDataLoss=False, maxPartitionBytes=task_bytes)
        assert tolerant.offsets() == sound
    around = {"startingOffsets": '{"torn":{"0":5}}', "endingOffsets": '{"torn":{"0":60}}'}
    assert read(indexed, archive, subscribe="torn", **around).offsets() == [*range(5, 60)]


def test_records_are_not_read_in_silence_if_deleted_ones_may_be_among_them(indexed: Warehouse, archive: Path) -> None:
    message = "start-unknown-0 may have been deleted: .* the log starts at offset 0 or later"
    for where in ({}, {"startingOffsets": '{"start-unknown":{"0":60}}'}):
        with pytest.raises(UsageError, match=message):
            read(indexed, archive, subscribe="start-unknown", **where)
    assert read(indexed, archive, subscribe="start-unknown", failOnDataLoss=False).offsets() == [*range(150)]


@pytest.mark.parametrize("topic", ["log-and-snapshot", "log-and-txn-index"])
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_segment_that_lost_its_log_and_what_shows_its_transactions_is_lost_as_a_whole(
    indexed: Warehouse, archive: Path, topic: str, level: str
) -> None:
    """No record of it is read, and lookups say that it was passed over."""
    options = {"subscribe": topic, "kafka_isolation_level": level}
    with pytest.raises(UsageError, match=f"{topic}-0 are missing: 50 to 98 are in no served segment"):
        read(indexed, archive, **options)
    assert read(indexed, archive, **options, failOnDataLoss=False).offsets() == [*range(50), *range(99, 149)]
    with OffsetReader(indexed.uri, LookupOptions(isolation_level=IsolationLevel(level))) as reader:
        asked = [(topic, 0, START_MS + offset) for offset in (49, 60, 120)]
        found = reader.list_offsets(asked)
    columns = ("offset", "is_exact", "passed_over_from_offset", "passed_over_to_offset")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (49, True, None, None), (99, False, 50, 98), (120, False, 50, 98),
    ]  # fmt: skip


@pytest.mark.pushdown
def test_offsets_removed_by_compaction_are_not_data_loss(indexed: Warehouse, archive: Path) -> None:
    found = read(indexed, archive, subscribe="holes")
    assert found.offsets() == [4, 7, 12, 40]
    assert found.rows["timestampType"].to_pylist() == [0, 0, 0, 1]
    assert found.rows["timestamp"].to_pylist() == [moment(START_MS)] * 4
    late = read(indexed, archive, ds.GreaterThan(("timestamp",), moment(START_MS)), subscribe="holes")
    assert late.offsets() == []


def test_names_of_headers_and_times_before_1970_are_as_for_a_consumer(indexed: Warehouse, archive: Path) -> None:
    rows = read(indexed, archive, subscribe="names", includeHeaders=True).rows.to_pylist()
    assert rows[0]["headers"] == [{"key": "\ufffd\ufffd-a", "value": None}, {"key": "ключ", "value": b""}]
    assert (rows[0]["key"], rows[0]["value"], rows[1]["key"], rows[1]["value"]) == (b"", None, None, b"")
    assert rows[1]["headers"] is None
    assert [row["timestamp"] for row in rows] == [moment(-1), moment(-5_000_000_000_000)]


def test_aborted_records_are_skipped_wherever_their_marker_is(indexed: Warehouse, archive: Path) -> None:
    committed = {"subscribe": "transactions", "kafka_isolation_level": "read_committed"}
    assert read(indexed, archive, **committed).offsets() == COMMITTED_OFFSETS
    for start in range(17):
        # Tasks of one batch each, wherever the range begins.
        at = {"startingOffsets": f'{{"transactions":{{"0":{start}}}}}', "maxPartitionBytes": 1}
        assert read(indexed, archive, **committed, **at).offsets() == [
            each for each in COMMITTED_OFFSETS if each >= start
        ]
    everything = read(indexed, archive, subscribe="transactions").offsets()
    assert everything == [each for each in range(18) if each not in (9, 11, 14, 15)]


def test_records_of_a_transaction_whose_end_is_lost_do_not_count_as_committed(
    indexed: Warehouse, archive: Path
) -> None:
    committed = {"subscribe": "undecided", "kafka_isolation_level": "read_committed"}
    assert read(indexed, archive, **committed, endingOffsets='{"undecided":{"0":5}}').offsets() == [*range(5)]
    message = "5 to 12 may belong to a transaction that was aborted in offsets which are in no served segment"
    with pytest.raises(UsageError, match=f"undecided-0 are missing: {message}"):
        read(indexed, archive, **committed, endingOffsets='{"undecided":{"0":13}}')
    with pytest.raises(UsageError, match=f"{message}; 13 to 18 are in no served segment"):
        read(indexed, archive, **committed)
    for task_bytes in (1, 1 << 20):
        tolerant = read(indexed, archive, **committed, failOnDataLoss=False, maxPartitionBytes=task_bytes)
        assert tolerant.offsets() == [*range(5), 19]
    everything = read(indexed, archive, subscribe="undecided", endingOffsets='{"undecided":{"0":13}}')
    assert everything.offsets() == [*range(13)]


@pytest.mark.pushdown
def test_damage_is_reported_with_segment_and_position_only_if_it_is_read(
    indexed: Warehouse, archive: Path, written: Written
) -> None:
    hurt = written["hurt"][1]
    with pytest.raises(ArchiveError, match=f"segment {hurt.segment_id} of hurt-0: batch does not match") as refused:
        read(indexed, archive, subscribe="hurt")
    assert refused.value.reason is Reason.CRC_MISMATCH
    assert refused.value.object_name.endswith(hurt.log.name)
    assert refused.value.position > 0
    assert len(read(indexed, archive, ds.LessThan(("offset",), 50), subscribe="hurt").offsets()) == 50
    with pytest.raises(ArchiveError, match=f"segment {written['short'][2].segment_id} of short-0: .*shorter") as cut:
        read(indexed, archive, subscribe="short")
    assert cut.value.reason is Reason.LOG_TRUNCATED


@pytest.mark.pushdown
def test_reading_that_finds_damage_reports_its_segment(
    indexed: Warehouse, archive: Path, written: Written, tmp_path: Path
) -> None:
    uri = str(shutil.copytree(indexed.uri, tmp_path / "warehouse"))
    clear_damage_reports(uri, read_damage_reports(uri))
    found = []
    for is_reported in (False, True):
        for topic in ("hurt", "short"):
            with pytest.raises(ArchiveError):
                read(uri, archive, subscribe=topic, **{"warehouse.report_damage": is_reported})
        found.append({(row["topic"], row["segment_id"], row["reason"]) for row in read_damage_reports(uri)})
    hurt, short = written["hurt"][1].segment_id, written["short"][2].segment_id
    assert found == [set(), {("hurt", hurt, "crc_mismatch"), ("short", short, "log_truncated")}]


def test_spark_task_that_finds_damage_reports_it(indexed: Warehouse, archive: Path, written: Written) -> None:
    clear_damage_reports(indexed.uri, read_damage_reports(indexed.uri))
    register_source(indexed.spark, {"warehouse.uri": indexed.uri, "archive.uri": str(archive)})
    records = indexed.spark.read.format("coldlog").option("subscribe", "hurt").load()
    with pytest.raises(Exception, match=r"of hurt-0: batch does not match its checksum in .*\.log at byte \d+"):
        records.collect()
    assert written["hurt"][1].segment_id in {row["segment_id"] for row in read_damage_reports(indexed.uri)}
