"""Test that tables, archive and a walk like Kafka's agree about aborted transactions, and what consumers read."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.open_archive import open_archive
from coldlog.fetcher import RecordFetcher, open_fetcher
from coldlog.formats.kafka.records import Record
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.model.states import IsolationLevel
from coldlog.model.transactions import AbortedTransaction
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.partition_records import PartitionReader, StopReason, open_partition
from worlds.golden_warehouse import golden_partitions, golden_queries
from worlds.kafka_sample import KAFKA_SAMPLE, true_segments

LIMITS = DecodeLimits(max_batch_bytes=64 << 20, max_decompressed_bytes=64 << 20)
Partition = tuple[str, int]
ServedOffsets = tuple[int, int]
Readers = tuple[OffsetReader, RecordFetcher]


@pytest.fixture(scope="module")
def sql(golden: Warehouse) -> SparkSession:
    attach_warehouse(golden.spark, golden.uri)
    return golden.spark


@pytest.fixture(scope="module")
def layout(golden_archive: Path) -> ArchiveLayout:
    return open_archive(str(golden_archive), "local_tiered_storage")


@pytest.fixture(scope="module")
def readers(golden_uri: str, golden_archive: Path) -> Iterator[Readers]:
    """Without Spark, the same questions can be asked of either."""
    settings = [f"warehouse.uri={golden_uri}", f"archive.uri={golden_archive}"]
    with OffsetReader(golden_uri) as reader, open_fetcher(settings) as fetcher:
        yield reader, fetcher


@pytest.fixture(scope="module")
def segments(golden: Warehouse) -> dict[Partition, list[ServedOffsets]]:
    """First and last offsets of the served segments of each partition, in order."""
    rows = golden.read(SEGMENTS).where("served_from_offset IS NOT NULL").orderBy("topic", "partition", "start_offset")
    by_partition: dict[Partition, list[ServedOffsets]] = {}
    for row in rows.collect():
        by_partition.setdefault((row["topic"], row["partition"]), []).append((row["start_offset"], row["end_offset"]))
    return by_partition


def fetches(segments: dict[Partition, list[ServedOffsets]]) -> Iterator[tuple[str, int, int, int]]:
    """Short and long fetches of each partition, at every border of a segment and between borders."""
    for (topic, partition), members in segments.items():
        borders = sorted({start for start, _ in members} | {members[-1][1] + 1})
        points = sorted({*borders, *(border + 3 for border in borders), *(border - 1 for border in borders if border)})
        for at, point in enumerate(points):
            for bound in {point + 1, *points[at + 1 : at + 4 : 2], points[-1]}:
                yield topic, partition, point, bound


def true_aborts(topic: str, partition: int, fetch_offset: int, bound: int) -> list[tuple[int, int, int, int]]:
    return sorted(
        (one["last"], one["first"], one["pid"], one["lso"])
        for segment in true_segments("COPY_SEGMENT_FINISHED")
        if (segment["topic"], segment["partition"]) == (topic, partition)
        for one in segment["aborted"]
        if one["last"] >= fetch_offset and one["first"] < bound
    )


def test_aborts_equal_those_of_the_broker_in_every_way_of_asking(
    sql: SparkSession, readers: Readers, segments: dict[Partition, list[ServedOffsets]]
) -> None:
    asked = list(fetches({where: members for where, members in segments.items() if where[0] in TRANSACTIONAL}))
    sql.createDataFrame(asked, "topic STRING, partition INT, at BIGINT, bound BIGINT").createOrReplaceTempView(
        "fetches"
    )
    rows = sql.sql(
        "SELECT f.*, a.* FROM fetches f, LATERAL aborted_transactions(f.topic, f.partition, f.at, f.bound) a"
    ).collect()
    from_tables: dict[tuple[str, int, int, int], list[tuple[int, int, int, int]]] = {}
    for row in rows:
        entry = (row["last_offset"], row["first_offset"], row["producer_id"], row["last_stable_offset"])
        from_tables.setdefault((row["topic"], row["partition"], row["at"], row["bound"]), []).append(entry)
    met = 0
    for fetch in asked:
        expected = true_aborts(*fetch)
        assert sorted(from_tables.get(fetch, [])) == expected, fetch
        for reader in readers:
            found = reader.aborted_transactions(*fetch)
            assert found == sorted(found, key=lambda one: (one.first_offset, one.producer_id))
            assert sorted(entry_of(one) for one in found) == expected, fetch
        met += len(expected)
    assert met > 500


def entry_of(one: AbortedTransaction) -> tuple[int, int, int, int]:
    return one.last_offset, one.first_offset, one.producer_id, one.last_stable_offset


TRANSACTIONAL = ("payments", "payments.live", "from-librdkafka")


def test_one_fetch_with_constants_gives_the_same_aborts(sql: SparkSession) -> None:
    rows = sql.sql("SELECT * FROM aborted_transactions('payments', 0, 500, 900)").collect()
    found = sorted((r["last_offset"], r["first_offset"], r["producer_id"], r["last_stable_offset"]) for r in rows)
    assert found == true_aborts("payments", 0, 500, 900)
    assert found
    assert sql.sql("SELECT * FROM aborted_transactions('orders', 0, 0, 9999999)").collect() == []


# The walk as Kafka's RemoteLogMetadataCache does it, over the served segments of the sample.


def walk(members: Iterable[dict[str, object]], leader_epoch: int, offset: int) -> str | None:
    """Go from the segment that holds the offset in this epoch to the next ones, until one may have an index."""
    while True:
        row = holding(members, leader_epoch, offset)
        if row is None:
            return None
        if not row["txn_index_empty"]:
            return str(row["segment_id"])
        offset = int(str(row["end_offset"])) + 1


def holding(members: Iterable[dict[str, object]], leader_epoch: int, offset: int) -> dict[str, object] | None:
    """As Kafka's remoteLogSegmentMetadata."""
    for row in members:
        if (end := epoch_end(row, leader_epoch)) is not None and holds(row, end, offset):
            return row
    return None


