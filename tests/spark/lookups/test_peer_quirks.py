"""Test that logs which other implementations answered wrongly are answered correctly in every interface."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.brute_force import FoundOffset, find_first_offset, find_first_offset_as_broker
from builders.log_directory_writer import HIGH_WATERMARKS, LOG_STARTS, write_offset_checkpoint, write_partition
from coldlog.archive.open_archive import open_archive
from coldlog.errors import UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.delta.warehouse import Warehouse
from lookup_jobs import read_answers, run_list_offsets, run_lookup_offsets
from peer_quirks import QUIRKS
from peer_quirks.model import Answer, Log, Question, Quirk
from worlds.golden_warehouse import build_settings, run_pipeline

DOCUMENT = Path(__file__).parents[3] / "docs" / "explanation" / "quirks.md"
LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
FOR_EACH_QUIRK = pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """The archive of all quirks with the brokers' log directory, and its warehouse at each depth."""

    folder: Path
    warehouses: dict[IndexDepth, Warehouse]

    def options(self, *, broker_compatible: bool = False, has_directory: bool = False) -> LookupOptions:
        open_layout = partial(open_archive, str(self.folder / "archive"), "local_tiered_storage")
        return LookupOptions(
            broker_compatible=broker_compatible,
            batches=BatchReader(open_layout=open_layout, limits=LIMITS),
            local=LogDirectoryTier(str(self.folder / "logs"), LIMITS) if has_directory else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about one quirk's log."""

    quirk: Quirk
    partition: int
    question: Question

    @property
    def request(self) -> dict[str, object]:
        """A row of the requests that the jobs and `OffsetReader` take."""
        question = self.question
        return {
            "topic": self.quirk.name,
            "partition": self.partition,
            "timestamp_ms": int(question.timestamp_ms),
            "current_leader_epoch": -1,
            "isolation_level": question.isolation_level,
            "timeout_ms": -1,
            "version": question.version,
            "request_id": question.request_id,
        }

    @property
    def is_plain(self) -> bool:
        """True if only topic, partition and timestamp are given."""
        return self.question == Question(self.question.timestamp_ms, *_answers_of(self.question))


def _answers_of(question: Question) -> tuple[Answer, Answer | None, Answer | None, Answer | None]:
    return question.archive, question.directory, question.archive_as_broker, question.directory_as_broker


def asked_of(*quirks: Quirk) -> list[Asked]:
    """Return all questions of these quirks."""
    return [
        Asked(quirk=quirk, partition=partition, question=question)
        for quirk in quirks
        for partition, log in enumerate(quirk.logs)
        for question in log.questions
    ]


def logs_of(*quirks: Quirk) -> Iterator[tuple[Quirk, int, Log]]:
    for quirk in quirks:
        for partition, log in enumerate(quirk.logs):
            yield quirk, partition, log


@pytest.fixture(scope="module")
def indexed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    folder = tmp_path_factory.mktemp("quirks")
    write_archive(
        folder / "archive",
        {
            TopicPartition(topic=quirk.name, partition=partition, topic_id=quirk.topic_id): log.archived
            for quirk, partition, log in logs_of(*QUIRKS)
            if log.archived
        },
    )
    write_log_directory(folder / "logs")
    log_starts = folder / "log_starts.csv"
    with log_starts.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["topic", "partition", "log_start_offset"])
        writer.writerows((quirk.name, partition, log.log_start_offset) for quirk, partition, log in logs_of(*QUIRKS))
    warehouses = {
        depth: run_pipeline(
            spark,
            folder / "archive",
            folder / depth.value,
            log_start_offsets=log_starts,
            settings=build_settings(depth),
        )
        for depth in IndexDepth
    }
    assert all(warehouse.read(QUARANTINE).isEmpty() for warehouse in warehouses.values())
    return Indexed(folder=folder, warehouses=warehouses)


