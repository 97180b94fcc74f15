"""run_pipeline with a living broker: states, log start offsets and answers are the broker's."""

from __future__ import annotations

import argparse
import io
import json
import shutil
from pathlib import Path

import pytest
from kafka import TopicPartition

from broker.conftest import Indexed, Played
from broker.scenario import BRIEF, CUT_OFFSET, ORDERS, Scenario, admin
from broker.tiered_broker import KAFKA_VERSION, is_since
from coldlog.brokers.kafka_client import Cluster
from coldlog.indexing.preflight import end_unchanged_run
from coldlog.indexing.scan.log_starts import ask_log_start_offsets, merge_log_start_offsets
from coldlog.indexing.witness import EVENTS, KEY, LOG_STARTS
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.runtime.console import Console
from coldlog.runtime.job import PlainJob
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.locations import table_location
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.tiering.expiry.supplied_log_starts import read_log_start_offsets
from contents.job_runs_table import rows_of, run_row
from contents.table_contents import table_rows

PLACES = ((ORDERS, 0), (ORDERS, 1))


def _log_starts(warehouse: Warehouse) -> dict[tuple[str, int], int]:
    rows = warehouse.read(LOG_START_OFFSETS).collect()
    return {(row["topic"], row["partition"]): row["log_start_offset"] for row in rows}


def test_finished_segments_are_those_in_the_bucket_and_deleted_ones_are_not(played: Played, indexed: Indexed) -> None:
    broker = played.scenario.broker
    rows = indexed.warehouse.read(SEGMENTS).collect()
    for topic, partition in (*PLACES, (BRIEF, 0)):
        own = [row for row in rows if (row["topic"], row["partition"]) == (topic, partition)]
        finished = {row["start_offset"]: row["segment_id"] for row in own if row["state"] == "COPY_SEGMENT_FINISHED"}
        assert finished == broker.tiered_logs(topic, partition)
        gone = {row["segment_id"] for row in own if row["state"] == "DELETE_SEGMENT_FINISHED"}
        assert len(gone) + len(finished) == len(own)
        assert gone.isdisjoint(finished.values())
        assert (len(finished) >= 5, len(gone) >= 1) == (topic == ORDERS, (topic, partition) != (ORDERS, 1))
    assert {row["state_source"] for row in rows} == {"events"}
    assert indexed.warehouse.read(DISCREPANCIES).count() == 0


def test_pipeline_reads_the_events_that_were_read_in_two_steps(played: Played, indexed: Indexed) -> None:
    assert table_rows(indexed.warehouse, SEGMENT_EVENTS) == table_rows(played.events, SEGMENT_EVENTS)


def test_log_starts_are_those_that_kafkas_own_admin_client_tells(played: Played, indexed: Indexed) -> None:
    told = played.scenario.broker.log_starts_as_kafka_tells()
    assert (
        _log_starts(indexed.warehouse)
        == {place: told[place] for place in PLACES}
        == {PLACES[0]: CUT_OFFSET, PLACES[1]: 0}
    )
    rows = indexed.warehouse.read(PARTITION_METADATA).where(f"topic = '{ORDERS}'").collect()
    starts = {row["partition"]: (row["log_start_offset"], row["log_start_source"]) for row in rows}
    assert starts == {0: (CUT_OFFSET, "supplied"), 1: (0, "supplied")}
    cut = {
        row["segment_id"]
        for row in indexed.warehouse.read(SEGMENTS).where(f"served_from_offset = {CUT_OFFSET}").collect()
    }
    assert len(cut) == 1, "the log start lies inside a segment"


def test_topic_that_was_made_anew_is_left_out_and_told(played: Played, cluster: Cluster, indexed: Indexed) -> None:
    assert (BRIEF, 0) in played.scenario.broker.log_starts_as_kafka_tells()
    assert ask_log_start_offsets(indexed.warehouse.uri, cluster).left_out_topics == (BRIEF,)
    assert "2 log start offsets changed" in indexed.progress
    assert f"1 topic no longer on the brokers ({BRIEF})" in indexed.progress


def test_of_file_and_broker_the_higher_log_start_counts(indexed: Indexed, cluster: Cluster, tmp_path: Path) -> None:
    path, location = tmp_path / "log_starts.csv", shutil.copytree(indexed.warehouse.uri, tmp_path / "warehouse")
    warehouse = Warehouse(spark=indexed.warehouse.spark, uri=str(location))
    path.write_text(f"topic,partition,log_start_offset\n{ORDERS},0,5\n{ORDERS},1,40\nelsewhere,3,7\n")
    supplied = read_log_start_offsets(str(path))
    told = ask_log_start_offsets(warehouse.uri, cluster).log_starts
    assert merge_log_start_offsets(warehouse, supplied, told) == 2
    assert _log_starts(warehouse) == {(ORDERS, 0): CUT_OFFSET, (ORDERS, 1): 40, ("elsewhere", 3): 7}
    assert merge_log_start_offsets(warehouse, told, supplied) == 0
    assert merge_log_start_offsets(warehouse, told) == 2
    assert _log_starts(warehouse) == {(ORDERS, 0): CUT_OFFSET, (ORDERS, 1): 0}


