"""Test that a job of the installed package runs on a Spark cluster whose workers have none of its packages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from environment import JARS

from cluster.standalone import running_cluster
from installed_package import SAMPLE, Installed


def test_a_cluster_indexes_for_the_installed_package(with_everything: Installed, tmp_path: Path) -> None:
    with_everything.run("setup", "--from", str(JARS))
    archive, warehouse = tmp_path / "archive", tmp_path / "warehouse"
    (directory,) = SAMPLE.glob("*/orders-0-*")
    shutil.copytree(directory, archive / directory.relative_to(SAMPLE))
    # The interpreter that the environment was made of: Python's version must be the same on the workers.
    bare = with_everything.run_python("import os, sys; print(os.path.realpath(sys.executable))").strip()
    settings = [
        *(f"archive.uri={archive}", f"warehouse.uri={warehouse}", f"cluster.python={bare}"),
        *("spark.driver.host=127.0.0.1", "spark.driver.memory=1g", "spark.executor.memory=1g"),
    ]
    options = ["--env", "cluster", *(word for setting in settings for word in ("--set", setting))]
    with running_cluster(tmp_path, {}, worker_count=1) as cluster:
        launch = ("launch-options", "run_pipeline", "--master", cluster.master, *options)
        words = with_everything.run(*launch, SPARK_LOCAL_IP="127.0.0.1").stdout.split()
        with_everything.run_spark_submit(*words, *options)
    assert words[:2] == ["--master", cluster.master]
    answered = with_everything.run("lookup", "orders", "2023-11-15T10:00Z", "--json", "-w", str(warehouse)).stdout
    assert json.loads(answered)["offset"] == 2592
    listed = with_everything.run("segments", "orders", "--json", "-w", str(warehouse)).stdout
    assert {json.loads(line)["state"] for line in listed.splitlines()} == {"COPY_SEGMENT_FINISHED"}
    tasks = b"".join(log.read_bytes() for log in tmp_path.rglob("stderr"))
    assert b"Executor: Finished task" in tasks, "the cluster did the work"
