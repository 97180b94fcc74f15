"""Test what rebuild_tables moves, what it keeps, and what it refuses before it moves anything."""

from __future__ import annotations

import argparse
import io
import shutil
import tarfile
from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.runtime.console import Console
from coldlog.runtime.job import PlainJob
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.upkeep.rebuild import add_options, set_tables_aside
from coldlog.upkeep.table_places import open_table_place

(PACKED,) = (Path(__file__).parents[2] / "golden" / "warehouses").glob("*.tar.gz")
NO_TABLES = {".coldlog-writer", "coldlog.db"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a `warehouse` and an `archive` with a partition."""
    with tarfile.open(PACKED) as files:
        files.extractall(tmp_path / "warehouse", filter="data")
    (tmp_path / "archive" / "kafka-tiered-storage" / "payments-1-AAAAAAAAAAAAAAAAAAAAAA").mkdir(parents=True)
    return tmp_path


def _set_aside(place: Path, *arguments: str, warehouse: str | None = None) -> str:
    """What the job prints."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    uris = [f"archive.uri={place / 'archive'}", f"warehouse.uri={warehouse or place / 'warehouse'}"]
    progress = io.StringIO()
    console = Console(progress=progress, results=io.StringIO())
    settings = load_settings("local", uris)
    set_tables_aside(PlainJob(settings=settings, arguments=parser.parse_args(arguments), console=console))
    return progress.getvalue()


def _names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir() if each.name not in NO_TABLES}


def _contents(folder: Path) -> dict[Path, bytes]:
    return {each.relative_to(folder): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def _empty_newest_commit(table: Path) -> None:
    max((table / "_delta_log").glob("*.json")).write_bytes(b"")


def test_tables_of_the_archive_are_moved_and_the_others_stay_as_they_are(place: Path) -> None:
    before = _contents(place / "warehouse")
    _empty_newest_commit(place / "warehouse" / "segments")
    told = _set_aside(place)
    (aside,) = place.glob("warehouse.replaced-*")
    kept = {"log_start_offsets", "segment_events", "job_runs", "list_offsets_expirations"}
    assert _names(place / "warehouse") == kept
    assert _names(aside) == {each.parts[0] for each in before} - kept - NO_TABLES
    assert all(
        before[each] == content for each, content in _contents(place / "warehouse").items() if len(each.parts) > 1
    )
    assert str(aside) in told
    assert all(name in told for name in kept)


@pytest.mark.parametrize("is_lost", [False, True], ids=["empty commit", "log lost"])
def test_damaged_table_that_the_archive_cannot_give_is_moved_only_if_it_is_given_up(place: Path, is_lost: bool) -> None:
    table = place / "warehouse" / LOG_START_OFFSETS.name
    if is_lost:
        shutil.rmtree(table / "_delta_log")
    else:
        _empty_newest_commit(table)
    before = _contents(place)
    with pytest.raises(UsageError, match="cannot give the rows of log_start_offsets.*add --give-up log_start_offsets"):
        _set_aside(place)
    assert _contents(place).keys() - {Path("warehouse/.coldlog-writer")} == before.keys() - {
        Path("warehouse/.coldlog-writer")
    }
    _set_aside(place, "--give-up", LOG_START_OFFSETS.name)
    (aside,) = place.glob("warehouse.replaced-*")
    assert (aside / LOG_START_OFFSETS.name).is_dir()
    assert "segment_events" in _names(place / "warehouse")


def test_damaged_history_is_moved(place: Path) -> None:
    _empty_newest_commit(place / "warehouse" / JOB_RUNS.name)
    _set_aside(place)
    assert JOB_RUNS.name not in _names(place / "warehouse")


def test_nothing_is_moved_without_an_archive_or_without_a_warehouse(place: Path) -> None:
    before = _names(place / "warehouse")
    (place / "archive" / "kafka-tiered-storage" / "payments-1-AAAAAAAAAAAAAAAAAAAAAA").rmdir()
    with pytest.raises(UsageError, match=r"correct archive\.uri"):
        _set_aside(place)
    with pytest.raises(UsageError, match="there is no warehouse"):
        _set_aside(place, warehouse=str(place / "other"))
    with pytest.raises(UsageError, match="is neither a folder nor in a bucket"):
        open_table_place("hdfs://host/warehouse")
    assert _names(place / "warehouse") == before
    assert not (place / "other").exists()
