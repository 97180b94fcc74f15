"""The sample archive with damaged files: every answer is the broker's, or says that it is not exact.

`make test-damage SEED=7` runs it with another seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.lookups.list_offsets import LookupOptions
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.model.states import IsolationLevel, OnGap
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.record_rows import as_truth, consumed, of_truth, read
from damage.damaged_sample import write_damaged_sample
from worlds.golden_warehouse import golden_partitions, golden_queries, is_true_answer, run_pipeline
from worlds.kafka_sample import KAFKA_SAMPLE

SEED = int(os.environ.get("SEED", "1"))
Row = dict[str, object]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "archive"
    write_damaged_sample(folder, SEED)
    return folder


@pytest.fixture(scope="module")
def damaged(spark: SparkSession, archive: Path) -> Warehouse:
    return run_pipeline(spark, archive, archive.parent / "warehouse", metadata=KAFKA_SAMPLE / "rlmm")


@pytest.fixture(scope="module")
def reader(damaged: Warehouse) -> Iterator[OffsetReader]:
    with OffsetReader(damaged.uri) as opened:
        yield opened


@pytest.fixture(scope="module")
def start_unknown(damaged: Warehouse) -> set[tuple[object, object]]:
    """Partitions whose newest leader epoch checkpoint is damaged: every answer there is in doubt."""
    rows = damaged.read(PARTITION_METADATA).where("log_start_source = 'checkpoint_lost'").collect()
    return {(row["topic"], row["partition"]) for row in rows}


@pytest.fixture(scope="module")
def answered(reader: OffsetReader) -> list[tuple[Row, Row]]:
    """Every question of the truth, with its answer."""
    queries = golden_queries()
    answers = reader.list_offsets([(query["topic"], query["partition"], query["ts"]) for query in queries])
    return list(zip(queries, answers, strict=True))


def test_answers_are_those_of_the_broker_or_say_that_they_are_not_exact(
    damaged: Warehouse, answered: list[tuple[Row, Row]], start_unknown: set[tuple[object, object]]
) -> None:
    segments = damaged.read(SEGMENTS)
    counts = {row["kind"]: row["count"] for row in damaged.read(DISCREPANCIES).groupBy("kind").count().collect()}
    with_holes, with_damage = segments.where("holes IS NOT NULL"), segments.where("size(damaged_files) > 0")
    assert counts["log_damaged"] == with_holes.count() > 30, "the damages were found"
    assert counts["side_file_damaged"] == with_damage.where("holes IS NULL").count() > 10, "a file is not missed"
    assert segments.where("index_status = 'quarantined'").count() < with_holes.count() / 3, "the rest is served"
    silent = [pair for pair in answered if pair[1]["is_exact"] and not is_true_answer(*pair, broker_compatible=False)]
    assert silent == []
    doubted = [pair for pair in answered if pair[1]["is_exact"] is False]
    wrong = [pair for pair in doubted if not is_true_answer(*pair, broker_compatible=False)]
    assert len(wrong) > 100, "the damages matter"
    # A doubt costs the user a second look: the bound of a hole is from the time index, or what the broker announced.
    without_reason = [
        query
        for query, answer in doubted
        if is_true_answer(query, answer, broker_compatible=False) and place_of(query) not in start_unknown
    ]
    assert len(without_reason) < 3 * len(wrong)
    unknown = [answer["is_exact"] for _, answer in answered if answer["error"] == "UNKNOWN_TOPIC_OR_PARTITION"]
    assert [answer["is_exact"] for _, answer in answered].count(None) == len(unknown) < 100, "never archived"


def place_of(row: Row) -> tuple[object, object]:
    return row["topic"], row["partition"]


def test_earliest_offsets_are_those_of_the_broker_or_not_exact(
    reader: OffsetReader, start_unknown: set[tuple[object, object]]
) -> None:
    asked = [(row["topic"], row["partition"], SpecialTimestamp.EARLIEST) for row in golden_partitions()]
    answers = reader.list_offsets(asked)
    known = {place_of(answer): answer["offset"] for answer in answers if answer["is_exact"]}
    truth = {place_of(row): row["log_start"] for row in golden_partitions()}
    assert known == {place: truth[place] for place in known}
    assert truth.keys() - known.keys() == {
        place_of(answer) for answer in answers if answer["is_exact"] is False or answer["error"] != "NONE"
    }
    assert start_unknown <= {place_of(answer) for answer in answers if answer["is_exact"] is False}


def test_wrong_answers_are_those_whose_true_record_is_lost(
    damaged: Warehouse, answered: list[tuple[Row, Row]], start_unknown: set[tuple[object, object]]
) -> None:
    """Or deleted, where the log's start is not known."""
    first = {place_of(row): int(str(row["log_start"])) for row in golden_partitions()}
    lost = lost_offsets(damaged)
    wrong = [pair for pair in answered if not is_true_answer(*pair, broker_compatible=False)]
    sound = [
        (query, answer)
        for query, answer in wrong
        if not is_lost(true_offset(query), lost.get((str(query["topic"]), int(str(query["partition"]))), []))
        and not (place_of(query) in start_unknown and is_below(answer["offset"], first[place_of(query)]))
    ]
    assert sound == []


