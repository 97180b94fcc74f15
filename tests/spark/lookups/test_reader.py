"""Test the reader without Spark: the same answers as the broker's, and few rows read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment
from coldlog.archive.open_archive import open_archive
from coldlog.errors import ColdlogError, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import list_offsets
from coldlog.lookups.requests.rows import LIST_OFFSETS_SCHEMA, requests_from_rows
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.list_offsets import ErrorCode, Route, SpecialTimestamp
from coldlog.model.states import IsolationLevel
from coldlog.reader import OffsetReader
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.file_checksums import write_checksums
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in
from damage.damaged_tables import forget_published
from worlds.archived_partitions import Request, archived_partitions, expected_answer
from worlds.golden_warehouse import (
    golden_partitions,
    golden_queries,
    is_true_answer,
    run_pipeline,
)
from worlds.kafka_sample import KAFKA_SAMPLE

LIMITS = DecodeLimits(max_batch_bytes=64 << 20, max_decompressed_bytes=64 << 20)
_GROUP_ROWS = 21
"""A segment of the sample has 141 stairs on average."""


@pytest.fixture
def reader(golden_uri: str) -> Iterator[OffsetReader]:
    with OffsetReader(golden_uri) as opened:
        yield opened


@pytest.mark.parametrize("broker_compatible", [True, False])
def test_every_answer_equals_the_brokers(golden_uri: str, broker_compatible: bool) -> None:
    queries = golden_queries()
    known = {(row["topic"], row["partition"]) for row in golden_partitions() if int(str(row["archive_end"])) >= 0}
    with OffsetReader(golden_uri, LookupOptions(broker_compatible=broker_compatible)) as reader:
        answers = reader.list_offsets([(q["topic"], q["partition"], q["ts"]) for q in queries])
        wrong = [
            (query, answer)
            for query, answer in zip(queries, answers, strict=True)
            if not is_true_answer(query, answer, broker_compatible=broker_compatible)
        ]
        assert wrong == []
        for query in random.Random(5).sample([q for q in queries if (q["topic"], q["partition"]) in known], 500):
            place = str(query["topic"]), int(str(query["partition"]))
            found = reader.offset_for_timestamp(*place, int(str(query["ts"])))
            facts = (None, None, None) if found is None else (found.offset, found.timestamp_ms, found.leader_epoch)
            row = dict(zip(("offset", "offset_timestamp_ms", "leader_epoch"), facts, strict=True))
            assert is_true_answer(query, row, broker_compatible=broker_compatible), query  # type: ignore[arg-type]


def all_requests(golden: Warehouse) -> list[Request]:
    """Return every kind of timestamp for every partition, with epochs, isolation levels and versions."""
    chance = random.Random(17)
    times = [int(str(query["ts"])) for query in golden_queries()]
    asked = []
    known = archived_partitions(golden)
    for topic, partition in [*known, ("orders", 99), ("nobody's", 0)]:
        newest = known[topic, partition].max_timestamp_ms if (topic, partition) in known else 0
        asked_ms = (*SpecialTimestamp, -7, -(2**63), 0, newest, 2**63 - 1, *chance.sample(times, 6))
        for timestamp_ms in asked_ms:
            for level in ("read_uncommitted", "read_committed"):
                epoch, version = chance.choice((-1, 0, 1, 2, 5)), chance.choice((-1, 0, 1, 3, 4, 7, 8, 9, 10, 11, 12))
                asked.append(
                    Request(
                        topic=topic,
                        partition=partition,
                        timestamp_ms=int(timestamp_ms or 0),
                        current_leader_epoch=epoch,
                        isolation_level=level,
                        version=version,
                    )
                )
                asked.append(Request(topic=topic, partition=partition, timestamp_ms=int(timestamp_ms or 0)))
    return asked


def test_every_kind_of_request_is_answered_as_by_a_scan(golden: Warehouse, reader: OffsetReader) -> None:
    known, asked = archived_partitions(golden), all_requests(golden)
    rows = [
        (r.topic, r.partition, r.timestamp_ms, r.current_leader_epoch, r.isolation_level, -1, r.version) for r in asked
    ]
    answers = reader.list_offsets(rows)
    for request, row in zip(asked, answers, strict=True):
        found = tuple(row[name] for name in ("offset", "offset_timestamp_ms", "leader_epoch"))
        route = None if row["route"] is None else Route(str(row["route"]))
        error = ErrorCode(int(str(row["error_code"])))
        answer = (error, *found, route, row["local_start_offset"])
        assert row["error"] == error.name
        place = str(request.topic), int(str(request.partition))
        assert answer == expected_answer(request, known.get(place)), request
    assert {row["error"] for row in answers} >= {
        "NONE", "UNSUPPORTED_VERSION", "UNKNOWN_TOPIC_OR_PARTITION", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH",
        "LOCAL_REQUIRED", "OPEN_TRANSACTION",
    }  # fmt: skip
    in_bulk = list_offsets(golden, requests_from_rows(rows))
    assert in_bulk.schema == LIST_OFFSETS_SCHEMA
    assert in_bulk.to_pylist() == answers


def test_partition_named_twice_in_one_request_is_invalid(reader: OffsetReader) -> None:
    rest = (-1, None, -1, 11)
    answers = reader.list_offsets(
        [
            ("orders", 0, 0, *rest, "a"),
            ("payments", 0, 0, *rest, "a"),
            ("orders", 0, -2, *rest, "a"),
            ("orders", 0, 0, *rest, "b"),
            ("orders", 0, 0, *rest, None),
            ("orders", 0, 0, *rest, None),
        ]
    )
    assert [row["error"] for row in answers] == ["INVALID_REQUEST", "NONE", "INVALID_REQUEST", "NONE", "NONE", "NONE"]


def test_special_offsets_of_a_partition_are_those_of_the_broker(reader: OffsetReader) -> None:
    for truth in golden_partitions():
        place = str(truth["topic"]), int(str(truth["partition"]))
        if int(str(truth["archive_end"])) < 0:
            continue
        assert reader.earliest_offset(*place) == truth["log_start"]
        assert reader.latest_tiered_offset(*place) == truth["archive_end"]
        latest = reader.max_timestamp(*place)
        assert latest is not None
        assert reader.offset_for_timestamp(*place, max(0, latest.timestamp_ms)) in (latest, None)
    with pytest.raises(UsageError, match="no partition 7 of topic 'orders'"):
        reader.earliest_offset("orders", 7)
    with pytest.raises(UsageError, match="not a time: -1"):
        reader.offset_for_timestamp("orders", 0, -1)
    with pytest.raises(UsageError, match="timestamp_ms is 100.5: expected a whole number"):
        reader.offset_for_timestamp("orders", 0, 100.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="partition is '0': expected a whole number"):
        reader.offset_for_timestamp("orders", "0", 5)  # type: ignore[arg-type]
    for odd in (
        ("orders", "zero", 5),
        ("orders", 0, 2**80),
        (7, 0, 5),
        ("orders", 0, 5.5),
        ("orders", 0),
        ("orders", 0, None),
        ("orders", 0, Decimal("5.5")),
        (),
    ):
        with pytest.raises(UsageError, match=r"^request 1 is not \(topic, partition, timestamp_ms\)"):
            reader.list_offsets(iter([("orders", 0, 5), odd]))
    with pytest.raises(UsageError, match="not the name of a topic: None"):
        reader.earliest_offset(None, 0)  # type: ignore[arg-type]


def test_warehouse_folder_may_have_any_name(golden_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "w \u00fc[1]"
    shutil.copytree(golden_uri, folder)
    for named in (folder, str(folder), f"file:{folder}", f"file://{folder}"):
        with OffsetReader(named, as_of_ms=9 * 10**14) as reader:
            assert reader.earliest_offset("orders", 0) == 0, named
    with pytest.raises(UsageError, match="the uri of the warehouse is empty"):
        OffsetReader("")


def test_spark_and_the_reader_take_a_uri_for_the_same_folder(
    spark: SparkSession, golden_uri: str, tmp_path: Path
) -> None:
    folder = tmp_path / "50% a#b"
    shutil.copytree(golden_uri, folder)
    expected = Warehouse(spark=spark, uri=golden_uri).read(SEGMENTS).count()
    for uri in (str(folder), folder.as_uri()):
        assert Warehouse(spark=spark, uri=uri).read(SEGMENTS).count() == expected
        with OffsetReader(uri) as reader:
            assert reader.latest_tiered_offset("orders", 0) == 3952
    with pytest.raises(UsageError, match="a warehouse cannot be at"):
        Warehouse(spark=spark, uri=str(tmp_path / "a%20b")).read(SEGMENTS)


def test_warehouse_as_of_a_time_before_it_existed_is_refused(golden_uri: str) -> None:
    with pytest.raises(UsageError, match="did not exist yet at 1000 ms"):
        OffsetReader(golden_uri, as_of_ms=1_000)


def test_isolation_level_counts_for_one_question_and_is_validated(golden: Warehouse) -> None:
    options = LookupOptions(isolation_level=IsolationLevel.READ_COMMITTED)
    latest = (None, None, None, "OPEN_TRANSACTION")
    with OffsetReader(golden.uri) as uncommitted, OffsetReader(golden.uri, options) as committed:
        # The newest record is after a transaction that is open at the archive's end.
        topic, partition = next(
            place
            for place, known in archived_partitions(golden).items()
            if (known.max_timestamp_offset or 0) >= (known.stable_offset or 0) > 0
        )
        newest = uncommitted.max_timestamp(topic, partition)
        assert newest is not None
        place = topic, partition, newest.timestamp_ms
        (answer,) = committed.list_offsets([place])
        assert (answer["offset"], answer["offset_timestamp_ms"], answer["leader_epoch"], answer["error"]) == latest
        with pytest.raises(ColdlogError, match="OPEN_TRANSACTION"):
            committed.offset_for_timestamp(*place)
        assert uncommitted.offset_for_timestamp(*place) == newest
        (answer,) = uncommitted.list_offsets([(*place, -1, "READ_COMMITTED")])
        assert answer["error"] == "INVALID_REQUEST"


def test_largest_timestamp_is_that_of_the_records_also_if_broker_compatible(golden: Warehouse) -> None:
    with OffsetReader(golden.uri) as exact, OffsetReader(golden.uri, LookupOptions(broker_compatible=True)) as broker:
        for topic, partition in archived_partitions(golden):
            assert broker.max_timestamp(topic, partition) == exact.max_timestamp(topic, partition) is not None


def test_batch_is_read_if_its_records_were_not_decoded(golden_uri: str, golden_shallow_uri: str) -> None:
    asked = [(q["topic"], q["partition"], q["ts"]) for q in golden_queries()]
    places = sorted({each[:2] for each in asked})
    asked += [(topic, partition, SpecialTimestamp.MAX_TIMESTAMP.value) for topic, partition in places]
    open_layout = partial(open_archive, str(KAFKA_SAMPLE / "archive"), "local_tiered_storage")
    options = LookupOptions(batches=BatchReader(open_layout=open_layout, limits=LIMITS))
    with OffsetReader(golden_shallow_uri, options) as shallow_reader, OffsetReader(golden_uri) as reader:
        assert shallow_reader.list_offsets(asked) == reader.list_offsets(asked)
    with OffsetReader(golden_shallow_uri) as without_archive:
        answers = without_archive.list_offsets(asked)
        assert {row["error"] for row in answers} == {"NOT_DECODED", "LOCAL_REQUIRED", "UNKNOWN_TOPIC_OR_PARTITION"}


@dataclass(slots=True)
class CountedReads:
    """An archive that notes the ranges that are read of its logs."""

    layout: ArchiveLayout
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def read_log_range(self, segment: ListedSegment, position: int, length: int) -> memoryview:
        self.ranges.append((position, length))
        return self.layout.read_log_range(segment, position, length)


def test_one_ranged_read_of_one_batch_answers_at_batch_depth(golden_shallow: Warehouse) -> None:
    archive = CountedReads(open_archive(str(KAFKA_SAMPLE / "archive"), "local_tiered_storage"))
    batches = BatchReader(open_layout=lambda: archive, limits=LIMITS)  # type: ignore[arg-type,return-value]  # a part
    rows = golden_shallow.read(OFFSET_INDEX).select("position", "size_bytes").collect()
    known = {(row["position"], row["size_bytes"]) for row in rows}
    queries = random.Random(3).sample([q for q in golden_queries() if q["archive"]], 200)
    with OffsetReader(golden_shallow.uri, LookupOptions(batches=batches)) as reader:
        for query in queries:
            archive.ranges.clear()
            found = reader.offset_for_timestamp(
                str(query["topic"]), int(str(query["partition"])), int(str(query["ts"]))
            )
            assert found is not None
            assert len(archive.ranges) == 1
            assert archive.ranges[0] in known
        archive.ranges.clear()
        # Requests that one batch answers read it once; requests that need no record read nothing.
        place = str(queries[0]["topic"]), int(str(queries[0]["partition"]))
        answers = reader.list_offsets([(*place, queries[0]["ts"])] * 50 + [(*place, -2), (*place, -5)])
        assert {row["error"] for row in answers} == {"NONE"}
        assert len(archive.ranges) == 1


def test_few_rows_are_read_and_none_of_them_twice(golden: Warehouse, reader: OffsetReader) -> None:
    query = next(q for q in golden_queries() if q["archive"])
    place = str(query["topic"]), int(str(query["partition"])), int(str(query["ts"]))
    reader.offset_for_timestamp(*place)
    after_one = reader.rows_read
    reader.offset_for_timestamp(*place)
    assert reader.rows_read == after_one
    assert 0 < after_one < len(rows_in(golden, TIME_INDEX))


@pytest.mark.parametrize("broker_compatible", [True, False])
def test_stairs_of_a_segment_in_many_row_groups_give_the_same_answers(
    golden: Warehouse, tmp_path: Path, broker_compatible: bool
) -> None:
    shutil.copytree(golden.uri, tmp_path / "warehouse")
    forget_published(tmp_path / "warehouse", TIME_INDEX.name)
    for file in (tmp_path / "warehouse" / TIME_INDEX.name).rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            pq.write_table(pq.read_table(file, partitioning=None), file, row_group_size=_GROUP_ROWS)
            write_checksums(str(file))
    options = LookupOptions(broker_compatible=broker_compatible)
    queries = golden_queries()[::4]
    latest = [(*place, -3) for place in archived_partitions(golden)]
    asked = [*((str(q["topic"]), int(str(q["partition"])), int(str(q["ts"]))) for q in queries), *latest]
    with OffsetReader(golden.uri, options) as whole, OffsetReader(str(tmp_path / "warehouse"), options) as cut:
        assert cut.list_offsets(asked) == whole.list_offsets(asked)
        # One question alone reads a few of them: their ranges overlap where segments meet.
        for questions in _with_partitions_apart(random.Random(7).sample(asked[: len(queries)], 60)):
            cut.refresh()
            for topic, partition, timestamp_ms in questions:
                cut.list_offsets([(topic, partition, SpecialTimestamp.EARLIEST)])
                before = cut.rows_read
                cut.list_offsets([(topic, partition, timestamp_ms)])
                assert cut.rows_read - before <= 4 * _GROUP_ROWS


def _with_partitions_apart(questions: list[tuple[str, int, int]]) -> Iterator[list[tuple[str, int, int]]]:
    """Yield the questions in turns that have each partition once, so that none finds what another has read."""
    by_partition: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    for question in questions:
        by_partition.setdefault(question[:2], []).append(question)
    for turn in zip_longest(*by_partition.values()):
        yield [question for question in turn if question is not None]


def test_reader_answers_from_the_opened_version_until_it_is_refreshed(spark: SparkSession, tmp_path: Path) -> None:
    archive, place = tmp_path / "archive", TopicPartition(topic="grows", partition=0)
    batches = [
        Batch(base_offset=start, records=tuple(Record(timestamp_ms=start + each) for each in range(5)))
        for start in (0, 5)
    ]
    segments = [Segment(batches=(each,)) for each in batches]
    write_archive(archive, {place: segments[:1]})
    warehouse = run_pipeline(spark, archive, tmp_path / "warehouse")
    with OffsetReader(warehouse.uri) as reader:
        assert reader.latest_tiered_offset("grows", 0) == 4
        write_archive(archive, {place: segments})
        run_pipeline(spark, archive, tmp_path / "warehouse")
        assert (reader.latest_tiered_offset("grows", 0), reader.offset_for_timestamp("grows", 0, 6)) == (4, None)
        reader.refresh()
        found = reader.offset_for_timestamp("grows", 0, 6)
        assert (reader.latest_tiered_offset("grows", 0), found and found.offset) == (9, 6)


def test_missing_warehouse_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not coldlog's table segments"):
        OffsetReader(str(tmp_path))