def write_log_directory(directory: Path) -> None:
    """Write the log directory of a broker that leads every partition."""
    high_watermarks: dict[tuple[str, int], int] = {}
    log_starts: dict[tuple[str, int], int] = {}
    for quirk, partition, log in logs_of(*QUIRKS):
        if log.local_from is None:
            continue
        write_partition(directory, quirk.name, partition, log.segments, first=log.local_from, topic_id=quirk.topic_id)
        log_starts[quirk.name, partition] = log.log_start_offset
        if log.high_watermark is not None:
            high_watermarks[quirk.name, partition] = log.high_watermark
    write_offset_checkpoint(directory / HIGH_WATERMARKS, high_watermarks)
    write_offset_checkpoint(directory / LOG_STARTS, log_starts)


def answer_in(row: dict[str, object]) -> Answer:
    """Convert a row of list_offsets; an answer without an offset has no other fields of a record."""
    offset, *rest = (row[name] for name in ("offset", "offset_timestamp_ms", "leader_epoch"))
    if offset is None:
        assert rest == [None, None]
        return ErrorCode[str(row["error"])]
    assert row["error"] == "NONE"
    return offset, *rest  # type: ignore[return-value]  # integers


@FOR_EACH_QUIRK
def test_expected_answers_agree_with_a_scan_of_every_record(quirk: Quirk) -> None:
    """The answers written by hand are correct."""
    for each in asked_of(quirk):
        question, log = each.question, quirk.logs[each.partition]
        if question.timestamp_ms < 0 or not each.is_plain:
            continue
        for segments, has_directory in ((log.archived, False), (log.segments, True)):
            found = find_first_offset(segments, question.timestamp_ms, log_start_offset=log.log_start_offset)
            if found is not None and log.high_watermark is not None and found.offset >= log.high_watermark:
                found = None
            assert _found_in(question.answer(has_directory=has_directory, broker_compatible=False)) == found
        as_broker = find_first_offset_as_broker(
            log.archived, question.timestamp_ms, log_start_offset=log.log_start_offset
        )
        assert _found_in(question.answer(has_directory=False, broker_compatible=True)) == as_broker


def _found_in(answer: Answer) -> FoundOffset | None:
    if isinstance(answer, ErrorCode):
        return None
    offset, timestamp_ms, leader_epoch = answer
    assert timestamp_ms is not None
    assert leader_epoch is not None
    return FoundOffset(offset=offset, timestamp_ms=timestamp_ms, leader_epoch=leader_epoch)


@pytest.mark.parametrize("has_directory", [False, True], ids=["archive", "directory"])
@pytest.mark.parametrize("broker_compatible", [False, True], ids=["exact", "as-broker"])
@pytest.mark.parametrize("depth", IndexDepth)
@FOR_EACH_QUIRK
def test_reader_returns_the_right_answers(
    indexed: Indexed, quirk: Quirk, depth: IndexDepth, broker_compatible: bool, has_directory: bool
) -> None:
    options = indexed.options(broker_compatible=broker_compatible, has_directory=has_directory)
    asked = asked_of(quirk)
    with OffsetReader(indexed.warehouses[depth].uri, options) as reader:
        rows = reader.list_offsets(tuple(each.request.values()) for each in asked)
        for each, row in zip(asked, rows, strict=True):
            right = each.question.answer(has_directory=has_directory, broker_compatible=broker_compatible)
            assert answer_in(row) == right, each
            if each.is_plain:
                assert_single_answer(reader, each, right)


def assert_single_answer(reader: OffsetReader, asked: Asked, right: Answer) -> None:
    """Check the methods of `OffsetReader` that ask one question."""
    place, timestamp_ms = (asked.quirk.name, asked.partition), asked.question.timestamp_ms
    ask = reader.max_timestamp if timestamp_ms == SpecialTimestamp.MAX_TIMESTAMP else None
    if timestamp_ms >= 0:
        ask = partial(reader.offset_for_timestamp, timestamp_ms=timestamp_ms)
    if ask is None:
        return
    if right is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        with pytest.raises(UsageError, match="no partition"):
            ask(*place)
        return
    found = ask(*place)
    assert (found is None) == isinstance(right, ErrorCode)
    assert found is None or (found.offset, found.timestamp_ms, found.leader_epoch) == right


