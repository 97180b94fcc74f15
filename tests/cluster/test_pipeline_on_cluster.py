"""The pipeline on a cluster against a bucket: the tables and answers of one machine, also when a worker goes."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from pathlib import Path

import pytest

from cluster.jobs_on_s3 import PATIENCE_S, Submission, commit_count, contents, outcomes
from cluster.standalone import StandaloneCluster, running_cluster, workers_python
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.validation_results import VALIDATION_RESULTS
from servers.s3_server import SECRET_KEY, Bucket

# The interpreter of these tests has the packages that tasks need.
HAVING_PACKAGES = ("cluster.ship_packages=false", f"cluster.python={sys.executable}")


def _on_cluster(
    cluster: StandaloneCluster,
    bucket: Bucket,
    warehouse: str,
    folder: Path,
    s3: dict[str, str],
    *packages: str,
) -> Submission:
    """`packages` are settings that say where workers have Python's packages from."""
    settings = (
        f"archive.uri={bucket.uri('archive')}",
        f"metadata.uri={bucket.uri('rlmm')}",
        f"warehouse.uri={bucket.uri(warehouse)}",
        *packages,
        "spark.driver.memory=1g",
        "spark.executor.memory=1g",
        "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
        "spark.sql.shuffle.partitions=2",
    )
    environment = {**s3, "MASTER": cluster.master, "SPARK_LOCAL_IP": "127.0.0.1"}
    return Submission(folder=folder, environment=environment, settings=("spark.driver.host=127.0.0.1", *settings))


@pytest.mark.timeout(1800)
def test_a_cluster_and_a_bucket_give_the_tables_and_answers_of_one_machine(
    golden_bucket: Bucket,
    reaching_s3: dict[str, str],
    on_this_machine: tuple[Submission, dict[str, list[str]]],
    queries: Path,
    tmp_path: Path,
) -> None:
    local, expected = on_this_machine
    with running_cluster(tmp_path, reaching_s3) as cluster:
        bare = f"cluster.python={workers_python()}"
        shipping = _on_cluster(cluster, golden_bucket, "warehouse", tmp_path, reaching_s3, bare)
        told = shipping.run("run_pipeline", "--env", "cluster")
        submission = dataclasses.replace(shipping, settings=(*shipping.settings, *HAVING_PACKAGES))
        told += submission.run(
            "lookup_offsets",
            "--env",
            "cluster",
            "--requests",
            str(queries),
            "--output",
            str(tmp_path / "cluster.jsonl"),
            "--set",
            "lookup.engine=spark",
        )
        # As Airflow's operator does.
        told += submission.run_by_sparks_own("validate_tables", "--env", "cluster")
        maintained = submission.run("maintain_tables", "--env", "cluster")
    assert re.search(r"[0-9]+ files compacted to [0-9]+ +[0-9]+ old files? removed", maintained.replace(",", "")), (
        maintained
    )
    keys = golden_bucket.keys()
    assert [key for key in keys if key.endswith(".checkpoint.parquet")]
    assert {"warehouse/data_docs/index.html"} <= keys
    local.run("lookup_offsets", "--requests", str(queries), "--output", str(tmp_path / "local.jsonl"))
    found = contents(golden_bucket.uri("warehouse"))
    validated = found.pop(VALIDATION_RESULTS.name)
    assert len(validated) > 100
    assert not [row for row in validated if "'severity': 'critical'" in row and "'success': False" in row]
    for name, rows in found.items():
        assert rows == expected[name], name
    answers = (tmp_path / "cluster.jsonl").read_bytes()
    assert answers == (tmp_path / "local.jsonl").read_bytes()
    assert answers.count(b"\n") > 9_000
    logs = b"".join(each.read_bytes() for name in ("*.log", "stdout", "stderr") for each in tmp_path.rglob(name))
    assert b"Executor" in logs
    assert SECRET_KEY not in told
    assert SECRET_KEY.encode() not in logs


@pytest.mark.timeout(1800)
def test_a_worker_that_goes_in_the_middle_takes_nothing_with_it(
    golden_bucket: Bucket,
    reaching_s3: dict[str, str],
    on_this_machine: tuple[Submission, dict[str, list[str]]],
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, reaching_s3) as cluster:
        submission = _on_cluster(cluster, golden_bucket, "survivor", tmp_path, reaching_s3, *HAVING_PACKAGES)
        with submission.start("run_pipeline", "--env", "cluster") as run:
            # The table is made, and the scan has written to it: segments are being read.
            end = time.monotonic() + PATIENCE_S
            while commit_count(golden_bucket, "survivor", SEGMENTS) < 2:
                assert run.poll() is None, run.communicate()[0]
                assert time.monotonic() < end
                time.sleep(0.05)
            cluster.kill_worker(0)
            told, _ = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, told
    assert "Lost executor" in told, "the worker was at work"
    assert contents(golden_bucket.uri("survivor")) == on_this_machine[1]
    assert outcomes(golden_bucket.uri("survivor")) == ["succeeded"]
