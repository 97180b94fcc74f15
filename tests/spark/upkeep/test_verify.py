"""Test that a verification reads all tables and lists every damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from coldlog.errors import UsageError
from coldlog.upkeep.verify import verify_tables
from damage.damaged_tables import forget_checksums


@pytest.fixture
def copy(golden_uri: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden_uri, tmp_path / "warehouse"))


def _live_file(table: Path) -> Path:
    return table / Path(DeltaTable(table).file_uris()[0]).name


def _flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def test_sound_warehouse_is_read_whole_and_has_no_damage(golden_uri: str) -> None:
    found = verify_tables(golden_uri)
    files = [
        Path(each) for table in Path(golden_uri).glob("*/_delta_log") for each in DeltaTable(table.parent).file_uris()
    ]
    assert (found.file_count, found.damages) == (len(files), [])
    assert found.size_bytes == sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("has_checksums", [True, False], ids=["with checksums", "as in an object store"])
def test_every_damage_is_listed(copy: Path, has_checksums: bool) -> None:
    if not has_checksums:
        forget_checksums(copy)
    page, footer, lost = (_live_file(copy / name) for name in ("offset_index", "segments", "time_index"))
    _flip(page, 100)
    _flip(footer, -30)
    lost.unlink()
    commit = max((copy / "discrepancies" / "_delta_log").glob("*.json"))
    commit.write_bytes(b"")
    damages = verify_tables(str(copy)).damages
    for file in (page, footer, lost, commit):
        assert [f"{file} is damaged: " in damage for damage in damages].count(True) == 1, file
    assert len(damages) == 4


def test_place_without_a_warehouse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not coldlog's table segments"):
        verify_tables(str(tmp_path))
