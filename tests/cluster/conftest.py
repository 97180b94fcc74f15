"""conftest: the golden archive in a bucket, and what one machine makes of it from a directory."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cluster.jobs_on_s3 import Submission, contents
from servers.s3_server import Bucket, S3Server
from worlds.kafka_sample import KAFKA_SAMPLE


@pytest.fixture(scope="session")
def golden_bucket(versitygw: S3Server) -> Bucket:
    """The sample archive and its metadata topic, below `archive` and `rlmm`."""
    bucket = versitygw.make_bucket()
    bucket.put_directory(KAFKA_SAMPLE / "archive", "archive")
    bucket.put_directory(KAFKA_SAMPLE / "rlmm", "rlmm")
    return bucket


@pytest.fixture(scope="session")
def on_this_machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Submission, dict[str, list[str]]]:
    """The pipeline from the directory, without a cluster or a bucket: how to ask it more, and its tables."""
    folder = tmp_path_factory.mktemp("local")
    settings = (
        f"archive.uri={KAFKA_SAMPLE / 'archive'}",
        f"metadata.uri={KAFKA_SAMPLE / 'rlmm'}",
        f"warehouse.uri={folder / 'warehouse'}",
    )
    submission = Submission(folder=folder, environment={}, settings=settings)
    submission.run("run_pipeline")
    return submission, contents(str(folder / "warehouse"))


@pytest.fixture
def reaching_s3(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This process reaches the server, and so do those with this environment."""
    environment = versitygw.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return environment


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """Every question of the truth, as a request file."""
    path = tmp_path / "queries.csv"
    with (KAFKA_SAMPLE / "truth" / "queries.jsonl").open(encoding="utf-8") as lines, path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["topic", "partition", "timestamp_ms"])
        asked = [json.loads(line) for line in lines]
        writer.writerows([each["topic"], each["partition"], each["ts"]] for each in asked)
    return path
