"""Test that the job lookup_offsets reads every form of requests and writes every form of answers, and that its answers
are those of a real broker for the sample archive."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from lookup_jobs import Told, read_answers, run_list_offsets, run_lookup_offsets
from worlds.golden_warehouse import golden_partitions, golden_queries, is_true_answer

ANSWER_COLUMNS = [
    "topic", "partition", "timestamp_ms", "offset", "offset_timestamp_ms", "leader_epoch", "error", "is_exact",
    "passed_over_from_offset", "passed_over_to_offset",
]  # fmt: skip
CUT = "records-deleted"
"""Three partitions; each log begins at another offset, which DeleteRecords moved."""
CLOCK, BETWEEN_ENDS_MS = "append-clock", 1795226834834
"""Partition 0 is archived up to an earlier time than that one, partition 1 beyond it."""
ORDERS, PRECISE_MS = "orders", 1700000550187
"""A record of partition 0 has that very time; a millisecond later the answer is another."""
Row = dict[str, Any]


Ask = Callable[..., Told]


@pytest.fixture
def ask(spark: SparkSession, golden_uri: str) -> Ask:
    """Run the job with these options over the sample's tables, without the archive, which it must not need."""

    def run(*options: object) -> Told:
        return run_lookup_offsets(spark, [str(option) for option in options], f"warehouse.uri={golden_uri}")

    return run


def truths_of(topic: str, timestamp_ms: int) -> list[Row]:
    """Return the broker's answers for each partition at that time."""
    found = [each for each in golden_queries() if (each["topic"], each["ts"]) == (topic, timestamp_ms)]
    assert found
    return sorted(found, key=lambda each: int(str(each["partition"])))


def assert_true(answers: list[Row], truths: list[Row]) -> None:
    asked = [(each["topic"], each["partition"], each["ts"]) for each in truths]
    assert [(each["topic"], each["partition"], each["timestamp_ms"]) for each in answers] == asked
    wrong = [pair for pair in zip(truths, answers, strict=True) if not is_true_answer(*pair, broker_compatible=False)]
    assert wrong == []


def shown(results: str) -> list[Row]:
    """Return the rows of the printed table as text, by column."""
    headers, rule, *lines = results.splitlines()
    edges, at = [], 0
    for dashes in rule.split():
        edges.append(slice(at, at + len(dashes)))
        at += len(dashes) + 2
    return [{headers[edge].strip(): line[edge].strip() for edge in edges} for line in lines]


def moment(timestamp_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)


