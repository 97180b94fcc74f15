"""Test that the SQL function list_offsets agrees with a simple loop over the rows, however it is called."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from coldlog.model.list_offsets import ErrorCode, Route, SpecialTimestamp
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.delta.warehouse import Warehouse
from counts.spark_plans import scans_of
from worlds.archived_partitions import Answer, ArchivedPartition, Request, archived_partitions, expected_answer
from worlds.golden_warehouse import golden_queries, is_true_answer

LONGEST, SHORTEST = 2**63 - 1, -(2**63)
ISOLATION_LEVELS = ("read_uncommitted", "read_committed", "READ_COMMITTED", "", None)
VERSIONS = (None, -1, 0, 1, 3, 4, *range(6, 13))
Partitions = dict[tuple[str, int], ArchivedPartition]

LATERAL = (
    "SELECT q.number, o.* FROM list_offsets_requests q, LATERAL list_offsets(q.topic, q.partition, q.timestamp_ms, "
    "q.current_leader_epoch, q.isolation_level, q.version) o"
)


def view_of(spark: SparkSession, asked: Sequence[Request]) -> None:
    """Register the requests as the view list_offsets_requests."""
    columns = {
        "number": pa.array(range(len(asked)), pa.int64()),
        "topic": pa.array([each.topic for each in asked], pa.string()),
        "partition": pa.array([each.partition for each in asked], pa.int32()),
        "timestamp_ms": pa.array([each.timestamp_ms for each in asked], pa.int64()),
        "current_leader_epoch": pa.array([each.current_leader_epoch for each in asked], pa.int32()),
        "isolation_level": pa.array([each.isolation_level for each in asked], pa.string()),
        "version": pa.array([each.version for each in asked], pa.int32()),
    }
    spark.createDataFrame(pa.table(columns)).createOrReplaceTempView("list_offsets_requests")


def answers_of(rows: DataFrame) -> list[Answer]:
    """The rows in the order asked, as the oracle writes them; name and code of each error agree."""
    answers: list[Answer] = []
    for number, row in enumerate(rows.toArrow().sort_by("number").to_pylist()):
        assert row["number"] == number
        error = ErrorCode(row["error_code"])
        assert row["error"] == error.name
        route = None if row["route"] is None else Route(row["route"])
        found = row["offset"], row["offset_timestamp_ms"], row["leader_epoch"]
        answers.append((error, *found, route, row["local_start_offset"]))
    return answers


def compare_under_lateral(warehouse: Warehouse, asked: Sequence[Request]) -> list[Answer]:
    """Check that every answer equals the oracle's, and return the answers."""
    attach_warehouse(warehouse.spark, warehouse.uri)
    view_of(warehouse.spark, asked)
    partitions = archived_partitions(warehouse)
    answers = answers_of(warehouse.spark.sql(LATERAL))
    assert len(answers) == len(asked)
    wrong = [
        (request, answer, expected)
        for request, answer in zip(asked, answers, strict=True)
        if answer != (expected := expected_answer(request, _partition_of(partitions, request)))
    ]
    assert wrong[:5] == []
    return answers


def _partition_of(partitions: Partitions, request: Request) -> ArchivedPartition | None:
    if request.topic is None or request.partition is None:
        return None
    return partitions.get((request.topic, request.partition))


def epochs_around(partition: ArchivedPartition) -> list[int | None]:
    """Return no epoch, the right one, a stale and a future one, and one that no client sends."""
    last = partition.lineage[-1][0] if partition.lineage else 3
    return [-1, last, max(last - 1, 0), last + 1, 2**31 - 1, -7, None]


def requests_for(partitions: Partitions, chance: random.Random) -> Iterator[Request]:
    """For every partition: all special timestamps with all other fields, and timestamps with half of them."""
    for (topic, partition), known in sorted(partitions.items()):
        epochs = epochs_around(known)
        for timestamp_ms in (*SpecialTimestamp, -7, SHORTEST, None):
            for epoch, level, version in itertools.product(epochs[:4], ISOLATION_LEVELS[:3], VERSIONS):
                yield Request(
                    topic=topic,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                    current_leader_epoch=epoch,
                    isolation_level=level,
                    version=version,
                )
        times = sorted({time for _, time, _ in known.stairs})
        largest = known.max_timestamp_ms or 0, known.finished_max_timestamp_ms or 0
        sample = {*chance.sample(times, min(12, len(times))), *times[-2:], *largest}
        around = {time + step for time in sample for step in (-1, 0, 1)} | {0, 1, LONGEST}
        for timestamp_ms in sorted(time for time in around if 0 <= time <= LONGEST):
            for level in ISOLATION_LEVELS[:2]:
                yield Request(topic=topic, partition=partition, timestamp_ms=timestamp_ms, isolation_level=level)
            yield Request(
                topic=topic,
                partition=partition,
                timestamp_ms=timestamp_ms,
                current_leader_epoch=chance.choice(epochs),
                isolation_level=chance.choice(ISOLATION_LEVELS),
                version=chance.choice(VERSIONS),
            )
    yield from strangers()


