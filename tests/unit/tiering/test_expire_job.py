"""Test the job expire_segments from its arguments to its exit code, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from coldlog.errors import UsageError
from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.runtime.settings_sources import settings_of
from coldlog.tiering.copying.copy_job import copy
from coldlog.tiering.expiry.expire_job import expire, expire_options, read_retentions
from coldlog.tiering.job_arguments import add_copy_options, add_expire_options
from coldlog.tiering.rules.expiry import Retention
from contents.job_runs_table import rows_of, unpack_job_runs
from tier_jobs import DAY, aged_segment, orders_arguments


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Three closed segments of orders-0, of 10, 5 and 1 days ago, that were copied; settings of their tier."""
    aged = [aged_segment(0, 10), aged_segment(10, 5), aged_segment(20, 1), aged_segment(30, 0)]
    found = orders_arguments(tmp_path, aged)
    assert run_plain_job(copy, add_copy_options(job_argument_parser("copy_segments", "")), found) == 0
    return found


def run(arguments: list[str]) -> int:
    return run_plain_job(expire, add_expire_options(job_argument_parser("expire_segments", "")), arguments)


def logs_of(tmp_path: Path) -> list[int]:
    return sorted(int(path.name[:20]) for path in (tmp_path / "archive").glob("*/orders-0-*/*.log"))


