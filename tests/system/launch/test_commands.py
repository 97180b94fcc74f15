"""Test the commands of schedulers and scripts, run in the same way."""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow.compute as pc
import pyspark
import pytest
from deltalake import DeltaTable

from worlds.golden_warehouse import golden_queries, write_log_start_offsets
from worlds.kafka_sample import KAFKA_SAMPLE

ROOT = Path(__file__).parents[3]
SPARK_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
BOTH = ("--set", "list_offsets.log_directory=/logs", "--set", "list_offsets.bootstrap_servers=kafka:9092")


UNFRIENDLY = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.caseSensitive": "true",
    "spark.sql.crossJoin.enabled": "false",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.compression.codec": "gzip",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
    "spark.databricks.delta.properties.defaults.autoOptimize.autoCompact": "true",
    "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "true",
    "spark.databricks.delta.properties.defaults.enableInCommitTimestamps": "true",
    "spark.databricks.delta.properties.defaults.enableRowTracking": "true",
    "spark.speculation": "true",
    "spark.driver.extraJavaOptions": "-Duser.language=tr -Duser.country=TR -Duser.timezone=Asia/Kolkata",
}
"""Defaults that a cluster's administrator may have chosen; none may change an answer."""


def _configure_spark(folder: Path, defaults: Mapping[str, str]) -> Path:
    """Make a folder for SPARK_CONF_DIR: that of the checkout, and more defaults."""
    shutil.copytree(ROOT / "conf", folder)
    with (folder / "spark-defaults.conf").open("a", encoding="utf-8") as file:
        file.writelines(f"{key} {value}\n" for key, value in defaults.items())
    return folder


