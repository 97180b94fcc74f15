"""What lookup_offsets prints as starting offsets, a program gives to Spark's Kafka source as it is, and reads from the
very record that was looked up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from broker.conftest import Indexed, Played
from broker.program_runner import run_program
from broker.scenario import ORDERS, START_MS
from lookup_jobs import read_answers, run_lookup_offsets

ARCHIVED_MS = START_MS + 200_000
"""Both partitions have archived records that late."""
LATER_MS = START_MS + 400_000
"""Partition 0 was sent nothing that late."""


def test_kafka_source_begins_with_the_records_that_were_looked_up(
    played: Played, indexed: Indexed, spark: SparkSession, tmp_path: Path
) -> None:
    asked_ms = {"archived": ARCHIVED_MS, "later": LATER_MS}
    answers: dict[str, dict[int, Any]] = {}
    cases = []
    for name, timestamp_ms in asked_ms.items():
        lines = tmp_path / f"{name}.jsonl"
        asked = ["--topic", ORDERS, "--timestamp", str(timestamp_ms), "--output", str(lines), "--starting-offsets", "-"]
        told = run_lookup_offsets(spark, asked, f"warehouse.uri={indexed.warehouse.uri}")
        answers[name] = {int(str(each["partition"])): each for each in read_answers(lines)}
        options = {
            "kafka.bootstrap.servers": played.scenario.broker.bootstrap_servers,
            "subscribe": ORDERS,
            "startingOffsets": told.results.strip(),
        }
        select = ["partition", "offset", "unix_millis(timestamp) AS timestamp_ms"]
        file = str(tmp_path / f"{name}.parquet")
        cases.append({"format": "kafka", "options": options, "where": "true", "select": select, "file": file})
    run_program(cases, tmp_path)
    for name, timestamp_ms in asked_ms.items():
        read: dict[int, dict[int, int]] = {0: {}, 1: {}}
        for row in pq.read_table(tmp_path / f"{name}.parquet").to_pylist():
            read[row["partition"]][row["offset"]] = row["timestamp_ms"]
        for partition, records in read.items():
            answer, sent = answers[name][partition], played.scenario.sent_ms[ORDERS, partition]
            first = min(records)
            assert records == dict(enumerate(sent[first:], start=first))
            if answer["offset"] is not None:
                assert (first, records[first]) == (answer["offset"], answer["offset_timestamp_ms"])
                assert records[first] >= timestamp_ms
            else:
                assert first == archived_end(played, partition)
                assert max(sent) < timestamp_ms, "nothing that late was passed over"
    found = {name: [each["offset"] is not None for _, each in sorted(own.items())] for name, own in answers.items()}
    assert found == {"archived": [True, True], "later": [False, True]}
    assert json.loads(cases[1]["options"]["startingOffsets"]).keys() == {ORDERS}  # type: ignore[index]


def archived_end(played: Played, partition: int) -> int:
    """Where the segment begins that the broker has alone."""
    return played.scenario.broker.local_logs(ORDERS, partition)[-1]