def test_plan_is_printed_and_executed_and_the_next_run_finds_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    arguments += ["--set", f"retention.ms={3 * DAY}", "--all"]
    assert run([*arguments, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert "2 segments would be deleted" in printed.err
    row = printed.out.splitlines()[2].split()
    assert (row[:3], row[4:]) == (["orders", "0", "2"], ["time", "20", "planned"])
    assert logs_of(tmp_path) == [0, 10, 20]
    assert run(arguments) == 0
    printed = capsys.readouterr()
    assert "2 segments deleted" in printed.err
    assert printed.out.splitlines()[2].split()[-1] == "done"
    assert logs_of(tmp_path) == [20]
    assert run(arguments) == 0
    assert capsys.readouterr().out == "nothing has expired\n"
    arguments.remove("--all")
    assert run([*arguments, "--set", "retention.ms=0"]) == 0
    nothing_due = "no partition is due, or other runs hold those that are; use --all to ignore the schedule's times\n"
    assert capsys.readouterr().out == nothing_due
    assert logs_of(tmp_path) == [20]


def test_each_expiry_has_its_row_and_a_dry_run_has_none(arguments: list[str], tmp_path: Path) -> None:
    location = unpack_job_runs(tmp_path / "warehouse")
    arguments += ["--set", f"retention.ms={3 * DAY}", "--all"]
    logs = sorted((tmp_path / "archive").glob("*/orders-0-*/*.log"))
    size_bytes = sum(path.stat().st_size for path in logs[:2])
    assert run([*arguments, "--dry-run"]) == 0
    (tmp_path / "archive").rename(tmp_path / "away")
    assert run(arguments) == 1
    (tmp_path / "away").rename(tmp_path / "archive")
    assert run(arguments) == 0
    rows = [row for row in rows_of(location).values() if row["job"] == "expire_segments"]
    failed, done = sorted(rows, key=lambda row: str(row["outcome"]))
    assert "mount its disk" in str(failed["error"])
    assert (done["outcome"], done["error"]) == ("succeeded", None)
    figures = json.loads(str(done["summary"]))
    assert figures.pop("seconds") > 0
    assert figures == {
        "segments": 2, "bytes": size_bytes, "objects": 0, "partitions": 1, "failed_partitions": 0, "retries": 1,
    }  # fmt: skip


@pytest.mark.parametrize("option", [[], ["--dry-run"]])
def test_unmounted_archive_is_not_created_and_no_deletion_is_announced(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    archive, away = tmp_path / "archive", tmp_path / "away"
    archive.rename(away)
    arguments += ["--set", f"retention.ms={3 * DAY}", "--all"]
    assert run([*arguments, *option]) == 1
    assert "mount its disk" in capsys.readouterr().out
    assert not archive.exists()
    away.rename(archive)
    assert run(arguments) == 0
    assert "2 segments deleted" in capsys.readouterr().err
    assert logs_of(tmp_path) == [20]


def test_topic_of_the_retention_file_that_the_tier_does_not_have_is_reported(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    retentions = tmp_path / "retentions.csv"
    retentions.write_text("topic,retention_ms,retention_bytes\nordesr,-1,-1\n")
    own = ["--set", f"expire.retentions={retentions}", "--set", f"retention.ms={3 * DAY}"]
    assert run([*arguments, *own, "--dry-run"]) == 0
    printed = capsys.readouterr().err
    assert "2 segments would be deleted" in printed
    assert "expire.retentions names topics that have no segment in the tier: ordesr" in printed


def test_retention_of_a_topic_is_taken_from_the_file(arguments: list[str], tmp_path: Path) -> None:
    retentions = tmp_path / "retentions.csv"
    retentions.write_text(f"topic,retention_ms,retention_bytes\norders,{7 * DAY},-1\npayments,1,1\n")
    assert run([*arguments, "--set", f"expire.retentions={retentions}"]) == 0
    assert logs_of(tmp_path) == [10, 20]


def test_segment_that_is_held_back_is_reported_and_deleted_on_request(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    write_partition(logs, "late", 0, [aged_segment(0, -9), aged_segment(10, 9), aged_segment(20, 0)])
    write_offset_checkpoint(logs / HIGH_WATERMARKS, {("late", 0): 30})
    copy_options = add_copy_options(job_argument_parser("copy_segments", ""))
    assert run_plain_job(copy, copy_options, [*arguments, "--set", "copy.topics=late", "--all"]) == 0
    capsys.readouterr()
    retention = ["--set", f"retention.ms={30 * DAY}", "--all"]
    assert run([*arguments, *retention]) == 0
    assert "held back" not in capsys.readouterr().out
    retention = ["--set", f"retention.ms={7 * DAY}", "--all"]
    assert run([*arguments, *retention]) == 0
    assert "is in the future; use --pass-future-timestamps" in capsys.readouterr().out
    assert run([*arguments, *retention, "--pass-future-timestamps"]) == 0
    assert not list((tmp_path / "archive").glob("*/late-0-*/*"))


def test_partition_that_failed_fails_the_run(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in (tmp_path / "archive").glob("*/*/*.leader_epoch_checkpoint"):
        each.write_bytes(b"damaged")
    (tmp_path / "logs" / "orders-0" / "leader-epoch-checkpoint").unlink()
    assert run([*arguments, "--set", "retention.ms=1"]) == 1
    assert "damaged" in capsys.readouterr().out
    assert logs_of(tmp_path) == [0, 10, 20]


@pytest.mark.parametrize(
    ("setting", "printed"),
    [
        ("broker.id=-1", "broker.id is not set"),
        ("archive.layout=aiven", "expires what it has tiered"),
        ("metadata.source=topic", "needs metadata.bootstrap_servers"),
        ("metadata.uri=nowhere", "has no event log of copy_segments"),
        ("metadata.uri=s3://bucket/rlmm", "needs a log for its events"),
        ("retention.ms=-2", "retention.ms"),
        ("warehouse.as_of=v3", "read-only"),
        ("expire.orphan.min.age.ms=1", "expire.orphan.min.age.ms"),
    ],
)
def test_invalid_settings_are_refused_and_nothing_is_deleted(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, printed: str
) -> None:
    assert run([*arguments, "--set", "retention.ms=1", "--set", setting]) == 2
    assert printed in capsys.readouterr().err
    assert logs_of(tmp_path) == [0, 10, 20]


def test_event_log_of_a_broker_is_refused_because_the_broker_expires_its_segments(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broker" / "__remote_log_metadata-0").mkdir(parents=True)
    assert run([*arguments, "--set", f"metadata.uri={tmp_path / 'broker'}"]) == 2
    assert "expires its own segments" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["orders,x,1", "orders,1", "orders,-2,1", ",1,1", "orders,1,1\norders,1,1"])
def test_invalid_retentions_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "retentions.csv"
    path.write_text(f"topic,retention_ms,retention_bytes\n{line}\n")
    with pytest.raises(UsageError, match="line"):
        read_retentions(str(path))
    path.write_text("topic,retention_ms,retention_bytes\norders,5,-1\n")
    assert read_retentions(str(path)) == {"orders": Retention(retention_ms=5)}


def test_every_limit_of_the_settings_reaches_expiry() -> None:
    values = {
        "broker.id": "7",
        "retention.ms": "5000",
        "retention.bytes": "6000",
        "rlm.retry.interval.ms": "8000",
        "expire.orphan.min.age.ms": "90000",
        "remote.log.manager.expiration.thread.pool.size": "3",
    }
    options = expire_options(settings_of(values, "a test"), is_dry_run=False)
    assert (options.broker_id, options.threads) == (7, 3)
    assert options.rules.retention == Retention(retention_ms=5_000, retention_bytes=6_000)
    assert (options.rules.retry_interval_ms, options.rules.orphan_min_age_ms) == (8_000, 90_000)