def _submit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run from outside the repository, as a scheduler does."""
    return subprocess.run(
        [str(ROOT / "spark-submit.sh"), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_pipeline_then_lookups_from_files_answer_as_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(_configure_spark(tmp_path / "spark conf", UNFRIENDLY)))
    log_starts = write_log_start_offsets(tmp_path / "log starts.csv")
    queries = golden_queries()[::9]
    with (tmp_path / "requests.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["topic", "partition", "timestamp_ms", "ticket"])
        writer.writerows([(query["topic"], query["partition"], query["ts"], "INC-1") for query in queries])

    command = (
        "run_pipeline",
        "--set",
        f"archive.uri={KAFKA_SAMPLE / 'archive'}",
        "--set",
        "archive.layout=local_tiered_storage",
        "--set",
        "warehouse.uri=ware house",
        "--set",
        f"log_start_offsets.uri={log_starts}",
    )
    piped = _submit(tmp_path, *command)
    assert piped.returncode == 0, piped.stderr
    assert "281 segments indexed" in piped.stderr
    segments = DeltaTable(tmp_path / "ware house" / "segments")
    assert segments.metadata().configuration["delta.autoOptimize.autoCompact"] == "true", "the defaults above apply"
    indexed = segments.to_pyarrow_table(columns=["record_count"])
    records = pc.sum(indexed["record_count"]).as_py()
    assert re.search(rf"{records:,} records?\b", piped.stderr), "also of segments that were counted twice"
    assert "LATER_THAN_ARCHIVE" in piped.stdout
    assert "WARN" not in piped.stderr
    assert len(piped.stderr.splitlines()) < 12, "a user sees a line a stage and no noise"

    with monkeypatch.context() as without_spark:
        without_spark.setenv("SPARK_SUBMIT_OPTS", "-XX:+NoSpark")  # no JVM would start
        without_spark.setenv("PYTHONPROFILEIMPORTTIME", "1")
        again = _submit(tmp_path, *command)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    nothing = "30 partitions, 282 segments listed, nothing has changed since the last run"
    assert nothing in again.stderr
    imported = {line.split("|")[-1].strip() for line in again.stderr.splitlines() if line.startswith("import time:")}
    assert "coldlog.indexing.preflight" in imported
    assert imported.isdisjoint({"numba", "pandas.core", "Crypto", "cryptography"}), "they take longer than such a run"

    submitted = subprocess.run(
        [SPARK_SUBMIT, "--master", "spark://127.0.0.1:9", str(ROOT / "jobs" / "run_pipeline.py"), *command[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert submitted.returncode == 0, submitted.stderr
    assert nothing in submitted.stdout + submitted.stderr, "no master had to answer"

    answers_of = {}
    # Few requests need no Spark; those of one run are answered by it nevertheless.
    for broker_compatible, engine in (("true", "spark"), ("false", "auto")):
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", "" if engine == "spark" else "-XX:+NoSpark")
        asked = _submit(
            tmp_path,
            "lookup_offsets",
            "--set",
            "warehouse.uri=ware house",
            "--requests",
            "requests.csv",
            "--output",
            "answers.jsonl",
            "--set",
            f"lookup.broker_compatible={broker_compatible}",
            "--set",
            f"lookup.engine={engine}",
            *(["--record-run"] if engine == "auto" else []),
        )
        assert asked.returncode == 0, asked.stderr
        lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()
        answers_of[broker_compatible] = [json.loads(line) for line in lines]

    runs = DeltaTable(tmp_path / "ware house" / "job_runs").to_pyarrow_table().to_pylist()
    recorded = [(run["outcome"], json.loads(run["summary"])) for run in runs if run["job"] == "lookup_offsets"]
    assert [outcome for outcome, _ in recorded] == ["succeeded"], "only what is scheduled, not a question, has a row"
    assert recorded[0][1]["requests"] == len(queries)
    assert recorded[0][1]["seconds"] > 0

    for query, exact, broker in zip(queries, answers_of["false"], answers_of["true"], strict=True):
        assert list(exact) == [
            "topic", "partition", "timestamp_ms", "offset", "offset_timestamp_ms", "leader_epoch", "error",
            "is_exact", "passed_over_from_offset", "passed_over_to_offset",
        ]  # fmt: skip
        assert exact["is_exact"] is (True if exact["error"] is None else None)
        assert (exact["topic"], exact["partition"], exact["timestamp_ms"]) == (
            query["topic"],
            query["partition"],
            query["ts"],
        )
        truth = query["ru"] if query["archive"] else None
        assert broker["offset"] == (truth["offset"] if isinstance(truth, dict) else None)
        scan = query.get("scan", truth)
        assert exact["offset"] == (scan["offset"] if isinstance(scan, dict) else None)
        has_segments = (query["topic"], query["partition"]) not in {("orders", 1), ("orders", 2)}
        assert exact["error"] == (None if has_segments else "UNKNOWN_TOPIC_OR_PARTITION")


def test_wrong_calls_say_what_to_do_and_exit_with_2(tmp_path: Path) -> None:
    for arguments, complaint in (
        (("run_pipeline", "--set", "archive.uri=nowhere", "--set", "warehouse.uri=w"), "no archive at"),
        (("lookup_offsets", "--set", "warehouse.uri=nowhere", "--topic", "a", "--timestamp", "5"), "run the pipeline"),
        (("lookup_offsets", "--set", "warehose.uri=x"), "warehouse.uri"),
    ):
        refused = _submit(tmp_path, *arguments)
        assert refused.returncode == 2, refused.stderr
        assert complaint in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("lookup_offsets", "--topic", "orders", "--timestamp", "newest"), "latest-tiered"),
        (("lookup_offsets", "--topic", "orders"), "no request is given"),
        (("lookup_offsets", "--topic", "orders", "--timestamp", "1969-12-31T23:59:59.995Z"), "before 1970"),
        (("lookup_offsets", "--topic", "o", "--timestamp", "5", "--partition", str(2**31)), "--partition 2147483648"),
        (("lookup_offsets", "--requests", "none.csv"), "there is no such file of requests"),
        (("list_offsets", "--requests", "requests.csv"), "requests.csv, line 2: timestamp_ms"),
        (("list_offsets", "--topic", "orders", "--timestamp", "5", *BOTH), "not both"),
    ],
)
def test_wrong_requests_are_refused_before_spark_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    (tmp_path / "requests.csv").write_text("topic,partition,timestamp_ms\norders,0,noon\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [*arguments, "--set", "warehouse.uri=nowhere"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "jobs" / f"{arguments[0]}.py"), run_name="__main__")
    refused = capsys.readouterr()
    assert ended.value.code == 2, refused.err
    assert complaint in refused.err
    assert "spark" not in refused.err.replace("spark-submit", ""), "no stage has begun"


def test_settings_are_shown_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+NoSpark")  # no JVM would start
    shown = _submit(tmp_path, "show_settings", "--set", "scan.accept_replaced_archive=true")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(r"^scan.accept_replaced_archive +true +--set *$", shown.stdout, re.MULTILINE)