def epoch_end(row: dict[str, object], leader_epoch: int) -> tuple[int, int] | None:
    """First and last offset of the epoch in the segment."""
    epochs = [(each["leader_epoch"], each["start_offset"]) for each in row["segment_leader_epochs"]]  # type: ignore[attr-defined]
    for at, (epoch, start) in enumerate(epochs):
        if epoch == leader_epoch:
            return start, epochs[at + 1][1] - 1 if at + 1 < len(epochs) else int(str(row["end_offset"]))
    return None


def holds(row: dict[str, object], end: tuple[int, int], offset: int) -> bool:
    served = int(str(row["served_from_offset"]))
    return max(end[0], served) <= offset <= end[1]


Search = tuple[str, int, int, int, str | None, str | None]


@pytest.fixture(scope="module")
def searches(golden: Warehouse) -> list[Search]:
    """Topic, partition, leader epoch, offset, the next segment with an index, and the segment that has the offset."""
    rows = golden.read(SEGMENTS).where("served_from_offset IS NOT NULL").orderBy("start_offset").toArrow().to_pylist()
    asked: list[Search] = []
    for topic in TRANSACTIONAL:
        for partition in sorted({row["partition"] for row in rows if row["topic"] == topic}):
            members = [row for row in rows if (row["topic"], row["partition"]) == (topic, partition)]
            starts = sorted({each["start_offset"] for row in members for each in row["segment_leader_epochs"]})
            for epoch in range(8):
                for offset in sorted({point + step for point in starts for step in (-1, 0, 1, 7)}):
                    held = holding(members, epoch, offset)
                    ids = walk(members, epoch, offset), None if held is None else str(held["segment_id"])
                    asked.append((topic, partition, epoch, offset, *ids))
    return asked


