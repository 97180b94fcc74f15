"""Test that an entry of a log that changed since the publish, and a live file that is missing, are damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from coldlog.errors import ColdlogError, RetriableError
from coldlog.tables.delta.files.parquet_files import PublishedFile
from coldlog.tables.delta.files.table_files import ColumnRanges, TableFiles
from coldlog.tables.delta.manifest import Manifest, PublishedTable, hold
from coldlog.tables.delta.table_storage import storage_error

NO_RANGES = ColumnRanges(minima={}, maxima={}, count=2)
FILES = TableFiles(location="/warehouse/segments", version=7, paths=("a", "b"), ranges=NO_RANGES, actions=(1, 2))


@pytest.mark.parametrize("version", [7, 8], ids=["the version that was published", "a later one"])
def test_entry_of_the_log_is_that_of_the_publish(version: int) -> None:
    """Size and statistics are in it: a changed one hides records from lookups."""
    published = {
        path: PublishedFile(size_bytes=9, footer_bytes=8, footer_crc32c=0, action_crc32c=action)
        for path, action in zip(FILES.paths, FILES.actions, strict=True)
    }
    manifest = Manifest(number=3, tables={"segments": PublishedTable(version=7, files=published)})
    read = replace(FILES, version=version, publish_number=3)
    assert hold(read, manifest).published == tuple(published.values())
    with pytest.raises(ColdlogError, match=r"/warehouse/segments/_delta_log is damaged: .*the entry of b has changed"):
        hold(replace(read, actions=(1, 3)), manifest)


def test_missing_file_is_damage_only_if_the_newest_version_needs_it(tmp_path: Path) -> None:
    """Otherwise VACUUM removed it, and the reader of an older version may ask again."""
    for count in (1, 2):
        write_deltalake(tmp_path, pa.table({"count": [count]}), mode="overwrite")
    (live,) = (Path(each).name for each in DeltaTable(tmp_path).file_uris())
    (old,) = (each.name for each in tmp_path.glob("*.parquet") if each.name != live)
    errors = {}
    for name in (live, old):
        (tmp_path / name).unlink()
        errors[name] = storage_error(FileNotFoundError(2, "missing", name), str(tmp_path), name)
    assert isinstance(errors[old], RetriableError)
    assert not isinstance(errors[live], RetriableError)
    assert f"{tmp_path}/{live} is damaged: it is missing, but the table's newest version needs it" in str(errors[live])