def test_records_are_exactly_the_sound_ones(
    damaged: Warehouse, archive: Path, start_unknown: set[tuple[object, object]]
) -> None:
    """And deleted ones, where the log's start is not known."""
    lost, compared, missing = lost_offsets(damaged), 0, 0
    for each in golden_partitions():
        topic, partition = str(each["topic"]), int(str(each["partition"]))
        place = (topic, partition)
        if int(str(each["archive_end"])) < int(str(each["log_start"])) or place == ("edge-times", 2):
            continue
        truths = list(consumed(topic, partition))
        for level in IsolationLevel:
            options = {"assign": f'{{"{topic}":[{partition}]}}', "kafka_isolation_level": level.value}
            rows = read(damaged, archive, **options, includeHeaders=True, failOnDataLoss=False).rows.to_pylist()
            if place in start_unknown:
                rows = [row for row in rows if row["offset"] >= int(str(each["log_start"]))]
            is_committed = level is IsolationLevel.READ_COMMITTED
            wanted = [each for each in truths if each["rc"] or not is_committed]
            found = {row["offset"] for row in rows}
            sound = [each for each in wanted if each["o"] in found]
            assert as_truth(rows, sound) == of_truth(sound), (place, level)
            unseen = [each["o"] for each in wanted if each["o"] not in found]
            if not is_committed:
                assert [offset for offset in unseen if not is_lost(offset, lost.get(place, []))] == [], place
                missing += len(unseen)
        compared += len(rows)
    assert compared > 5 * missing > 0


def lost_offsets(damaged: Warehouse) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """By partition: the holes, and what quarantined segments should have had, both ends inclusive."""
    rows = damaged.spark.sql(
        f"""SELECT topic, partition, hole.from_offset AS first, coalesce(hole.to_offset, announced_end_offset) AS last
        FROM (SELECT *, explode(holes) AS hole FROM delta.`{damaged.uri}/segments`)
        UNION ALL SELECT topic, partition, start_offset, announced_end_offset FROM delta.`{damaged.uri}/segments`
        WHERE index_status = 'quarantined'"""
    ).collect()
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["partition"]), []).append((row["first"], row["last"]))
    return found


def true_offset(query: Row) -> int:
    """By the exact rule, where it differs from the broker's."""
    true: Row = query.get("scan", query["ru"])  # type: ignore[assignment]
    return int(str(true["offset"]))


def is_below(offset: object, log_start: int) -> bool:
    return isinstance(offset, int) and offset < log_start


def is_lost(offset: int, ranges: list[tuple[int, int]]) -> bool:
    return any(first <= offset <= last for first, last in ranges)


