"""Test the listings of the command against the tables and what a broker said of the sample."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from coldlog.command.main import main
from coldlog.tables.definitions.job_runs import JOB_RUNS
from worlds.golden_warehouse import golden_partitions, golden_queries


def test_partitions_are_those_of_the_broker(golden_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", "--json", "-w", golden_uri]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    archived = {(query["topic"], query["partition"]) for query in golden_queries() if query["archive"]}
    known = {(row["topic"], row["partition"]) for row in golden_partitions()}
    assert archived <= {(row["topic"], row["partition"]) for row in listed} <= known
    assert main(["partitions", "orders", "-w", golden_uri]) == 0
    headers, _, row = capsys.readouterr().out.splitlines()
    assert headers.split()[:5] == ["topic", "partition", "segments", "served", "offsets"]
    assert row.split()[:5] == ["orders", "0", "16", "16", "0..3952"]


def test_topics_add_up_their_partitions(golden_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["partitions", "--json", "-w", golden_uri])
    partitions = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["topics", "--csv", "-w", golden_uri]) == 0
    topics = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sum(int(row["record_count"]) for row in topics) == sum(row["record_count"] for row in partitions)
    assert [row["topic"] for row in topics] == sorted({row["topic"] for row in partitions})


def test_segments_are_filtered_by_topic_partition_and_status(
    golden_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = DeltaTable(f"{golden_uri}/segments").to_pyarrow_table().to_pylist()
    for filters, expected in [
        (["orders", "-p", "0"], [row for row in rows if row["topic"] == "orders"]),
        (["--status", "incomplete"], [row for row in rows if row["index_status"] == "incomplete"]),
        (["--not-served"], [row for row in rows if row["served_from_offset"] is None]),
    ]:
        assert main(["segments", *filters, "--json", "-w", golden_uri]) == 0
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {row["segment_id"] for row in listed} == {row["segment_id"] for row in expected}


def test_runs_are_listed_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        {
            "run_id": str(number),
            "job": "run_pipeline",
            "started_ms": number * 1000,
            "finished_ms": number * 1000 + 500,
            "outcome": "failed" if number == 2 else "succeeded",
            "error": "first line\nsecond" if number == 2 else None,
            "summary": "{}",
        }
        for number in (1, 3, 2)
    ]
    schema = JOB_RUNS.arrow_schema
    write_deltalake(tmp_path / "job_runs", pa.Table.from_pylist(runs, schema=schema))
    assert main(["runs", "--last", "2", "--json", "-w", str(tmp_path)]) == 0
    assert [json.loads(line)["run_id"] for line in capsys.readouterr().out.splitlines()] == ["3", "2"]
    assert main(["runs", "--outcome", "failed", "-w", str(tmp_path)]) == 0
    _, _, row = capsys.readouterr().out.splitlines()
    assert row == "run_pipeline  1970-01-01T00:00:02.000Z  0.5 s  failed   first line"


def test_settings_are_shown_with_their_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "warehouse.uri", "--json", "-w", "/data/coldlog"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"setting": "warehouse.uri", "value": "/data/coldlog", "from": "--set"}
