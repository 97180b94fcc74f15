"""Test that records are read as of the moment that `warehouse.as_of` names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from coldlog.command.main import main
from coldlog.fetcher import open_fetcher
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure
from coldlog.records.fetch.archive_tables import list_fetch_files
from coldlog.tables.delta.as_of import find_moment_without_spark

CREATED_S, LATER_S = 1_700_000_000, 1_700_100_000
BETWEEN = f"warehouse.as_of={(CREATED_S + 500) * 1000}"


@pytest.fixture
def warehouse(golden_uri: str, tmp_path: Path) -> Path:
    """The sample's warehouse: its tables were created long before their later versions, which keep their order."""
    copy = tmp_path / "warehouse"
    shutil.copytree(golden_uri, copy)
    commits = sorted(copy.glob("*/_delta_log/*.json"), key=lambda commit: commit.stat().st_mtime_ns)
    for number, commit in enumerate(commits):
        seconds = CREATED_S if int(commit.stem) == 0 else LATER_S + number
        os.utime(commit, (seconds, seconds))
    return copy


def test_fetcher_answers_as_of_that_moment_also_after_a_refresh(warehouse: Path) -> None:
    settings = [f"warehouse.uri={warehouse}"]
    with open_fetcher([*settings, BETWEEN]) as then, open_fetcher(settings) as now:
        for _ in range(2):
            answer = then.fetch_records("orders", 0, 2592)
            assert isinstance(answer, FetchFailure)
            assert answer.error is FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert then.partition_ends("orders", 0) is None
            then.refresh()
        assert isinstance(now.fetch_records("orders", 0, 2592), FetchedRecords)


def test_cat_prints_the_records_of_that_moment(warehouse: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["cat", "orders", "-o", "-1", "-f", "%o", "-w", str(warehouse)]
    assert main([*command, "--set", BETWEEN]) == 2
    assert "does not know the topic 'orders'" in capfd.readouterr().err
    assert main([*command, "--set", "warehouse.as_of=now"]) == 0
    assert capfd.readouterr().out == "3952"


def test_a_version_is_that_version_whatever_its_commit_says_of_its_time(warehouse: Path) -> None:
    log = warehouse / "partition_metadata" / "_delta_log"
    versions = [int(commit.stem) for commit in sorted(log.glob("*.json"))]
    found = [
        list_fetch_files(
            str(warehouse), find_moment_without_spark(f"v{version}", str(warehouse))
        ).logs.lookups.partitions
        for version in versions
    ]
    assert [files.version for files in found] == versions
