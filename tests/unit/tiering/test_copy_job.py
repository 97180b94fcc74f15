"""Test the job copy_segments from its arguments to its exit code, without Spark."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.metadata_log_writer import holding_jobs_lock
from coldlog.formats.limits import DecodeLimits
from coldlog.launch.entry_point import job_argument_parser, run_plain_job
from coldlog.runtime.console import human_duration
from coldlog.runtime.settings_sources import settings_of
from coldlog.tiering.copying.copy_job import copy, copy_options
from coldlog.tiering.copying.copy_segments import CopyOptions
from coldlog.tiering.job_arguments import add_copy_options
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.tier_assignments import Assignments, Role
from contents.job_runs_table import rows_of, unpack_job_runs
from tier_jobs import orders_arguments
from virtual_clock import VirtualClock


def segment(first: int) -> Segment:
    records = tuple(Record(timestamp_ms=first + at, value=b"v" * 30) for at in range(10))
    return Segment(batches=(Batch(base_offset=first, records=records),), index_interval_bytes=0)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Two closed segments of orders-0; settings that copy them."""
    return orders_arguments(tmp_path, [segment(0), segment(10), segment(20)])


def run(arguments: list[str], clock: Clock | None = None) -> int:
    parser = add_copy_options(job_argument_parser("copy_segments", ""))
    return run_plain_job(lambda job: copy(job, clock), parser, arguments)


def test_run_reports_what_it_copied_and_the_next_one_finds_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    printed = capsys.readouterr()
    assert "2 segments copied" in printed.err
    assert printed.out.splitlines()[2].split()[:3] == ["orders", "0", "2"]
    assert len(list((tmp_path / "archive" / "kafka-tiered-storage").glob("orders-0-*/*.log"))) == 2
    assert len(list((tmp_path / "metadata").glob("__remote_log_metadata-*"))) == 2
    assert run(arguments) == 0
    assert capsys.readouterr().out == "nothing to copy\n"


def read_runs(tmp_path: Path) -> list[dict[str, object]]:
    """The rows of `job_runs` that the jobs of this test wrote."""
    rows = rows_of(str(tmp_path / "warehouse" / "job_runs")).values()
    return [row for row in rows if row["job"] == "copy_segments"]


def test_each_run_has_its_row_with_bytes_waits_and_retries(arguments: list[str], tmp_path: Path) -> None:
    unpack_job_runs(tmp_path / "warehouse")
    clock, scheduled = VirtualClock(), ["--set", "tier.scheduled=true"]
    quota = ["--set", "remote.log.manager.copy.max.bytes.per.second=100"]
    log = tmp_path / "logs" / "orders-0" / f"{0:020d}.log"
    content = log.read_bytes()
    log.write_bytes(content[:-1] + b"?")
    assert run([*arguments, *scheduled], clock) == 1
    log.write_bytes(content)
    clock.time_ms += 30_000
    assert run([*arguments, *scheduled, *quota], clock) == 0
    failed, done = sorted(read_runs(tmp_path), key=lambda row: str(row["outcome"]))
    assert (failed["outcome"], done["outcome"], done["error"]) == ("failed", "succeeded", None)
    assert "1 partitions failed, the first one: " in str(failed["error"])
    assert int(str(done["started_ms"])) <= int(str(done["finished_ms"]))
    figures = json.loads(str(done["summary"]))
    logs = (tmp_path / "archive" / "kafka-tiered-storage").glob("orders-0-*/*.log")
    assert figures.pop("bytes") == sum(log.stat().st_size for log in logs)
    assert figures.pop("seconds") > 0
    assert figures.pop("waited_ms") == sum(clock.waits) > 1_000
    assert figures.pop("longest_throttle_ms") > 1_000
    assert figures == {
        "segments": 2, "waiting_segments": 0, "waits": 1, "gave_up_place": 0,
        "partitions": 1, "failed_partitions": 0, "retries": 1,
    }  # fmt: skip