def test_answers_are_the_living_brokers_and_by_the_exact_rule_those_of_what_was_sent(
    played: Played, indexed: Indexed
) -> None:
    scenario = played.scenario
    asked = [(*place, timestamp_ms) for place in PLACES for timestamp_ms in scenario.asked_ms(place, 40)]
    requests = requests_from_rows(asked)
    rows = indexed.warehouse.read(PARTITION_METADATA).where(f"topic = '{ORDERS}'").collect()
    archived = {
        (ORDERS, row["partition"]): range(row["earliest_offset"], row["latest_tiered_offset"] + 1) for row in rows
    }
    exact = find_offsets_for_timestamps(indexed.warehouse, requests).to_pylist()
    compatible = find_offsets_for_timestamps(
        indexed.warehouse, requests, LookupOptions(broker_compatible=True)
    ).to_pylist()
    outcomes, passed_over = set(), segment_passed_over(scenario)
    passed_over_ms = max((scenario.sent_ms[PLACES[0]][offset] for offset in passed_over), default=-1)
    with admin(scenario.broker) as client:
        for (topic, partition, timestamp_ms), ours, alike in zip(asked, exact, compatible, strict=True):
            place = TopicPartition(topic, partition)
            true = client.list_partition_offsets({place: timestamp_ms})[place]
            is_archived = true.offset in archived[topic, partition]
            expected = (true.offset, true.timestamp, true.leader_epoch) if is_archived else (None, None, None)
            if (topic, partition) == PLACES[0] and timestamp_ms <= passed_over_ms:
                assert true.offset >= passed_over.stop
            else:
                assert (alike["offset"], alike["offset_timestamp_ms"], alike["leader_epoch"]) == expected
            sent = scenario.first_at_or_after((topic, partition), timestamp_ms, archived[topic, partition])
            assert ours["offset"] == sent
            outcomes.add(is_archived)
    assert outcomes == {True, False}


def _end_unchanged(indexed: Indexed) -> tuple[int | None, str]:
    """The exit code of a run without Spark, and what it printed."""
    progress = io.StringIO()
    console = Console(progress=progress, results=io.StringIO())
    job = PlainJob(settings=indexed.settings, arguments=argparse.Namespace(), console=console)
    return end_unchanged_run(job).exit_code, progress.getvalue()


def test_run_ends_without_spark_while_the_brokers_say_the_same(indexed: Indexed) -> None:
    exit_code, printed = _end_unchanged(indexed)
    assert exit_code == 0, printed
    runs = rows_of(table_location(indexed.warehouse.uri, JOB_RUNS.name)).values()
    assert sorted(str(row["outcome"]) for row in runs) == ["succeeded", "succeeded"]
    newest = max(runs, key=lambda row: int(str(row["started_ms"])))
    assert json.loads(str(newest["summary"])).keys() == {"unchanged_since_run", KEY}


@pytest.mark.parametrize("what", [EVENTS, LOG_STARTS])
def test_run_does_every_step_if_the_brokers_said_something_else(indexed: Indexed, what: str) -> None:
    location = table_location(indexed.warehouse.uri, JOB_RUNS.name)
    newest = max(rows_of(location).values(), key=lambda row: int(str(row["started_ms"])))
    summary = json.loads(str(newest["summary"]))
    assert len(summary[KEY][what]) == 32, "a digest"
    summary[KEY][what] = "0" * 32
    later = {"started_ms": int(str(newest["started_ms"])) + 1, "summary": json.dumps(summary)}
    row = run_row(f"other {what}", job="run_pipeline", outcome="succeeded", **later)
    assert commit_rows(location, JOB_RUNS, RowChange(added=[row])) == 0
    exit_code, printed = _end_unchanged(indexed)
    assert exit_code is None
    assert f"changed: {what}" in printed


def segment_passed_over(scenario: Scenario) -> range:
    """Offsets of the segment in which the log start lies: Kafka before 3.7.1 passes over it where it promises a time
    (KAFKA-16511)."""
    bases = list(scenario.broker.tiered_logs(*PLACES[0]))
    assert bases[0] < CUT_OFFSET < bases[1]
    return range(0) if is_since(KAFKA_VERSION, (3, 7, 1)) else range(bases[0], bases[1])
