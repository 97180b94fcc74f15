"""The job copy_segments from its arguments to its exit code, in a process that starts no Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment
from coldlog.entry_point import job_argument_parser, run_plain_job
from coldlog.operations.copy_job import copy
from coldlog.settings_sources import REPOSITORY


def segment(first: int) -> Segment:
    records = tuple(Record(timestamp_ms=first + at, value=b"v" * 30) for at in range(10))
    return Segment(batches=(Batch(base_offset=first, records=records),), index_interval_bytes=0)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Two closed segments of orders-0; settings that copy them."""
    logs = tmp_path / "logs"
    write_partition(logs, "orders", 0, [segment(0), segment(10), segment(20)])
    write_offset_checkpoint(logs / HIGH_WATERMARKS, {("orders", 0): 30})
    settings = {
        "broker.id": 7,
        "copy.log_directories": logs,
        "archive.uri": tmp_path / "archive",
        "metadata.uri": tmp_path / "metadata",
        "rlmm.config.remote.log.metadata.topic.num.partitions": 2,
    }
    return [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]


def run(arguments: list[str]) -> int:
    return run_plain_job(copy, job_argument_parser("copy_segments: which?"), arguments)


def test_run_tells_what_it_copied_and_the_next_one_finds_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    told = capsys.readouterr()
    assert "2 segments copied" in told.err
    assert told.out.splitlines()[2].split()[:3] == ["orders", "0", "2"]
    assert len(list((tmp_path / "archive" / "kafka-tiered-storage").glob("orders-0-*/*.log"))) == 2
    assert len(list((tmp_path / "metadata").glob("__remote_log_metadata-*"))) == 2
    assert run(arguments) == 0
    assert capsys.readouterr().out == "nothing to copy\n"


def test_partition_that_failed_fails_the_run_and_one_that_is_held_back_does_not(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs" / "orders-0" / f"{20:020d}.snapshot").unlink()
    assert run(arguments) == 0
    assert "held_back" in capsys.readouterr().out
    log = tmp_path / "logs" / "orders-0" / f"{10:020d}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    assert run(arguments) == 1
    told = capsys.readouterr()
    assert "damaged" in told.out
    assert "1 partition failed" in told.err


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("broker.id=-1", "broker.id is not set"),
        ("copy.log_directories=s3://bucket/logs", "must be directories of this machine"),
        ("archive.layout=aiven", "copy_segments writes local_tiered_storage alone"),
        ("metadata.source=topic", "needs metadata.bootstrap_servers"),
        ("metadata.source=table", "announces what it copies in a directory"),
        ("metadata.uri=s3://bucket/rlmm", "announces what it copies in a directory"),
        ("remote.log.manager.copy.max.bytes.per.second=0", "expected bytes"),
    ],
)
def test_settings_that_cannot_be_are_refused_and_nothing_is_copied(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, told: str
) -> None:
    assert run([*arguments, "--set", setting]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.glob("archive/*/*"))


def test_job_runs_as_a_program_without_java(arguments: list[str], tmp_path: Path) -> None:
    job = REPOSITORY / "jobs" / "copy_segments.py"
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "lib"), "HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(job), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr.count("2 segments copied")) == (0, 1), ended.stderr
