"""Test that the manifest is read once for all tables of a listing, because on S3 each read is a request, and that one
of a newer release is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from coldlog.errors import UsageError
from coldlog.lookups.served_index import list_warehouse_files
from coldlog.lookups.transactions import SegmentQuestions
from coldlog.records.fetch.archive_tables import list_fetch_files
from coldlog.tables.delta import manifest
from coldlog.tables.delta.manifest import (
    HELD_TABLES,
    MANIFEST_FOLDER,
    NUMBERED_TABLES,
    Manifest,
    PublishedTable,
    open_manifests,
    read_manifest,
    write_manifest,
)
from tables.scattered_tables import write_file

_READ: list[str] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and f"/{MANIFEST_FOLDER}/" in str(arguments[0]):
        _READ.append(str(arguments[0]))


sys.addaudithook(_note)


@pytest.fixture
def published(tmp_path: Path) -> str:
    """A warehouse with a manifest of the first versions of its tables."""
    for table in HELD_TABLES:
        for _ in range(4):
            write_file(tmp_path, table, [{}])
    tables = {table.name: PublishedTable(version=0, files={}) for table in HELD_TABLES}
    write_manifest(open_manifests(str(tmp_path)), Manifest(number=1, tables=tables))
    for table in NUMBERED_TABLES:
        numbered = CommitProperties(app_transactions=[Transaction("coldlog-publish", 1)])
        rows = DeltaTable(tmp_path / table.name).to_pyarrow_table()
        write_deltalake(tmp_path / table.name, rows.slice(0, 0), mode="append", commit_properties=numbered)
    return str(tmp_path)


def _ask_transactions(uri: str) -> None:
    SegmentQuestions(uri).aborted_transactions("orders", 0, 0, 9)


@pytest.mark.parametrize("list_files", [list_warehouse_files, list_fetch_files, _ask_transactions])
def test_manifest_is_read_once(list_files: Callable[[str], object], published: str) -> None:
    _READ.clear()
    list_files(published)
    assert len(_READ) == 1


@pytest.mark.parametrize("list_files", [list_warehouse_files, list_fetch_files, _ask_transactions])
def test_warehouse_of_a_newer_release_is_refused_by_its_format(
    list_files: Callable[[str], object], published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = open_manifests(published)
    written = read_manifest(manifests, published, 1)
    assert written is not None
    manifests.remove("00000000000000000001.json")
    with monkeypatch.context() as newer:
        newer.setattr(manifest, "FORMAT", 2)
        assert write_manifest(manifests, written)
    with pytest.raises(UsageError, match=r"has format 2, but this release of coldlog reads formats up to 1; install"):
        list_files(published)


def test_manifest_of_an_earlier_release_does_not_name_its_format(published: str) -> None:
    path = Path(published, MANIFEST_FOLDER, "00000000000000000001.json")
    body = path.read_bytes().splitlines()[0].replace(b'"format":1,', b"")
    path.write_bytes(body + b"\n%08x\n" % crc32c(body))
    list_warehouse_files(published)
