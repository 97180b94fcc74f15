"""Test that persistent functions in Hive's metastore work in a later process that registers nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.lookups.functions import FUNCTIONS, VIEWS
from coldlog.sql import attach_warehouse
from coldlog.tables.delta.warehouse import Warehouse
from planning import ASSIGNMENTS_FOR_SMALL_TABLES

CALLS = {
    "offset_for_timestamp": "q.topic, q.partition, 1700042400000",
    "list_offsets": "q.topic, q.partition, -3, isolation_level => 'read_committed'",
    "max_timestamp": "q.topic, q.partition",
    "earliest_offset": "q.topic, q.partition",
    "latest_tiered_offset": "q.topic, q.partition",
    "next_segment_with_txn_index": "q.topic, q.partition, 0, 0",
    "aborted_transactions": "q.topic, q.partition, 0, 10000",
    "segment_for_offset": "q.topic, q.partition, NULL, 100",
}
REQUESTS = "VALUES ('orders', 0), ('payments', 0), ('no such', 0) AS q(topic, partition)"

KEEP = """
import sys
from coldlog.errors import UsageError
from coldlog.sql import attach_warehouse, sql_session
spark = sql_session(sys.argv[1:])
uri = next(each for each in sys.argv if each.startswith("warehouse.uri=")).partition("=")[2]
try:
    attach_warehouse(spark, uri, as_of="v1")
except UsageError as refused:
    assert "other sessions share this session's catalog" in str(refused), refused
else:
    raise SystemExit("the past was registered for everybody")
spark.stop()
"""

ASK = """
import json, sys
from coldlog.launch.session import spark_session
from coldlog.runtime.settings_sources import load_settings
spark = spark_session(load_settings("local", sys.argv[2:]))
for query in json.loads(sys.argv[1]):
    print("ROWS" + json.dumps(sorted((list(row) for row in spark.sql(query).collect()), key=repr)))
spark.stop()
"""


def queries(prefix: str) -> list[str]:
    """Return a call of every function, and the number of rows of every view."""
    return [
        *(f"SELECT q.*, o.* FROM {REQUESTS}, LATERAL {prefix}{name}({CALLS[name]}) o" for name in FUNCTIONS),
        *(f"SELECT count(*) FROM coldlog.{view}" for view in VIEWS),
    ]


def run(script: str, *arguments: str, folder: Path) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env={**os.environ, "MASTER": "local[1]"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line.removeprefix("ROWS")) for line in done.stdout.splitlines() if line.startswith("ROWS")]


def test_second_session_of_a_lasting_catalog_has_functions_and_views_without_registration(
    golden: Warehouse, tmp_path: Path
) -> None:
    options = [
        f"warehouse.uri={golden.uri}",
        "spark.sql.catalogImplementation=hive",
        *ASSIGNMENTS_FOR_SMALL_TABLES,
        f"spark.hadoop.javax.jdo.option.ConnectionURL=jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true",
    ]
    run(KEEP, *options, "warehouse.persistent_functions=true", folder=tmp_path)
    answers = run(ASK, json.dumps(queries("coldlog.")), *options, folder=tmp_path)
    attach_warehouse(golden.spark, golden.uri)
    for query, answer in zip(queries(""), answers, strict=True):
        rows = sorted((list(row) for row in golden.spark.sql(query).collect()), key=repr)
        assert answer == rows, query
    assert all(answers[: len(FUNCTIONS)])


def test_persistent_functions_are_refused_if_the_catalog_ends_with_the_session(
    golden_uri: str, spark: SparkSession
) -> None:
    with pytest.raises(UsageError, match="set spark.sql.catalogImplementation=hive"):
        attach_warehouse(spark, golden_uri, persistent_functions=True)
    kept = {row["function"] for row in spark.sql("SHOW USER FUNCTIONS IN coldlog").collect()}
    assert {name for name in kept if name.startswith("spark_catalog.coldlog.")} == set()