def test_warehouse_without_the_table_of_runs_gets_none(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    assert not (tmp_path / "warehouse" / "job_runs").exists()
    assert "job_runs" not in capsys.readouterr().err


def test_run_whose_row_cannot_be_written_says_so_and_succeeds(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Path(unpack_job_runs(tmp_path / "warehouse")) / "_delta_log"
    max(log.glob("*.json")).write_text("damaged")
    assert run(arguments) == 0
    printed = capsys.readouterr()
    assert "this run has no row in job_runs: " in printed.err
    assert "2 segments copied" in printed.err


def test_partition_that_failed_fails_the_run_and_one_that_is_held_back_does_not(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs" / "orders-0" / f"{20:020d}.snapshot").unlink()
    assert run(arguments) == 0
    assert "held_back" in capsys.readouterr().out
    log = tmp_path / "logs" / "orders-0" / f"{10:020d}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    assert run(arguments) == 1
    printed = capsys.readouterr()
    assert "damaged" in printed.out
    assert "1 partition failed" in printed.err


def test_unmounted_log_directory_is_reported_and_others_are_copied(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = tmp_path / "away"
    two = ["--set", f"copy.log_directories={tmp_path / 'logs'},{away}"]
    assert run([*arguments, *two]) == 1
    printed = capsys.readouterr()
    assert "2 segments copied" in printed.err
    assert f"log directory {away} cannot be listed" in printed.err
    assert run([*arguments, "--set", f"copy.log_directories={away}"]) == 2
    assert f"log directory {away} cannot be listed" in capsys.readouterr().err


def test_run_that_finds_no_partition_says_where_it_looked(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--set", "copy.topics=ordesr"]) == 0
    assert capsys.readouterr().out == f"no partition of copy.topics = ordesr is in {tmp_path / 'logs'}\n"


@pytest.mark.parametrize(
    ("setting", "printed"),
    [
        ("broker.id=-1", "broker.id is not set"),
        ("copy.log_directories=s3://bucket/logs", "must be local directories"),
        ("archive.layout=aiven", "copy_segments writes only local_tiered_storage"),
        ("metadata.source=topic", "needs metadata.bootstrap_servers"),
        ("metadata.source=table", "needs a log for its events"),
        ("metadata.uri=s3://bucket/rlmm", "needs a log for its events"),
        ("remote.log.manager.copy.max.bytes.per.second=0", "expected bytes"),
        ("archive.uri=tests/golden/kafka-sample/archive", "is a read-only sample of this repository"),
    ],
)
def test_invalid_settings_are_refused_and_nothing_is_copied(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, printed: str
) -> None:
    assert run([*arguments, "--set", setting]) == 2
    assert printed in capsys.readouterr().err
    assert not list(tmp_path.glob("archive/*/*"))


def test_existing_schedule_is_followed_unless_times_are_ignored(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--set", "tier.scheduled=true"]) == 0
    assert "2 segments copied" in capsys.readouterr().err
    assert run(arguments) == 0
    printed = capsys.readouterr()
    assert "1 partition not due" in printed.err
    assert (
        printed.out
        == "no partition is due, or other runs hold those that are; use --all to ignore the schedule's times\n"
    )
    assert run([*arguments, "--all"]) == 0
    assert "not due" not in capsys.readouterr().err
    elsewhere = ["--set", f"warehouse.uri={tmp_path / 'elsewhere'}"]
    assert run([*arguments, *elsewhere]) == 0
    assert "not due" not in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()


def test_runs_with_schedules_of_two_warehouses_cannot_share_an_event_log(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their leases would not exclude each other, and each run would copy everything."""
    arguments += ["--set", "tier.scheduled=true"]
    elsewhere = [*arguments, "--set", f"warehouse.uri={tmp_path / 'elsewhere'}"]
    met: list[int] = []

    class Meeting(VirtualClock):
        def now_ms(self) -> int:
            if not met:
                met.append(-1)
                met[:] = [run(elsewhere, VirtualClock()), run([*arguments, "--all"], VirtualClock())]
            return VirtualClock.now_ms(self)

    assert run(arguments, Meeting()) == 0
    assert met == [2, 0]
    printed = capsys.readouterr().err
    assert f"use the schedule in {tmp_path / 'warehouse'}" in printed
    assert run(elsewhere) == 0


def test_copy_without_a_schedule_cannot_share_an_event_log(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    with holding_jobs_lock(str(tmp_path / "metadata"), is_shared=True):
        assert run(arguments) == 2
        assert "run one job at a time, or run all of them with tier.scheduled=true" in capsys.readouterr().err
        assert run([*arguments, "--set", "tier.scheduled=true"]) == 0


def test_only_partitions_that_this_host_leads_are_copied(arguments: list[str], tmp_path: Path) -> None:
    roles = tmp_path / "roles.csv"
    for role, copied in (("follower", 0), ("leader", 2)):
        roles.write_text(f"topic,partition,role\norders,0,{role}\npayments,3,leader\n")
        assert run([*arguments, "--set", f"tier.assignments={roles}"]) == 0
        assert len(list((tmp_path / "archive").glob("*/orders-0-*/*.log"))) == copied


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        ("topic,partition\norders,0\n", "the first line must name topic,partition,role"),
        (
            "topic,partition,role\norders,0,owner\n",
            "line 2: expected a partition number and the role leader or follower",
        ),
        (
            "topic,partition,role\norders,x,leader\n",
            "line 2: expected a partition number and the role leader or follower",
        ),
        ("topic,partition,role\norders,0,leader\norders,0,follower\n", "line 3: orders-0 is named twice"),
    ],
)
def test_invalid_assignments_are_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, printed: str
) -> None:
    (tmp_path / "roles.csv").write_text(content)
    assert run([*arguments, "--set", f"tier.assignments={tmp_path / 'roles.csv'}"]) == 2
    assert printed in capsys.readouterr().err
    assert run([*arguments, "--set", f"tier.assignments={tmp_path / 'none.csv'}"]) == 2
    assert "tier.assignments cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("is_mount_point_there", [False, True])
def test_unmounted_archive_is_not_created_and_is_copied_to_when_it_is_back(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], is_mount_point_there: bool
) -> None:
    assert run([*arguments, "--set", "copy.topics=none"]) == 0
    archive, away = tmp_path / "archive", tmp_path / "away"
    assert list(archive.iterdir()) == [archive / "kafka-tiered-storage"]
    archive.rename(away)
    if is_mount_point_there:
        archive.mkdir()
    assert run(arguments) == 1
    printed = capsys.readouterr()
    assert "retriable" in printed.out
    assert "mount its disk" in printed.out
    assert not archive.exists() or not list(archive.iterdir())
    if is_mount_point_there:
        archive.rmdir()
    away.rename(archive)
    assert run(arguments) == 0
    assert len(list(archive.glob("*/orders-0-*/*.log"))) == 2


def test_archive_that_could_not_be_created_is_created_by_the_next_run(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("coldlog.archive.stores.local_writer.make_directories", fail)
        assert run(arguments) == 1
    assert run(arguments) == 0
    assert len(list((tmp_path / "archive").glob("*/orders-0-*/*.log"))) == 2


def test_unmounted_event_log_is_begun_again_only_on_request(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    metadata, away = tmp_path / "metadata", tmp_path / "away"
    metadata.rename(away)
    metadata.mkdir()
    assert run(arguments) == 1
    assert "check the mount and metadata.uri" in capsys.readouterr().err
    assert not list(metadata.iterdir())
    assert len(list((tmp_path / "archive").glob("*/orders-0-*/*.log"))) == 2
    metadata.rmdir()
    away.rename(metadata)
    assert run(arguments) == 0
    metadata.rename(away)
    metadata.mkdir()
    (metadata / "coldlog-metadata-log").touch()
    assert run(arguments) == 0
    assert len(list((tmp_path / "archive").glob("*/orders-0-*/*.log"))) == 4


def test_every_limit_of_the_settings_reaches_the_copy(tmp_path: Path) -> None:
    roles = tmp_path / "roles.csv"
    roles.write_text("topic,partition,role\norders,0,leader\n")
    values = {
        "broker.id": "7",
        "copy.topics": "orders, pay*",
        "copy.fairness": "true",
        "copy.assume_committed": "true",
        "copy.allow_gaps": "true",
        "remote.log.manager.copier.thread.pool.size": "3",
        "remote.log.manager.copy.max.bytes.per.second": "10MiB",
        "remote.log.manager.copy.quota.window.num": "13",
        "remote.log.manager.copy.quota.window.size.seconds": "2",
        "upload.rate.limit.bytes.per.second": "5MiB",
        "index.window_bytes": "2MiB",
        "index.max_batch_bytes": "17MiB",
        "index.max_decompressed_bytes": "19MiB",
        "tier.assignments": str(roles),
    }
    assert copy_options(settings_of(values, "a test")) == CopyOptions(
        broker_id=7,
        quota=QuotaConfig(bytes_per_second=10 << 20, window_count=13, window_ms=2_000),
        limits=DecodeLimits(max_batch_bytes=17 << 20, max_decompressed_bytes=19 << 20),
        topics=("orders", "pay*"),
        assignments=Assignments({("orders", 0): Role.LEADER}),
        threads=3,
        is_fair=True,
        assumes_committed=True,
        allows_gaps=True,
        bytes_per_second_in_segment=5 << 20,
        window_bytes=2 << 20,
    )
    by_default = copy_options(settings_of({"broker.id": "7"}, "a test"))
    assert (by_default.quota, by_default.is_fair, by_default.bytes_per_second_in_segment) == (
        QuotaConfig(),
        False,
        None,
    )


def test_throttling_is_reported(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size_bytes = (tmp_path / "logs" / "orders-0" / f"{0:020d}.log").stat().st_size
    clock, quota = VirtualClock(), f"remote.log.manager.copy.max.bytes.per.second={-(-size_bytes // 90)}"
    assert run([*arguments, "--set", quota], clock) == 0
    printed = capsys.readouterr().err
    assert "2 segments copied" in printed
    waited_ms = sum(clock.waits)
    assert 85_000 < waited_ms < 95_000
    assert f"throttled {human_duration(waited_ms / 1000)} in 1 waits" in printed
    assert run([*arguments, "--set", quota], clock) == 0
    assert "throttled" not in capsys.readouterr().err
