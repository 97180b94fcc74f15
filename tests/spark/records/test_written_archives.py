"""Test the data source over built archives: overlaps, gaps, compaction, transactions across segments, damage."""

from __future__ import annotations

from pathlib import Path

import pyspark.sql.datasource as ds
import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker
from builders.side_files import build_leader_epoch_checkpoint
from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.records.source.datasource import register_source
from coldlog.tables.delta.warehouse import Warehouse
from golden_warehouse import run_pipeline
from record_rows import moment, read

START_MS = 1_700_000_000_000


def batches(
    first: int, last: int, *, epoch: int = 0, said: bytes = b"v", codec: Codec = Codec.NONE
) -> tuple[Batch, ...]:
    """Return batches of five records; a record's time is START_MS plus its offset."""
    return tuple(
        Batch(
            base_offset=base,
            records=tuple(Record(timestamp_ms=START_MS + base + at, value=said * 40) for at in range(5)),
            leader_epoch=epoch,
            codec=codec,
        )
        for base in range(first, last, 5)
    )


COMMON = batches(0, 50)
OVERLAPPING = [
    Segment(batches=(*COMMON, *batches(50, 100, said=b"d"))),
    Segment(batches=(*COMMON[8:], *batches(50, 120, epoch=1, said=b"n"))),
]
THREE = [Segment(batches=batches(first, first + 50)) for first in (0, 50, 100)]
HOLES = [
    Segment(
        batches=(
            Batch(
                base_offset=3,
                records=tuple(Record(timestamp_ms=START_MS, value=b"c", offset=offset) for offset in (4, 7, 12)),
                last_offset_delta=12,
                codec=Codec.ZSTD,
            ),
            Batch(base_offset=20, last_offset_delta=9, stored_max_timestamp_ms=START_MS),
            Batch(
                base_offset=40, records=(Record(timestamp_ms=START_MS + 9, value=b"e"),), log_append_time_ms=START_MS
            ),
        ),
        stored_start_offset=0,
    )
]
NAMES = [
    Segment(
        batches=(
            Batch(
                base_offset=0,
                records=(
                    Record(timestamp_ms=-1, key=b"", headers=((b"\xff\xfe-a", None), ("ключ".encode(), b""))),
                    Record(timestamp_ms=-5_000_000_000_000, value=b""),
                ),
                codec=Codec.LZ4,
            ),
        )
    )
]


def transactional(first: int, count: int, producer_id: int) -> Batch:
    return Batch(
        base_offset=first,
        records=tuple(Record(timestamp_ms=START_MS, value=b"%d" % producer_id) for _ in range(count)),
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=first,
    )


def marker(kind: object, offset: int, producer_id: int) -> Batch:
    built: Batch = kind(offset=offset, timestamp_ms=START_MS, producer_id=producer_id, producer_epoch=0, leader_epoch=0)  # type: ignore[operator]
    return built


TRANSACTIONS = [
    Segment(batches=(transactional(0, 3, 7), transactional(3, 2, 8), transactional(5, 2, 7))),
    Segment(batches=(transactional(7, 2, 8), marker(commit_marker, 9, 8), transactional(10, 1, 8))),
    Segment(
        batches=(
            marker(abort_marker, 11, 7),
            transactional(12, 2, 7),
            marker(commit_marker, 14, 7),
            marker(abort_marker, 15, 8),
            Batch(base_offset=16, records=(Record(timestamp_ms=START_MS, value=b"plain"),)),
            transactional(17, 1, 9),
        )
    ),
]
UNDECIDED = [
    Segment(batches=(*batches(0, 5), transactional(5, 3, 7), *batches(8, 13))),
    Segment(batches=(marker(abort_marker, 13, 7), *batches(14, 19))),
    Segment(batches=(transactional(19, 1, 7), marker(commit_marker, 20, 7))),
]
COMMITTED = [3, 4, 7, 8, 12, 13, 16]
"""Of producer 7 the second transaction, of 8 the first; 9's is open where the archive ends."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def written(archive: Path) -> dict[str, list[WrittenSegment]]:
    topics = {
        "overlap": OVERLAPPING, "gap": THREE, "hurt": THREE, "short": THREE, "holes": HOLES, "names": NAMES,
        "transactions": TRANSACTIONS, "undecided": UNDECIDED,
    }  # fmt: skip
    found: dict[str, list[WrittenSegment]] = {}
    for each in write_archive(archive, {TopicPartition(topic=name, partition=0): own for name, own in topics.items()}):
        found.setdefault(each.topic_partition.topic, []).append(each)
    successor = found["overlap"][1].stem
    lineage = successor.with_name(successor.name + ".leader_epoch_checkpoint")
    lineage.write_bytes(build_leader_epoch_checkpoint([(0, 0), (1, 50)]))
    for missing in (found["gap"][1].stem, found["undecided"][1].stem):
        for path in missing.parent.glob(f"{missing.name}*"):
            path.unlink()
    return found


@pytest.fixture(scope="module")
def indexed(
    spark: SparkSession,
    archive: Path,
    written: dict[str, list[WrittenSegment]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Warehouse:
    """A warehouse of intact logs; then one log is damaged and another cut."""
    warehouse = run_pipeline(spark, archive, tmp_path_factory.mktemp("indexed") / "warehouse")
    content = bytearray(written["hurt"][1].log.read_bytes())
    content[content.rindex(b"v" * 40)] ^= 1
    written["hurt"][1].log.write_bytes(content)
    log = written["short"][2].log
    log.write_bytes(log.read_bytes()[:-10])
    return warehouse


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
    assert read(indexed, archive, **committed).offsets() == COMMITTED
    for start in range(17):
        # Tasks of one batch each, wherever the range begins.
        at = {"startingOffsets": f'{{"transactions":{{"0":{start}}}}}', "maxPartitionBytes": 1}
        assert read(indexed, archive, **committed, **at).offsets() == [each for each in COMMITTED if each >= start]
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


def test_damage_is_reported_with_segment_and_position_only_if_it_is_read(
    indexed: Warehouse, archive: Path, written: dict[str, list[WrittenSegment]]
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


def test_spark_task_that_finds_damage_reports_it(indexed: Warehouse, archive: Path) -> None:
    register_source(indexed.spark, {"warehouse.uri": indexed.uri, "archive.uri": str(archive)})
    records = indexed.spark.read.format("coldlog").option("subscribe", "hurt").load()
    with pytest.raises(Exception, match=r"of hurt-0: batch does not match its checksum in .*\.log at byte \d+"):
        records.collect()
