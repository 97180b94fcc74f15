"""jobs_on_s3: runs of spark-submit.sh against a bucket, and what is in its tables then, read without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.table_storage import delta_storage_options
from contents.table_contents import BUILD_NUMBERS, TIMES_OF_RUNS
from servers.s3_server import Bucket

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 600
# When objects were written to a bucket is not when they were written to the directory that they were copied from; where
# all timestamps of a segment are negative, Kafka says the time of its file instead.
_TIMES_OF_OBJECTS = ("log_modified_ms", "metadata_max_timestamp_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """How a job is started; `environment` comes on top of this process's."""

    folder: Path
    environment: Mapping[str, str]
    settings: Sequence[str]

    def start(self, job: str, *arguments: str) -> subprocess.Popen[str]:
        """In a session of its own, by which all of its processes can be signalled."""
        options = [word for setting in self.settings for word in ("--set", setting)]
        return subprocess.Popen(
            [str(ROOT / "spark-submit.sh"), job, *options, *arguments],
            cwd=self.folder,
            env={**self._inherited(), **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, job: str, *arguments: str) -> str:
        """To its good end; what it said."""
        with self.start(job, *arguments) as process:
            told, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, told
        return told

    def run_by_sparks_own(self, job: str, *arguments: str) -> str:
        """The same by plain spark-submit, given what `coldlog.launch_options` tells a scheduler."""
        options = [word for setting in self.settings for word in ("--set", setting)]
        environment = {**self._inherited(), **self.environment}
        master = self.environment["MASTER"]
        ask = [sys.executable, "-P", "-m", "coldlog.launch_options", "--master", master, *options, *arguments]
        told = subprocess.run(ask, env=environment, cwd=self.folder, capture_output=True, text=True, check=True)
        launch = json.loads(told.stdout)
        environment |= launch["environment"]
        command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", master]
        command += [word for key, value in launch["options"].items() for word in ("--conf", f"{key}={value}")]
        ended = subprocess.run(
            [*command, str(ROOT / "jobs" / f"{job}.py"), *options, *arguments],
            env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    @staticmethod
    def _inherited() -> dict[str, str]:
        return {key: value for key, value in os.environ.items() if not key.startswith(("AWS", "PYSPARK"))}


def commit_count(bucket: Bucket, warehouse: str, table: TableDefinition) -> int:
    """How many commits the table has, as the bucket lists them."""
    prefix = f"{warehouse}/{table.name}/_delta_log/"
    pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix=prefix, Delimiter="/")
    return sum(each["Key"].endswith(".json") for page in pages for each in page.get("Contents", ()))


def contents(warehouse: str) -> dict[str, list[str]]:
    """Every row of every table but `job_runs`, without what tells of when runs and copies were made."""
    return {table.name: _rows(f"{warehouse}/{table.name}") for table in ALL_TABLES if table is not JOB_RUNS}


def outcomes(warehouse: str) -> list[str]:
    """Of every run, in order."""
    rows = _table(f"{warehouse}/{JOB_RUNS.name}")
    return [row["outcome"] for row in sorted(rows, key=lambda row: row["started_ms"])]


def _table(location: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        DeltaTable(location, storage_options=delta_storage_options(location)).to_pyarrow_table().to_pylist()
    )
    return rows


def _rows(location: str) -> list[str]:
    return sorted(repr(_lasting(row)) for row in _table(location))


def _lasting(value: Any) -> Any:
    """Without the fields that differ from run to run."""
    dropped = (*TIMES_OF_RUNS, *BUILD_NUMBERS, *_TIMES_OF_OBJECTS)
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in sorted(value.items()) if key not in dropped}
    if isinstance(value, list):
        return [_lasting(each) for each in value]
    return value