@pytest.mark.parametrize(("function", "at"), [("next_segment_with_txn_index", 4), ("segment_for_offset", 5)])
def test_segment_is_the_one_that_kafka_finds(
    sql: SparkSession, readers: Readers, searches: list[Search], function: str, at: int
) -> None:
    schema = "topic STRING, partition INT, epoch INT, at BIGINT, following STRING, holding STRING"
    sql.createDataFrame(searches, schema).createOrReplaceTempView("walks")
    rows = sql.sql(
        f"SELECT w.*, n.* FROM walks w LEFT JOIN LATERAL {function}(w.topic, w.partition, w.epoch, w.at) n"
    ).collect()
    assert len(rows) == len(searches)
    for row in rows:
        assert row["segment_id"] == row[at], row
        expected = None if row["segment_id"] is None else tuple(row[6:])
        for reader in readers:
            found = getattr(reader, function)(*row[:4])
            assert (None if found is None else astuple(found)) == expected, row
    assert sum(row[at] is not None for row in searches) > 100
    assert sum(row[at] is None for row in searches) > 100


def test_segment_of_an_offset_in_any_epoch_is_the_one_that_serves_it(
    sql: SparkSession, readers: Readers, segments: dict[Partition, list[ServedOffsets]]
) -> None:
    members = segments["payments", 0]
    for offset in {at + step for start, end in members for at in (start, end) for step in (-1, 0, 1)} | {-1, 1 << 40}:
        expected = [(start, end) for start, end in members if start <= offset <= end]
        for reader in readers:
            found = reader.segment_for_offset("payments", 0, None, offset)
            assert ([] if found is None else [(found.start_offset, found.end_offset)]) == expected, offset
    start, end = members[1]
    for epoch in ("NULL", "CAST(NULL AS INT)"):
        rows = sql.sql(f"SELECT start_offset, end_offset FROM segment_for_offset('payments', 0, {epoch}, {start})")
        assert [tuple(row) for row in rows.collect()] == [(start, end)]


def test_next_segment_of_any_epoch_is_the_first_after_the_offset(
    golden: Warehouse, sql: SparkSession, readers: Readers
) -> None:
    rows = golden.read(SEGMENTS).where("served_from_offset IS NOT NULL AND topic = 'payments' AND partition = 0")
    members = rows.orderBy("start_offset").collect()
    end = members[-1]["end_offset"] + 30
    expected = {offset: _first_with_aborts(members, offset) for offset in range(0, end, 7)}
    asked = [("payments", 0, None, offset) for offset in expected]
    sql.createDataFrame(asked, "topic STRING, partition INT, epoch INT, at BIGINT").createOrReplaceTempView("searches")
    for epoch in ("s.epoch", "NULL"):
        lateral = sql.sql(
            "SELECT s.at, n.segment_id FROM searches s "
            f"LEFT JOIN LATERAL next_segment_with_txn_index(s.topic, s.partition, {epoch}, s.at) n"
        ).collect()
        assert dict(map(tuple, lateral)) == expected
        assert len(lateral) == len(expected)
    assert None in expected.values()
    for reader in readers:
        by_reader = {at: reader.next_segment_with_txn_index("payments", 0, None, at) for at in expected}
        assert {at: found and found.segment_id for at, found in by_reader.items()} == expected
    for offset in (0, 917, max(expected)):
        found = sql.sql(f"SELECT segment_id FROM next_segment_with_txn_index('payments', 0, NULL, {offset})").collect()
        assert [row["segment_id"] for row in found] == [expected[offset]] * (expected[offset] is not None)


def _first_with_aborts(members: list[Row], offset: int) -> str | None:
    return next(
        (row["segment_id"] for row in members if row["end_offset"] >= offset and not row["txn_index_empty"]), None
    )


# What consumers read.


