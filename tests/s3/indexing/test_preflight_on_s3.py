"""Test that a run over a bucket and a warehouse in it ends without Spark if nothing has changed, under its lease."""

from __future__ import annotations

import argparse
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path

import pytest

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.indexing import preflight
from coldlog.indexing.preflight import end_unchanged_run
from coldlog.indexing.run_log import record_unchanged_run
from coldlog.indexing.scan.listing import ArchiveDigest, DirectoryDigest, digest_archive
from coldlog.indexing.witness import KEY, log_starts_digest, read_surroundings, read_table_states, witness_of_run
from coldlog.runtime.console import Console
from coldlog.runtime.job import PlainJob
from coldlog.runtime.open_layout import layout_opener
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.delta.files.table_files import open_table
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.delta.run_rows import now_ms, read_newest_run
from coldlog.tables.leases.lease_objects import COMMITS_PER_LEASE
from coldlog.tables.leases.warehouse_lease import APPLICATION, LeaseLostError, take_lease
from coldlog.tables.leases.warehouse_lock import writing
from contents.job_runs_table import run_row
from servers.s3_server import Bucket
from worlds.kafka_sample import KAFKA_SAMPLE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A bucket with the warehouse of the sample and one of its partitions."""

    bucket: Bucket
    name: str
    """The name of an object of the archive."""

    @property
    def warehouse(self) -> str:
        return self.bucket.uri("warehouse")

    def job(self) -> PlainJob:
        settings = load_settings("local", [f"archive.uri={self.bucket.uri('tier')}", f"warehouse.uri={self.warehouse}"])
        console = Console(progress=io.StringIO(), results=io.StringIO())
        return PlainJob(settings=settings, arguments=argparse.Namespace(), console=console)

    def newest_run_id(self) -> object:
        row = read_newest_run(self.warehouse)
        return row and row["run_id"]


@pytest.fixture
def place(bucket: Bucket, golden_uri: str) -> Place:
    """A run has left its witness. The run itself needs Spark; its witness is that of the same functions."""
    source = KAFKA_SAMPLE / "archive" / "kafka-tiered-storage"
    (found,) = source.glob("payments-1-*")
    bucket.put_directory(found, f"tier/{source.name}/{found.name}")
    bucket.put_directory(Path(golden_uri), "warehouse")
    name = min(key for key in sorted(bucket.keys()) if key.startswith("tier/"))
    place = Place(bucket=bucket, name=name)
    settings = place.job().settings
    archive = digest_archive(layout_opener(settings)())
    scan = {"unlisted_count": 0, "listing_digest": archive.digest, "log_starts_digest": log_starts_digest({})}
    witness = witness_of_run(settings, read_surroundings(settings), {"metadata": None, "scan": scan})
    assert witness is not None
    with writing(place.warehouse) as lease:
        assert record_unchanged_run(place.warehouse, lease, "run_pipeline", now_ms(), {KEY: witness})
    return place


def test_unchanged_run_on_s3_commits_under_its_lease(place: Place) -> None:
    before = place.newest_run_id()
    assert end_unchanged_run(place.job()).exit_code == 0
    assert place.newest_run_id() != before
    number = open_table(f"{place.warehouse}/{JOB_RUNS.name}", JOB_RUNS).transaction_version(APPLICATION)
    with writing(place.warehouse) as lease:
        assert lease is not None
        assert not lease.was_abandoned
        assert number == (lease.number - 1) * COMMITS_PER_LEASE + 1


def test_lease_that_was_not_released_is_left_to_spark(place: Place) -> None:
    with pytest.raises(KeyboardInterrupt), writing(place.warehouse):
        raise KeyboardInterrupt
    before = place.newest_run_id()
    assert end_unchanged_run(place.job()).exit_code is None
    assert place.newest_run_id() == before
    with writing(place.warehouse) as lease:
        assert lease is not None
        assert lease.was_abandoned


def test_replaced_object_is_noticed(place: Place) -> None:
    place.bucket.put({place.name: b"other"})
    assert end_unchanged_run(place.job()).exit_code is None


@pytest.mark.parametrize("has_written", [False, True], ids=["taken-over", "written"])
def test_unchanged_run_that_wakes_after_another_job_took_over_is_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch, has_written: bool
) -> None:
    """The preflight sleeps past its lease while it lists the archive. If the other job has written `job_runs`, the late
    commit is refused; if not, its row says the truth. Neither job changes another table."""
    before, newest = read_table_states(place.warehouse), place.newest_run_id()

    def list_slowly(layout: ArchiveLayout, known: Mapping[str, DirectoryDigest]) -> ArchiveDigest:
        digest = digest_archive(layout, known)
        bucket, prefix = place.bucket.name, "warehouse"
        other = take_lease(place.warehouse, bucket, prefix, ttl_s=-1)
        if has_written:
            change = RowChange(added=[run_row("other", started_ms=2**62)])
            commit_rows(f"{place.warehouse}/{JOB_RUNS.name}", JOB_RUNS, change, (APPLICATION, other.first_version))
        return digest

    monkeypatch.setattr(preflight, "digest_archive", list_slowly)
    with pytest.raises(LeaseLostError, match="was taken over"):
        end_unchanged_run(place.job())
    assert read_table_states(place.warehouse) == before
    if has_written:
        assert place.newest_run_id() == "other"
    else:
        assert place.newest_run_id() != newest
    monkeypatch.undo()
    assert end_unchanged_run(place.job()).exit_code is None, "the lease was not released"
