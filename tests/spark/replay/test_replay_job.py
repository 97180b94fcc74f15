"""Test the options of the job replay_topics and the line that it prints; test_replay.py tests the replay itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.launch.entry_point import job_argument_parser
from coldlog.records.source.options import read_options, source_defaults
from coldlog.replay.runs import replay_job
from coldlog.replay.runs.replay import ReplayOptions, ReplaySummary, replay
from coldlog.replay.runs.replay_arguments import NegativeTimestamps, ReplayOrder, add_replay_options
from coldlog.replay.runs.replay_job import _facts, _sink, replay_options
from coldlog.replay.runs.replay_order import TaskCounts
from coldlog.replay.runs.replay_source import refuse_early, replayed_source
from coldlog.replay.runs.replay_state import ReplayStates
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.settings_sources import load_settings
from contents.job_runs_table import rows_of, unpack_job_runs
from virtual_clock import VirtualClock

OUTPUT = ("--output", "out")


def job(*arguments: str, assignments: Sequence[str] = ()) -> Job:
    """The job as it is before it needs Spark."""
    parser = job_argument_parser("replay_topics", "")
    add_replay_options(parser)
    parsed = parser.parse_args(arguments)
    return Job(spark=None, settings=load_settings("local", assignments), arguments=parsed, console=Console())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("--topics", "a,b"), {"subscribe": "a,b"}),
        (
            ("--topic-pattern", "^a", "--starting-timestamp", "5", "--ending-timestamp", "9"),
            {"subscribepattern": "^a", "startingtimestamp": "5", "endingtimestamp": "9"},
        ),
        (
            ("--assign", '{"a": [0]}', "--starting-offsets", '{"a": {"0": 3}}', "--ending-offsets", '{"a": {"0": 7}}'),
            {"assign": '{"a": [0]}', "startingoffsets": '{"a": {"0": 3}}', "endingoffsets": '{"a": {"0": 7}}'},
        ),
        (
            ("--topics", "a", "--fail-on-data-loss", "false", "--isolation-level", "read_committed"),
            {"subscribe": "a", "failondataloss": "false", "kafka.isolation.level": "read_committed"},
        ),
    ],
)
def test_partitions_and_records_are_those_of_the_data_source(
    arguments: tuple[str, ...], options: Mapping[str, str]
) -> None:
    given = job(*arguments, *OUTPUT)
    expected = read_options({**source_defaults(given.settings), **options})
    assert replayed_source(given.settings, given.arguments) == expected


def test_idle_time_is_that_of_the_option_and_else_of_the_settings() -> None:
    settings, option = ["max.task.idle.ms=7000"], ("--max-task-idle-ms", "0")
    jobs = (job("--topics", "a", *OUTPUT, *given, assignments=s) for given in ((), option) for s in ([], settings))
    assert [replay_options(each).max_task_idle_ms for each in jobs] == [0, 7000, 0, 0]


def test_replay_to_the_lost_end_of_an_archive_is_refused_before_anything_is_written(
    written_uri: str, tmp_path: Path
) -> None:
    places = [f"warehouse.uri={written_uri}", f"archive.uri={tmp_path}"]
    given = job("--topics", "bad-end", "--output", str(tmp_path / "out"), assignments=places)
    missing = "bad-end-0 are missing: 100 and later ones are in no served segment"
    with pytest.raises(UsageError, match=missing):
        refuse_early(_without_spark(given))
    sink, states = _sink(given), ReplayStates.of_warehouse(str(tmp_path / "states"))
    with pytest.raises(UsageError, match=missing):
        replay(given.spark, replay_options(given), sink, states, VirtualClock())
    tolerant = job("--topics", "bad-end", *OUTPUT, "--fail-on-data-loss", "false", assignments=places)
    refuse_early(_without_spark(tolerant))


def _without_spark(given: Job) -> PlainJob:
    return PlainJob(settings=given.settings, arguments=given.arguments, console=given.console)


def test_run_has_its_row_in_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = unpack_job_runs(tmp_path)
    counts = {0: TaskCounts(record_count=7, late_count=2, greatest_lateness_ms=5)}
    summary = ReplaySummary(run=3, is_repeated=True, partition_count=2, counts=counts, enforced=(("a", 1),))
    monkeypatch.setattr(replay_job, "replay", lambda *_: summary)
    replay_job.replay_topics(job("--topics", "a", *OUTPUT, assignments=[f"warehouse.uri={tmp_path}"]))
    (row,) = (row for row in rows_of(location).values() if row["job"] == "replay_topics")
    assert (row["outcome"], row["error"]) == ("succeeded", None)
    figures = json.loads(str(row["summary"]))
    assert figures.pop("seconds") >= 0
    expected = {"run": 3, "retries": 1, "partitions": 2, "records": 7, "late_records": 2, "waited_in_vain": 1}
    assert figures == expected


def test_order_has_defaults_and_can_be_set() -> None:
    plain, told = job("--topics", "a", *OUTPUT), job(
        "--topics", "a", *OUTPUT, "--order", "tasks", "--negative-timestamps", "drop", "--name", "x"
    )  # fmt: skip
    orders = [(each.arguments.order, each.arguments.negative_timestamps, each.arguments.name) for each in (plain, told)]
    assert orders == [("all", "keep", None), ("tasks", "drop", "x")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (OUTPUT, "one of the arguments --topics --topic-pattern --assign is required"),
        ((*OUTPUT, "--topics", "a", "--assign", "{}"), "not allowed with argument --topics"),
        (("--topics", "a"), "one of the arguments --output-table --output --output-topic is required"),
    ],
)
def test_partitions_and_output_are_given_once(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        job(*arguments)
    assert message in capsys.readouterr().err


def test_output_topic_and_its_brokers_are_given_together() -> None:
    with pytest.raises(UsageError, match="--output-topic needs --bootstrap-servers"):
        _sink(job("--topics", "a", "--output-topic", "b"))
    with pytest.raises(UsageError, match="are only for --output-topic"):
        _sink(job("--topics", "a", *OUTPUT, "--bootstrap-servers", "localhost:1"))


def test_five_partitions_that_were_waited_for_in_vain_are_named() -> None:
    asked = job("--topics", "a", *OUTPUT)
    options = ReplayOptions(
        source=replayed_source(asked.settings, asked.arguments),
        name=None,
        order=ReplayOrder.ALL,
        max_task_idle_ms=9,
        negative_timestamps=NegativeTimestamps.KEEP,
    )
    waited = tuple(("a", number) for number in range(7))
    facts = _facts(ReplaySummary(run=1, is_repeated=False, partition_count=7, enforced=waited), options)
    assert facts[-1] == "enforced_processing: waited in vain for 7 partitions (a-0, a-1, a-2, a-3, a-4)"
