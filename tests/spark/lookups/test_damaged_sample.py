"""The sample archive with damaged files: every answer is the broker's, or says that it is not exact.

`make test-damage SEED=7` runs it with another seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from coldlog.lookups.list_offsets import LookupOptions
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.model.states import OnGap
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from damaged_sample import write_damaged_sample
from golden_warehouse import golden_partitions, golden_queries, is_true_answer, run_pipeline
from kafka_sample import KAFKA_SAMPLE

SEED = int(os.environ.get("SEED", "1"))
Row = dict[str, object]


@pytest.fixture(scope="module")
def damaged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    folder = tmp_path_factory.mktemp("damaged")
    write_damaged_sample(folder / "archive", SEED)
    return run_pipeline(spark, folder / "archive", folder / "warehouse", metadata=KAFKA_SAMPLE / "rlmm")


@pytest.fixture(scope="module")
def reader(damaged: Warehouse) -> Iterator[OffsetReader]:
    with OffsetReader(damaged.uri) as opened:
        yield opened


@pytest.fixture(scope="module")
def answered(reader: OffsetReader) -> list[tuple[Row, Row]]:
    """Every question of the truth, with its answer."""
    queries = golden_queries()
    answers = reader.list_offsets([(query["topic"], query["partition"], query["ts"]) for query in queries])
    return list(zip(queries, answers, strict=True))


def test_answers_are_those_of_the_broker_or_say_that_they_are_not_exact(
    damaged: Warehouse, answered: list[tuple[Row, Row]]
) -> None:
    segments = damaged.read(SEGMENTS)
    assert segments.where("index_status = 'quarantined'").count() > 30, "the damages were found"
    without_index = segments.where("size(damaged_files) > 0").count()
    reported = damaged.read(DISCREPANCIES).where("kind = 'index_file_damaged'").count()
    assert reported == without_index > 10, "an index is not missed"
    silent = [pair for pair in answered if pair[1]["is_exact"] and not is_true_answer(*pair, broker_compatible=False)]
    assert silent == []
    doubted = [pair for pair in answered if pair[1]["is_exact"] is False]
    wrong = [pair for pair in doubted if not is_true_answer(*pair, broker_compatible=False)]
    assert len(wrong) > 100, "the damages matter"
    # A doubt costs the user a second look: the bound of a lost segment is what the broker announced.
    assert len(doubted) < 2 * len(wrong)
    unknown = [answer["is_exact"] for _, answer in answered if answer["error"] == "UNKNOWN_TOPIC_OR_PARTITION"]
    assert [answer["is_exact"] for _, answer in answered].count(None) == len(unknown) < 100, "never archived"


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