def test_largest_timestamps_are_those_of_the_whole_archive_or_not_exact(
    reader: OffsetReader, golden_with_events_uri: str
) -> None:
    asked = [(row["topic"], row["partition"], SpecialTimestamp.MAX_TIMESTAMP) for row in golden_partitions()]
    answers = reader.list_offsets(asked)
    with OffsetReader(golden_with_events_uri) as whole:
        truth = whole.list_offsets(asked)
    pairs = list(zip(map(_found, answers), map(_found, truth), strict=True))
    exact = [pair for pair, answer in zip(pairs, answers, strict=True) if answer["is_exact"]]
    assert [pair for pair in exact if pair[0] != pair[1]] == []
    assert 0 < len(exact) < len(answers)


def _found(answer: Row) -> tuple[object, ...]:
    return answer["error"], answer["offset"], answer["offset_timestamp_ms"]


def test_sql_says_the_same_as_the_reader(
    spark: SparkSession, damaged: Warehouse, reader: OffsetReader, answered: list[tuple[Row, Row]]
) -> None:
    attach_warehouse(spark, damaged.uri)
    chosen = [pair[1] for pair in answered[::37]]
    places = {(row["topic"], row["partition"]) for row in chosen}
    chosen += reader.list_offsets([(*place, special) for place in sorted(places) for special in SpecialTimestamp])
    columns = ("topic", "partition", "timestamp_ms")
    rows = [(number, *(row[name] for name in columns)) for number, row in enumerate(chosen)]
    asked = spark.createDataFrame(rows, "number BIGINT, topic STRING, partition INT, timestamp_ms BIGINT")
    asked.createOrReplaceTempView("asked_of_damaged")
    given = spark.sql(
        "SELECT q.number, o.* FROM asked_of_damaged q, LATERAL list_offsets(q.topic, q.partition, q.timestamp_ms) o"
    )
    answers = sorted(given.toArrow().to_pylist(), key=lambda row: row["number"])
    assert len(answers) == len(chosen)
    different = [
        (row, answer) for row, answer in zip(chosen, answers, strict=True) if not row.items() >= _named(answer)
    ]
    assert different == []


def test_ends_of_the_archive_are_those_of_the_broker_or_not_exact(spark: SparkSession, damaged: Warehouse) -> None:
    special, truth = (
        int(SpecialTimestamp.LATEST_TIERED),
        {place_of(row): row["archive_end"] for row in golden_partitions()},
    )
    with OffsetReader(damaged.uri) as reader:
        answers = reader.list_offsets([(*place, special) for place in truth])
    ends = {place_of(answer): (answer["offset"], answer["is_exact"]) for answer in answers}
    exact = {place: offset for place, (offset, is_exact) in ends.items() if is_exact}
    assert exact == {place: truth[place] for place in exact}
    assert truth.keys() - exact.keys() == {place_of(each) for each in answers if not each["is_exact"]}
    # Not each seed damages the last batches of a log whose end no event announces, so all may be exact.
    assert exact
    attach_warehouse(spark, damaged.uri)
    columns = "q.topic, q.partition, f.offset, f.is_exact"
    for function in ("latest_tiered_offset(q.topic, q.partition)", f"list_offsets(q.topic, q.partition, {special})"):
        asked = spark.createDataFrame(list(truth), "topic STRING, partition INT")
        asked.createOrReplaceTempView("ends_asked")
        rows = spark.sql(f"SELECT {columns} FROM ends_asked q, LATERAL {function} f").collect()
        assert {(row[0], row[1]): (row[2], row[3]) for row in rows} == ends


def _named(answer: Row) -> set[tuple[str, object]]:
    return {(name, value) for name, value in answer.items() if name != "number"}


def test_answers_that_are_not_exact_can_be_refused(damaged: Warehouse, answered: list[tuple[Row, Row]]) -> None:
    chosen = answered[::11]
    with OffsetReader(damaged.uri, LookupOptions(on_gap=OnGap.REFUSE)) as strict:
        refused = strict.list_offsets([(query["topic"], query["partition"], query["ts"]) for query, _ in chosen])
    for (_, answer), row in zip(chosen, refused, strict=True):
        if answer["is_exact"] is False:
            assert (row["error"], row["offset"]) == (ErrorCode.ARCHIVE_INCOMPLETE.name, None)
            assert row["passed_over_from_offset"] == answer["passed_over_from_offset"] is not None
        else:
            assert row == answer