@pytest.fixture(scope="module")
def sql_rows(spark: SparkSession, indexed: Indexed) -> dict[str, list[dict[str, object]]]:
    """Return each SQL function's row for each question of all quirks, at record depth."""
    attach_warehouse(spark, indexed.warehouses[IndexDepth.RECORD].uri)
    rows = [{"number": number, **each.request} for number, each in enumerate(asked_of(*QUIRKS))]
    spark.createDataFrame(pa.Table.from_pylist(rows)).createOrReplaceTempView("peer_questions")
    calls = {
        "list_offsets": "q.topic, q.p, q.timestamp_ms, -1, q.isolation_level, q.version",
        "offset_for_timestamp": "q.topic, q.p, q.timestamp_ms",
        "max_timestamp": "q.topic, q.p",
    }
    return {
        function: spark.sql(
            f"SELECT o.* FROM (SELECT *, CAST(partition AS INT) AS p FROM peer_questions) q, "
            f"LATERAL {function}({arguments}) o ORDER BY q.number"
        )
        .toArrow()
        .to_pylist()
        for function, arguments in calls.items()
    }


@FOR_EACH_QUIRK
def test_sql_functions_return_the_right_answers(sql_rows: dict[str, list[dict[str, object]]], quirk: Quirk) -> None:
    """A function sees one request at a time, so it cannot detect a partition that is named twice."""
    for number, each in enumerate(asked_of(*QUIRKS)):
        if each.quirk is not quirk or each.question.request_id is not None:
            continue
        timestamp_ms, right = each.question.timestamp_ms, each.question.archive
        assert answer_in(sql_rows["list_offsets"][number]) == right, each
        if timestamp_ms >= 0 and each.is_plain:
            assert outcome_in(sql_rows["offset_for_timestamp"][number]) == right, each
        if timestamp_ms == SpecialTimestamp.MAX_TIMESTAMP and each.is_plain:
            offset, largest_ms, _ = right if isinstance(right, tuple) else (None, None, None)
            row = sql_rows["max_timestamp"][number]
            assert (row["max_timestamp_ms"], row["max_timestamp_offset"]) == (largest_ms, offset), each


def outcome_in(row: dict[str, object]) -> Answer:
    """Convert a row of offset_for_timestamp to the form of list_offsets."""
    outcome = {"LATER_THAN_ARCHIVE": "LOCAL_REQUIRED", "FOUND": "NONE"}.get(str(row["outcome"]), row["outcome"])
    return answer_in({**row, "error": outcome})


def test_job_list_offsets_returns_the_right_answers(indexed: Indexed) -> None:
    """The job reads batches of the archive, uses the broker's rule and asks the log directory."""
    asked = asked_of(*QUIRKS)
    settings = ("lookup.broker_compatible=true", f"list_offsets.log_directory={indexed.folder / 'logs'}")
    for each, row in zip(asked, answers_of_job(run_list_offsets, indexed, asked, *settings), strict=True):
        assert answer_in(row) == each.question.answer(has_directory=True, broker_compatible=True), each


def test_job_lookup_offsets_returns_the_right_answers(indexed: Indexed) -> None:
    asked = [each for each in asked_of(*QUIRKS) if each.question.timestamp_ms >= 0 and each.is_plain]
    for each, row in zip(asked, answers_of_job(run_lookup_offsets, indexed, asked), strict=True):
        error = "NONE" if row["offset"] is not None else row["error"] or "LOCAL_REQUIRED"
        assert answer_in({**row, "error": error}) == each.question.archive, each


def answers_of_job(
    run: Callable[..., object], indexed: Indexed, asked: Sequence[Asked], *settings: str
) -> list[dict[str, object]]:
    """The answers that a job writes, from the index at batch depth and the archive."""
    warehouse, folder = indexed.warehouses[IndexDepth.BATCH], indexed.folder
    requests, output = folder / "requests.jsonl", folder / "answers.jsonl"
    requests.write_text("".join(f"{json.dumps(each.request)}\n" for each in asked), encoding="utf-8")
    run(
        warehouse.spark,
        ["--requests", str(requests), "--output", str(output)],
        f"warehouse.uri={warehouse.uri}",
        f"archive.uri={folder / 'archive'}",
        "remote.list.offsets.request.timeout.ms=300000",
        *settings,
    )
    return read_answers(output)


def test_document_shows_every_quirk_as_it_is_tested() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| [")]
    assert rows == [quirk.document_row for quirk in QUIRKS]