def strangers() -> Iterator[Request]:
    """Return partitions that do not exist, with further errors."""
    names: tuple[tuple[str | None, int | None], ...] = (("no such", 0), ("orders", 7), (None, 0), ("orders", None))
    for topic, partition in names:
        for timestamp_ms, epoch, level in itertools.product((5, -1, -9, None), (-1, 3), ISOLATION_LEVELS):
            yield Request(
                topic=topic,
                partition=partition,
                timestamp_ms=timestamp_ms,
                current_leader_epoch=epoch,
                isolation_level=level,
            )


@pytest.mark.usefixtures("users_plans")
@pytest.mark.parametrize("name", ["golden", "golden_with_events"])
def test_every_answer_under_lateral_agrees_with_a_scan(name: str, request: pytest.FixtureRequest) -> None:
    warehouse: Warehouse = request.getfixturevalue(name)
    asked = list(requests_for(archived_partitions(warehouse), random.Random(11)))
    seen = Counter(error for error, *_ in compare_under_lateral(warehouse, asked))
    assert len(asked) > 40_000
    answered = {ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST, ErrorCode.LOCAL_REQUIRED}
    answered |= {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPEN_TRANSACTION}
    answered |= {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH}
    assert set(seen) == answered
    assert min(seen.values()) > 10


def partition_row(topic: str, **columns: object) -> dict[str, object]:
    """Return a row of partition_metadata with these columns; the rest is empty."""
    counts = [column.name for column in PARTITION_METADATA.columns if column.required and column.type == "BIGINT"]
    named = {"topic": topic, "partition": 0, "topic_id": "id", "is_current": True, "leader_epoch_lineage": []}
    return {**dict.fromkeys(PARTITION_METADATA.column_names), **dict.fromkeys(counts, 0), **named, **columns}


LINEAGE = [{"leader_epoch": 4, "start_offset": 10}, {"leader_epoch": 9, "start_offset": 20}]
SERVED = {"log_start_offset": 12, "earliest_offset": 12, "latest_tiered_offset": 29, "leader_epoch_lineage": LINEAGE}
ODD_PARTITIONS = [
    partition_row("nothing-known"),
    partition_row("nothing-tiered", log_start_offset=17, leader_epoch_lineage=LINEAGE),
    partition_row("no-log-start", **{**SERVED, "log_start_offset": None}, max_timestamp_ms=5, max_timestamp_offset=20),
    partition_row("no-lineage", **{**SERVED, "leader_epoch_lineage": []}, max_timestamp_ms=5, max_timestamp_offset=20),
    partition_row("before-lineage", **{**SERVED, "log_start_offset": 3}, max_timestamp_ms=5, max_timestamp_offset=9),
    partition_row("no-timestamps", **SERVED),
    partition_row("negative-timestamps", **SERVED, max_timestamp_ms=-1, max_timestamp_offset=14),
    partition_row("not-decoded", **SERVED, max_timestamp_ms=5),
    partition_row(
        "log-start-behind", **{**SERVED, "log_start_offset": 40}, max_timestamp_ms=5, max_timestamp_offset=20
    ),
    partition_row("open", **SERVED, max_timestamp_ms=5, max_timestamp_offset=20, stable_offset=20),
    partition_row("open-later", **SERVED, max_timestamp_ms=5, max_timestamp_offset=20, stable_offset=21),
    partition_row("gone", **SERVED, is_current=False),
    partition_row("twice", **{**SERVED, "latest_tiered_offset": 99}, is_current=False, topic_id="old"),
    partition_row("twice", **SERVED, max_timestamp_ms=5, max_timestamp_offset=20),
    partition_row("finished-later", **SERVED, max_timestamp_ms=5, max_timestamp_offset=20, finished_max_timestamp_ms=6),
    partition_row(
        "finished-unknown", **SERVED, max_timestamp_ms=5, max_timestamp_offset=20, finished_max_timestamp_ms=LONGEST
    ),
    partition_row("finished-not-served", finished_max_timestamp_ms=4),
]


