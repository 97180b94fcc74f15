"""Test that every way of asking holds the tables to what was published."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from coldlog.errors import ColdlogError
from coldlog.reader import OffsetReader
from coldlog.records.fetch.archive_tables import list_fetch_files
from coldlog.records.source.archived_log import list_source_files
from coldlog.sql import attach_warehouse
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.delta import manifest
from coldlog.tables.delta.files.table_files import PUBLISH_APPLICATION, TableFiles
from coldlog.tables.delta.manifest import (
    HELD_TABLES,
    NUMBERED_TABLES,
    check_footers,
    check_published,
    open_manifests,
    read_manifest,
)
from coldlog.tables.delta.publish_manifest import publish_manifest
from coldlog.tables.delta.warehouse import Warehouse
from worlds.golden_warehouse import golden_queries

Use = Callable[[SparkSession, str], object]
WAYS: dict[str, Use] = {
    "offsets": lambda spark, uri: OffsetReader(uri).list_offsets([("append-clock", 0, 0)]),
    "fetches": lambda spark, uri: list_fetch_files(uri),
    "records": lambda spark, uri: list_source_files(uri, None),
    "functions": attach_warehouse,
    "jobs": lambda spark, uri: Warehouse(spark=spark, uri=uri).create_missing(),
}
NOT_ASKED = {"offsets": {"txn_index", "txn_segments", "quarantine"}, "records": {"txn_segments", "quarantine"}}
NOT_ASKED["fetches"] = {"txn_segments"}


@pytest.fixture
def copy(golden_uri: str, tmp_path: Path) -> Path:
    """A warehouse that the test may damage."""
    return Path(shutil.copytree(golden_uri, tmp_path / "warehouse"))


def _numbers(warehouse: Path) -> list[int | None]:
    return [DeltaTable(warehouse / each.name).transaction_version(PUBLISH_APPLICATION) for each in NUMBERED_TABLES]


def _take_back(table: Path, version: int) -> None:
    """Make the table the copy that was taken at a version."""
    for each in (table / "_delta_log").iterdir():
        number = each.name.lstrip(".").partition(".")[0]
        if number.isdigit() and int(number) > version:
            each.unlink()


def _forget_checksums(table: Path) -> None:
    """As if an object store held the files."""
    for each in table.rglob(".*.crc"):
        each.unlink()


def test_run_gives_both_tables_one_number_and_a_manifest_of_the_live_files(golden_uri: str) -> None:
    (number,) = set(_numbers(Path(golden_uri)))
    assert number is not None
    stored = read_manifest(open_manifests(golden_uri), golden_uri, number)
    assert stored is not None
    assert {name: sorted(table.files) for name, table in stored.tables.items()} == {
        table.name: sorted(Path(uri).name for uri in DeltaTable(Path(golden_uri) / table.name).file_uris())
        for table in HELD_TABLES
    }


def test_tables_that_are_published_get_no_new_number(spark: SparkSession, copy: Path) -> None:
    before = _numbers(copy)
    assert publish_manifest(Warehouse(spark=spark, uri=str(copy))) is None
    assert _numbers(copy) == before


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("table", [each.name for each in HELD_TABLES])
def test_older_copy_of_a_table_is_refused(spark: SparkSession, copy: Path, table: str, way: str) -> None:
    stored = read_manifest(open_manifests(str(copy)), str(copy), max(filter(None, _numbers(copy))))
    assert stored is not None
    published = stored.tables[table].version
    if not published or table in NOT_ASKED.get(way, ()):
        WAYS[way](spark, str(copy))
        return
    _take_back(copy / table, published - 1)
    with pytest.raises(ColdlogError, match=f"{copy / table} is damaged: it has version {published - 1}, but publish"):
        WAYS[way](spark, str(copy))


@pytest.mark.parametrize("way", ["jobs", "functions"])
def test_lost_table_that_a_killed_run_made_again_is_refused(spark: SparkSession, copy: Path, way: str) -> None:
    """It is empty until a run publishes; the way out is to make all tables anew."""
    shutil.rmtree(copy / "txn_segments")
    assert Warehouse(spark=spark, uri=str(copy)).create_missing() == 1
    refusal = f"{copy / 'txn_segments'} is damaged: it has version 0, but publish .* run rebuild_tables"
    with pytest.raises(ColdlogError, match=refusal):
        WAYS[way](spark, str(copy))


@pytest.mark.parametrize("way", WAYS)
def test_publish_that_has_numbered_one_table_so_far_is_not_refused(spark: SparkSession, copy: Path, way: str) -> None:
    numbered = copy / "partition_metadata"
    _take_back(numbered, DeltaTable(numbered).version() - 1)
    assert len(set(_numbers(copy))) == 2
    WAYS[way](spark, str(copy))
    assert publish_manifest(Warehouse(spark=spark, uri=str(copy))) is not None
    assert len(set(_numbers(copy))) == 1


def test_publish_between_the_listings_of_both_tables_is_not_refused(
    golden_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings, list_now = list[int](), manifest.list_held

    def list_in_turn(uri: str, tables: Sequence[TableDefinition]) -> list[TableFiles]:
        """`segments` was listed before the publish, `partition_metadata` after it."""
        segments, *others = list_now(uri, tables)
        listings.append(segments.version)
        return [replace(segments, version=0) if len(listings) == 1 else segments, *others]

    monkeypatch.setattr(manifest, "list_held", list_in_turn)
    assert len(check_published(golden_uri)) == len(HELD_TABLES)
    assert len(listings) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", ["removed", "emptied", "flipped"])
def test_damaged_manifest_is_refused(spark: SparkSession, copy: Path, damage: str, way: str) -> None:
    path = max((copy / "_manifest").glob("*.json"))
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "emptied" else content[:99] + bytes([content[99] ^ 1]) + content[100:])
    with pytest.raises(ColdlogError, match=f"{path} is damaged: .*; restore it from a copy"):
        WAYS[way](spark, str(copy))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", ["statistics", "a file less", "another file"])
def test_changed_entry_of_the_log_is_refused(spark: SparkSession, copy: Path, change: str, way: str) -> None:
    """In an object store there are no checksums beside the log."""
    table = copy / "time_index"
    _forget_checksums(table)
    (commit,) = (each for each in (table / "_delta_log").glob("*.json") if '"add"' in each.read_text())
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    added = [action["add"] for action in actions if "add" in action]
    if change == "statistics":
        added[0]["stats"] = added[0]["stats"].replace('"numRecords":', '"numRecords":1')
    elif change == "another file":
        actions.append({"add": {**added[0], "path": f"x{added[0]['path']}"}})
    else:
        actions.remove({"add": added[0]})
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    for facts in (table / "_delta_log").glob("*.crc"):
        facts.unlink()
    with pytest.raises(ColdlogError, match=f"{table}/_delta_log is damaged: at version "):
        WAYS[way](spark, str(copy))


def test_flipped_footer_is_refused_before_it_is_parsed(spark: SparkSession, copy: Path) -> None:
    """Of such flips, Arrow takes some for other statistics or other tables, and some end the process."""
    chance, uri = random.Random(24), str(copy)
    asked = [(str(each["topic"]), int(str(each["partition"])), int(str(each["ts"]))) for each in golden_queries()]
    for table in ("segments", "partition_metadata", "time_index"):
        _forget_checksums(copy / table)
        for file in [copy / table / Path(each).name for each in DeltaTable(copy / table).file_uris()]:
            sound = file.read_bytes()
            footer_bytes = int.from_bytes(sound[-8:-4], "little")
            for _ in range(6):
                content = bytearray(sound)
                content[-chance.randrange(footer_bytes + 8) - 1] ^= 1 << chance.randrange(8)
                file.write_bytes(content)
                with pytest.raises(ColdlogError, match=f"{file} is damaged: its footer differs"):
                    check_footers(check_published(uri))
                with OffsetReader(uri) as reader, pytest.raises(ColdlogError, match=f"{file} is damaged: its footer"):
                    reader.list_offsets(asked)
            with pytest.raises(ColdlogError, match=f"{file} is damaged: its footer differs"):
                attach_warehouse(spark, uri)
            file.write_bytes(sound)