def digest_line(record: Record) -> bytes:
    def text(content: bytes | None) -> str:
        return "-" if content is None else base64.b64encode(content).decode()

    fields = [str(record.offset), str(record.timestamp_ms), text(record.key), text(record.value)]
    fields += [f"{text(name)}={text(value)}" for name, value in record.headers]
    return ("\t".join(fields) + "\n").encode()


def digest(records: Iterable[Record]) -> tuple[int, str]:
    count, sha = 0, hashlib.sha256()
    for record in records:
        count += 1
        sha.update(digest_line(record))
    return count, sha.hexdigest()


@pytest.fixture(scope="module")
def open_reader(golden: Warehouse, layout: ArchiveLayout) -> Callable[[str, int, IsolationLevel], PartitionReader]:
    def opened(topic: str, partition: int, isolation_level: IsolationLevel) -> PartitionReader:
        return open_partition(golden, layout, topic, partition, isolation_level, limits=LIMITS, window_bytes=1 << 20)

    return opened


def test_records_equal_those_that_consumers_read(
    open_reader: Callable[[str, int, IsolationLevel], PartitionReader],
) -> None:
    stopped = filtered = 0
    for truth in golden_partitions():
        if truth["archive_end"] == -1:
            continue
        topic, partition = str(truth["topic"]), int(str(truth["partition"]))
        uncommitted = open_reader(topic, partition, IsolationLevel.READ_UNCOMMITTED)
        expected = truth["archive_ru"]
        assert isinstance(expected, dict)
        all_records = digest(uncommitted.iter_records())
        assert all_records == (expected["count"], expected["sha256"]), (topic, partition)
        committed = open_reader(topic, partition, IsolationLevel.READ_COMMITTED)
        expected = truth["archive_rc"]
        assert isinstance(expected, dict)
        if committed.stop.reason is StopReason.ARCHIVE_END:
            # Without aborted transactions the same batches would be read again.
            leaves_out_nothing = not len(committed.aborted) and committed.segments == uncommitted.segments
            found = all_records if leaves_out_nothing else digest(committed.iter_records())
            assert found == (expected["count"], expected["sha256"]), (topic, partition)
            filtered += not leaves_out_nothing
        else:
            stopped += 1
            offsets = [record.offset for record in committed.iter_records()]
            assert offsets == [o for o in committed_offsets(topic, partition) if o < committed.stop.offset]
            assert committed.stop.offset <= int(str(truth["archive_end"]))
    assert stopped >= 3
    assert filtered


def committed_offsets(topic: str, partition: int) -> list[int]:
    """Offsets that a read_committed consumer of the broker got."""
    path = KAFKA_SAMPLE / "truth" / "records" / f"{topic}-{partition}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [row["o"] for row in map(json.loads, lines) if row["rc"]]


def test_committed_lookups_return_an_error_after_an_open_transaction(
    golden: Warehouse, open_reader: Callable[[str, int, IsolationLevel], PartitionReader]
) -> None:
    queries = [query for query in golden_queries() if query["topic"] in TRANSACTIONAL and query["archive"]]
    requests = requests_from_rows([(q["topic"], q["partition"], q["ts"]) for q in queries])
    plain, committed = (
        find_offsets_for_timestamps(golden, requests, LookupOptions(isolation_level=level)).to_pylist()
        for level in IsolationLevel
    )
    stops: dict[Partition, int] = {}
    refused = 0
    for seen, answer in zip(plain, committed, strict=True):
        where = (seen["topic"], seen["partition"])
        if where not in stops:
            stops[where] = open_reader(*where, IsolationLevel.READ_COMMITTED).stop.offset
        if seen["offset"] is not None and seen["offset"] >= stops[where]:
            assert (answer["offset"], answer["leader_epoch"], answer["error"]) == (None, None, "OPEN_TRANSACTION")
            refused += 1
        else:
            assert answer == seen
    assert 0 < refused < len(plain)