def test_kinds_of_partitions_missing_in_the_sample_are_answered_as_by_a_scan(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing tiered, no log start, no lineage, no timestamps, two incarnations."""
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    warehouse.append(PARTITION_METADATA, warehouse.local(PARTITION_METADATA, ODD_PARTITIONS))
    topics = sorted({str(row["topic"]) for row in ODD_PARTITIONS})
    times = (*SpecialTimestamp, 0, 4, 5, 6, LONGEST)
    asked = [
        Request(
            topic=topic,
            partition=0,
            timestamp_ms=timestamp_ms,
            current_leader_epoch=epoch,
            isolation_level=level,
            version=version,
        )
        for topic, timestamp_ms, epoch, level, version in itertools.product(
            topics, times, (-1, 8, 9, 10), ISOLATION_LEVELS[:2], (3, 4, 11)
        )
    ]
    answers = compare_under_lateral(warehouse, asked)
    answered = {
        (request.topic, request.timestamp_ms): answer
        for request, answer in zip(asked, answers, strict=True)
        if request == Request(topic=request.topic, partition=0, timestamp_ms=request.timestamp_ms)
    }
    none, local = ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED
    assert answered["nothing-known", -2] == (local, None, None, None, Route.METADATA, 0)
    assert answered["nothing-tiered", 0] == (local, None, None, None, Route.REMOTE_THEN_LOCAL, 17)
    assert answered["nothing-tiered", -2] == (none, 17, None, 4, Route.METADATA, None)
    assert answered["nothing-tiered", -3] == (local, None, None, None, Route.REMOTE_THEN_LOCAL, 17)
    assert answered["nothing-tiered", -5] == (none, None, None, None, Route.METADATA, None)
    assert answered["nothing-tiered", -6] == (local, None, None, None, Route.METADATA, 17)
    assert answered["no-log-start", -2] == (none, 12, None, 4, Route.METADATA, None)
    assert answered["no-lineage", -5] == (none, 29, None, None, Route.METADATA, None)
    assert answered["before-lineage", -2] == (none, 3, None, None, Route.METADATA, None)
    assert answered["not-decoded", -3] == (ErrorCode.NOT_DECODED, None, None, None, Route.REMOTE_THEN_LOCAL, 30)
    assert answered["log-start-behind", -6] == (none, 40, None, 9, Route.METADATA, None)
    assert answered["open-later", -3] == (none, 20, 5, 9, Route.REMOTE_THEN_LOCAL, 30)
    assert answered["open-later", 6] == (local, None, None, None, Route.LOCAL_ONLY, 30)
    assert answered["gone", 6][0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answered["twice", -5] == (none, 29, None, 9, Route.METADATA, None)
    both = Route.REMOTE_THEN_LOCAL
    later = [answered["finished-later", each][4] for each in (5, 6, LONGEST)]
    assert later == [both, both, Route.LOCAL_ONLY], "segments that are not served hold times up to 6"
    assert answered["finished-later", -3] == (none, 20, 5, 9, both, 30), "the largest that is served"
    assert answered["finished-unknown", LONGEST] == (local, None, None, None, both, 30)
    unserved = [answered["finished-not-served", each][4] for each in (4, 5)]
    assert unserved == [both, Route.LOCAL_ONLY]
    by_sql = {where: (route and route.value, start) for where, (*_, route, start) in answered.items()}
    with OffsetReader(warehouse.uri) as reader:
        rows = reader.list_offsets([(topic, 0, timestamp_ms) for topic, timestamp_ms in by_sql])
        assert [(row["route"], row["local_start_offset"]) for row in rows] == list(by_sql.values())
    shown = spark.sql(
        "SELECT * FROM VALUES ('twice'), ('gone'), ('nothing-tiered') AS q(topic), LATERAL "
        "latest_tiered_offset(q.topic, 0)"
    )
    assert sorted(map(tuple, shown.collect())) == [
        ("gone", None, None, None),
        ("nothing-tiered", None, None, None),
        ("twice", 29, 9, None),
    ]


def test_answer_in_a_segment_at_batch_depth_is_not_decoded(spark: SparkSession, written_uri: str) -> None:
    """A decoded segment after it answers independently."""
    attach_warehouse(spark, written_uri)
    view_of(
        spark, [Request(topic="shallow", partition=0, timestamp_ms=time) for time in (0, 200, 201, 300, 301, -3, -2)]
    )
    answers = answers_of(spark.sql(LATERAL))
    assert [(error, offset) for error, offset, *_ in answers] == [
        (ErrorCode.NOT_DECODED, None),
        (ErrorCode.NOT_DECODED, None),
        (ErrorCode.NONE, 30),
        (ErrorCode.NONE, 30),
        (ErrorCode.LOCAL_REQUIRED, None),
        (ErrorCode.NONE, 30),
        (ErrorCode.NONE, 0),
    ]
    assert {route for *_, route, _ in answers[:4]} == {Route.REMOTE_THEN_LOCAL}


@pytest.mark.usefixtures("users_plans")
def test_every_answer_of_the_archive_equals_the_brokers(golden: Warehouse) -> None:
    attach_warehouse(golden.spark, golden.uri)
    queries = golden_queries()
    levels = {"read_uncommitted": "ru", "read_committed": "rc"}
    view_of(golden.spark, [_request_of(query, level) for level in levels for query in queries])
    answers = golden.spark.sql(LATERAL).toArrow().sort_by("number").to_pylist()
    assert len(answers) == 2 * len(queries)
    for number, (level, key) in enumerate(levels.items()):
        rows = answers[number * len(queries) : (number + 1) * len(queries)]
        found = [(query, row) for query, row in zip(queries, rows, strict=True) if row["error"] == "NONE"]
        elsewhere = {row["error"] for query, row in zip(queries, rows, strict=True) if row["error"] != "NONE"}
        wrong = [
            (query, row)
            for query, row in found
            if not is_true_answer({**query, "ru": query[key]}, row, broker_compatible=False)
        ]
        assert wrong == []
        if level == "read_uncommitted":
            assert elsewhere == {"LOCAL_REQUIRED", "UNKNOWN_TOPIC_OR_PARTITION"}
            assert [id(query) for query, _ in found] == [id(query) for query in queries if _is_archived(query)]
        else:
            assert elsewhere == {"LOCAL_REQUIRED", "UNKNOWN_TOPIC_OR_PARTITION", "OPEN_TRANSACTION"}
        assert len(found) > 6000


def _request_of(query: dict[str, object], isolation_level: str) -> Request:
    return Request(
        topic=str(query["topic"]),
        partition=int(str(query["partition"])),
        timestamp_ms=int(str(query["ts"])),
        isolation_level=isolation_level,
    )


def _is_archived(query: dict[str, object]) -> bool:
    """True if the archive has the record by the broker or, if the broker skips it, by a scan."""
    scan = query.get("scan")
    return scan["offset"] is not None if isinstance(scan, dict) else bool(query["archive"])


SHORT_FUNCTIONS = ("max_timestamp", "earliest_offset", "latest_tiered_offset")


@pytest.mark.parametrize("name", ["golden", "golden_with_events"])
def test_short_functions_under_lateral_return_one_row_per_request_as_in_the_tables(
    name: str, request: pytest.FixtureRequest
) -> None:
    warehouse: Warehouse = request.getfixturevalue(name)
    spark = warehouse.spark
    attach_warehouse(spark, warehouse.uri)
    partitions = archived_partitions(warehouse)
    keys = [*partitions, ("no such", 0), ("orders", 9), *partitions]
    view_of(spark, [Request(topic=topic, partition=partition, timestamp_ms=None) for topic, partition in keys])
    for function in SHORT_FUNCTIONS:
        rows = spark.sql(
            f"SELECT q.number, o.* FROM list_offsets_requests q, LATERAL {function}(q.topic, q.partition) o"
        ).collect()
        expected = [(number, *_short_answer(function, partitions.get(key))) for number, key in enumerate(keys)]
        assert sorted(map(tuple, rows)) == expected


def _short_answer(function: str, partition: ArchivedPartition | None) -> tuple[object, ...]:
    if function == "max_timestamp":
        if partition is None:
            return None, None, None
        return partition.max_timestamp_ms, partition.max_timestamp_offset, True
    if function == "earliest_offset":
        return (None,) * 3 if partition is None else (partition.start, partition.leader_epoch_at(partition.start), True)
    if partition is None:
        return (None,) * 3
    return partition.latest_tiered_offset, partition.leader_epoch_at(partition.latest_tiered_offset), True


def _calls_in_other_ways(spark: SparkSession, timestamp_ms: int) -> list[DataFrame]:
    return [
        spark.sql("SELECT * FROM list_offsets(:t, :p, :ms)", args={"t": "orders", "p": 0, "ms": timestamp_ms}),
        spark.sql("SELECT * FROM list_offsets(?, ?, ?)", args=["orders", 0, timestamp_ms]),
        spark.sql(f"SELECT * FROM list_offsets(topic => 'orders', timestamp_ms => {timestamp_ms}, partition => 0)"),
        spark.sql(f"SELECT o.* FROM VALUES ('orders') AS q(topic), LATERAL list_offsets(q.topic, 0, {timestamp_ms}) o"),
    ]


def test_constants_and_parameters_return_the_same_as_lateral(golden: Warehouse) -> None:
    attach_warehouse(golden.spark, golden.uri)
    sql = golden.spark.sql
    partitions = archived_partitions(golden)
    for timestamp_ms in (0, 1_700_042_400_000, -2, -3, -9):
        request = Request(topic="orders", partition=0, timestamp_ms=timestamp_ms)
        error, *rest = expected_answer(request, partitions["orders", 0])
        calls = [sql(f"SELECT * FROM list_offsets('orders', 0, {timestamp_ms})")]
        if timestamp_ms == 1_700_042_400_000:
            calls += _calls_in_other_ways(golden.spark, timestamp_ms)
        for call in calls:
            is_exact = True if error is ErrorCode.NONE else None
            assert [tuple(row) for row in call.collect()] == [(error.value, error.name, *rest, is_exact, None, None)]
    fenced = sql("SELECT error FROM list_offsets('payments', 0, 0, current_leader_epoch => 1)").collect()
    assert [row["error"] for row in fenced] == ["FENCED_LEADER_EPOCH"]
    old = sql("SELECT error, offset, leader_epoch FROM list_offsets('payments', 0, 0, 1, version => 3)").collect()
    assert [tuple(row) for row in old] == [("NONE", 0, None)]


@pytest.mark.usefixtures("users_plans")
def test_max_timestamp_reads_rows_of_one_file_of_partition_metadata_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    for topic in ("a", "b", "c", "d"):
        rows = [partition_row(topic, **SERVED, partition=number, max_timestamp_ms=number) for number in range(5)]
        warehouse.append(PARTITION_METADATA, warehouse.local(PARTITION_METADATA, rows).coalesce(1))
    attach_warehouse(spark, warehouse.uri)
    answer = spark.sql("SELECT * FROM max_timestamp('c', 3)")
    assert [tuple(row) for row in answer.collect()] == [(3, None, None)]
    (scan,) = scans_of(answer)
    assert (scan.table, scan.row_count) == ("partition_metadata", 5)


@pytest.mark.usefixtures("users_plans")
def test_requests_are_the_broadcast_side_of_each_join(golden: Warehouse) -> None:
    """Otherwise a table of a hundred million stairs would be broadcast. A stair is joined only through its batch."""
    attach_warehouse(golden.spark, golden.uri)
    view_of(golden.spark, [Request(topic="orders", partition=0, timestamp_ms=time) for time in range(1000)])
    for function in ("list_offsets", "offset_for_timestamp"):
        answer = golden.spark.sql(
            "SELECT q.number, o.* FROM list_offsets_requests q, "
            f"LATERAL {function}(q.topic, q.partition, q.timestamp_ms) o"
        )
        assert len(answer.collect()) == 1000
        scans = scans_of(answer)
        assert {scan.table for scan in scans} == {"partition_metadata", "segments", "offset_index", "time_index"}
        assert {scan.table for scan in scans if scan.is_broadcast} <= {"partition_metadata"}
        (stairs,) = [scan for scan in scans if scan.table == "time_index"]
        assert "batch_base_offset" in stairs.join
        (batches,) = [scan for scan in scans if scan.table == "offset_index"]
        assert "segment_id" in batches.join