def in_utc(timestamp_ms: int) -> str:
    return moment(timestamp_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def in_nepal(timestamp_ms: int) -> str:
    zone = timezone(timedelta(hours=5, minutes=45))
    return moment(timestamp_ms).astimezone(zone).isoformat(timespec="milliseconds")


def without_zone(timestamp_ms: int) -> str:
    return in_utc(timestamp_ms).replace("T", " ").removesuffix("Z")


@pytest.mark.parametrize("as_text", [str, in_utc, in_nepal, without_zone])
def test_one_partition_is_asked_with_every_form_of_a_time(
    ask: Ask, tmp_path: Path, as_text: Callable[[int], str]
) -> None:
    (truth,) = truths_of(ORDERS, PRECISE_MS)
    asked = as_text(PRECISE_MS)
    printed = ask("--topic", ORDERS, "--partition", 0, "--timestamp", asked, "--output", tmp_path / "answer")
    answers = read_answers(tmp_path / "answer")
    assert [list(each) for each in answers] == [ANSWER_COLUMNS]
    assert_true(answers, [truth])
    assert answers[0]["offset_timestamp_ms"] == PRECISE_MS
    assert printed.results == ""
    assert "1 found, 0 later than the archive" in printed.progress


def test_without_a_partition_all_partitions_of_the_topic_are_asked(ask: Ask, tmp_path: Path) -> None:
    for topic, timestamp_ms, places in ((CUT, 0, [0, 1, 2]), (CLOCK, BETWEEN_ENDS_MS, [0, 1])):
        ask("--topic", topic, "--timestamp", timestamp_ms, "--output", tmp_path / topic)
        answers = read_answers(tmp_path / topic)
        assert [each["partition"] for each in answers] == places
        assert_true(answers, truths_of(topic, timestamp_ms))
    assert [each["offset"] for each in read_answers(tmp_path / CUT)] == [1225, 1045, 2574]
    assert [each["offset"] for each in read_answers(tmp_path / CLOCK)] == [None, 4694]
    assert {each["error"] for each in read_answers(tmp_path / CLOCK)} == {None}, "later than the archive is no error"


@pytest.mark.parametrize("name", ["earliest", "latest-tiered"])
def test_special_timestamps_are_given_by_name(ask: Ask, name: str) -> None:
    rows = shown(ask("--topic", CUT, "--timestamp", name).results)
    truths = [each for each in golden_partitions() if each["topic"] == CUT]
    broker_answers: list[Row] = [each[f"{name.replace('-', '_')}_ru"] for each in truths]  # type: ignore[misc]
    assert [(row["asked"], row["partition"], row["offset"], row["leader epoch"]) for row in rows] == [
        (name, str(truth["partition"]), str(answer["offset"]), str(answer["epoch"]))
        for truth, answer in zip(truths, broker_answers, strict=True)
    ]


def test_answers_are_printed_as_a_table(ask: Ask) -> None:
    printed = ask("--topic", CLOCK, "--timestamp", in_utc(BETWEEN_ENDS_MS))
    first, second = shown(printed.results)
    _, truth = truths_of(CLOCK, BETWEEN_ENDS_MS)
    asked = {"topic": CLOCK, "asked": in_utc(BETWEEN_ENDS_MS)}
    nothing = {"offset": "", "timestamp": "", "leader epoch": "", "error": "none: later than the archive"}
    assert first == {**asked, "partition": "0", **nothing}
    found = {"offset": "4694", "timestamp": in_utc(truth["ru"]["ts"]), "leader epoch": str(truth["ru"]["epoch"])}
    assert second == {**asked, "partition": "1", **found, "error": ""}
    assert "1 found, 1 later than the archive" in printed.progress


def test_long_answers_are_cut_and_the_number_of_missing_rows_is_printed(ask: Ask, tmp_path: Path) -> None:
    queries = golden_queries()[:150]
    write_lines(tmp_path / "asked.jsonl", queries)
    *table, last = ask("--requests", tmp_path / "asked.jsonl").results.splitlines()
    rows = shown("\n".join(table))
    assert [(row["topic"], row["partition"]) for row in rows] == [
        (q["topic"], str(q["partition"])) for q in queries[:100]
    ]
    assert last == "... and 50 more; --output FILE writes them all"


def test_unknown_topic_is_refused_and_an_unknown_partition_has_an_error(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not know the topic 'order'"):
        ask("--topic", "order", "--timestamp", 0, "--output", tmp_path / "answers")
    assert list(tmp_path.iterdir()) == []
    for topic, partition in (("order", 0), ("orders", 99)):
        printed = ask("--topic", topic, "--partition", partition, "--timestamp", 0)
        (row,) = shown(printed.results)
        assert (row["topic"], row["partition"], row["offset"]) == (topic, str(partition), "")
        assert row["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
        assert "0 found, 0 later than the archive, 1 UNKNOWN_TOPIC_OR_PARTITION" in printed.progress


def write_lines(path: Path, queries: list[Row]) -> None:
    """Write requests as JSON lines, with an additional column."""
    asked = [
        {"ticket": number, "topic": each["topic"], "partition": each["partition"], "timestamp_ms": each["ts"]}
        for number, each in enumerate(queries)
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in asked), encoding="utf-8")


def test_requests_in_json_lines_are_answered_in_their_order(ask: Ask, tmp_path: Path) -> None:
    queries = golden_queries()[::-13]
    write_lines(tmp_path / "asked.jsonl", [*queries, queries[0]])
    ask("--requests", tmp_path / "asked.jsonl", "--output", tmp_path / "answers.jsonl")
    assert_true(read_answers(tmp_path / "answers.jsonl"), [*queries, queries[0]])


def test_requests_in_a_delta_table_are_answered_whatever_the_name_of_its_folder(
    ask: Ask, spark: SparkSession, tmp_path: Path
) -> None:
    queries = golden_queries()[::13]
    rows = [(each["topic"], each["partition"], each["ts"], "INC-1") for each in queries]
    asked = spark.createDataFrame(rows, "topic STRING, partition BIGINT, timestamp_ms BIGINT, ticket STRING")
    asked.repartition(3).write.format("delta").save(str(tmp_path / "asked.jsonl"))
    ask("--requests", tmp_path / "asked.jsonl", "--output", tmp_path / "answers.jsonl")
    answers = read_answers(tmp_path / "answers.jsonl")
    # Rows of a table have no order.
    by_place = sorted(answers, key=lambda each: (each["topic"], each["partition"], each["timestamp_ms"]))
    assert_true(by_place, sorted(queries, key=lambda each: (each["topic"], each["partition"], each["ts"])))


def test_a_delta_table_without_requests_is_told(ask: Ask, spark: SparkSession, tmp_path: Path) -> None:
    asked = spark.createDataFrame([], "topic STRING, partition INT, timestamp_ms BIGINT")
    asked.write.format("delta").save(str(tmp_path / "asked"))
    printed = ask("--requests", tmp_path / "asked", "--output", tmp_path / "answers.jsonl")
    assert (tmp_path / "answers.jsonl").read_bytes() == b""
    assert f"{tmp_path / 'asked'}: no requests, so there are no answers\n" in printed.progress


def test_requests_and_a_topic_together_are_refused(ask: Ask) -> None:
    for option, value in (("--topic", "orders"), ("--timestamp", "0"), ("--partition", "0")):
        with pytest.raises(UsageError, match="give --requests, or --topic with --timestamp, not both"):
            ask("--requests", "asked.jsonl", option, value)


def rows_of(table: DeltaTable) -> list[Row]:
    rows: list[Row] = table.to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda each: int(each["partition"]))


def test_answers_in_a_delta_table_are_only_those_of_the_last_run(ask: Ask, tmp_path: Path) -> None:
    place = tmp_path / "made for it" / "answers"
    for timestamp_ms in (0, 1):
        ask("--topic", CUT, "--timestamp", timestamp_ms, "--output-table", place, "--output", tmp_path / "lines")
        table = DeltaTable(str(place))
        assert [field.name for field in table.schema().fields] == ANSWER_COLUMNS
        assert rows_of(table) == read_answers(tmp_path / "lines")
        assert_true(rows_of(table), truths_of(CUT, timestamp_ms))
    assert table.version() == 1
    assert_true(rows_of(DeltaTable(str(place), version=0)), truths_of(CUT, 0))


def test_answers_replace_those_of_list_offsets_and_their_columns(
    ask: Ask, spark: SparkSession, golden_uri: str, tmp_path: Path
) -> None:
    place = tmp_path / "answers"
    asked = ["--topic", CUT, "--timestamp", "0", "--output-table", str(place)]
    run_list_offsets(spark, asked, f"warehouse.uri={golden_uri}", "remote.list.offsets.request.timeout.ms=300000")
    assert "error_code" in {field.name for field in DeltaTable(str(place)).schema().fields}
    ask(*asked)
    assert [field.name for field in DeltaTable(str(place)).schema().fields] == ANSWER_COLUMNS
    assert_true(rows_of(DeltaTable(str(place))), truths_of(CUT, 0))


def test_starting_offsets_are_accepted_by_sparks_kafka_source(ask: Ask, tmp_path: Path) -> None:
    asked = ("--topic", CLOCK, "--timestamp", BETWEEN_ENDS_MS)
    (end,) = [each["archive_end"] for each in golden_partitions() if (each["topic"], each["partition"]) == (CLOCK, 0)]
    expected = {CLOCK: {"0": int(str(end)) + 1, "1": 4694}}
    printed = ask(*asked, "--starting-offsets", "-")
    assert printed.results == json.dumps(expected) + "\n", "only the JSON is printed, because it may go into a pipe"
    path = tmp_path / "offsets.json"
    written = ask(*asked, "--starting-offsets", path, "--output", tmp_path / "lines")
    assert path.read_text(encoding="utf-8") == printed.results
    assert written.results == ""
    assert_true(read_answers(tmp_path / "lines"), truths_of(CLOCK, BETWEEN_ENDS_MS))


def test_starting_offsets_begin_before_records_that_only_the_broker_has(ask: Ask, tmp_path: Path) -> None:
    """If no archived record is late enough, later records must not be lost, and archived ones not repeated."""
    ends = {(each["topic"], each["partition"]): int(str(each["archive_end"])) for each in golden_partitions()}
    not_archived = [each for each in golden_queries() if not each["archive"] and "scan" not in each and each["ru"]]
    by_place = {(each["topic"], each["partition"]): each for each in not_archived if ends[_place(each)] >= 0}
    assert len(by_place) > 10
    write_lines(tmp_path / "asked.jsonl", list(by_place.values()))
    ask("--requests", tmp_path / "asked.jsonl", "--starting-offsets", tmp_path / "offsets.json")
    offsets = json.loads((tmp_path / "offsets.json").read_text(encoding="utf-8"))
    starts = {(topic, int(partition)): start for topic, own in offsets.items() for partition, start in own.items()}
    assert starts == {place: ends[place] + 1 for place in by_place}
    assert all(starts[place] <= truth["ru"]["offset"] for place, truth in by_place.items())  # type: ignore[index]


def _place(truth: Row) -> tuple[Any, Any]:
    return truth["topic"], truth["partition"]


def test_incomplete_starting_offsets_are_not_written(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    with pytest.raises(UsageError, match="no starting offset for orders-99: UNKNOWN_TOPIC_OR_PARTITION"):
        ask("--topic", "orders", "--partition", 99, "--timestamp", 0, "--starting-offsets", path)
    write_lines(tmp_path / "asked.jsonl", [{"topic": "orders", "partition": 0, "ts": each} for each in (0, 1)])
    with pytest.raises(UsageError, match="orders-0 is asked for twice; starting offsets need one timestamp"):
        ask("--requests", tmp_path / "asked.jsonl", "--starting-offsets", path)
    assert not path.exists()
