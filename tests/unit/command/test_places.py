"""Test what commands say of a place that is no warehouse, and of one that an earlier release made."""

from __future__ import annotations

import csv
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from coldlog.archive.stores import s3_failures
from coldlog.command.main import main
from coldlog.tables.delta.table_storage import storage_error

EARLIER = Path(__file__).parents[2] / "golden" / "warehouses" / "2026-11-24.tar.gz"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("", "is not coldlog's table segments (there is no folder {place}/segments)"),
        ("none", "there are no tables in {place}: no such folder;"),
        ("file", "is not coldlog's table segments ({place} is not a folder)"),
    ],
)
def test_a_place_without_tables_is_named_with_the_cause(
    name: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / name if name else tmp_path
    assert main(["lookup", "orders", "0", "-w", str(place)]) == 2
    written = capsys.readouterr()
    assert (written.out, written.err.count("\n")) == ("", 1)
    assert cause.format(place=place) in written.err
    assert "run the pipeline into this warehouse first, or correct warehouse.uri" in written.err


def test_columns_that_an_earlier_release_did_not_have_are_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(EARLIER) as files:
        files.extractall(tmp_path, filter="data")
    assert main(["partitions", "--json", "-w", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["finished_max_timestamp_ms"] for row in rows] == [None] * len(rows) != []
    assert main(["partitions", "--csv", "-w", str(tmp_path)]) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == len(rows)


def test_a_table_that_may_not_be_read_is_explained_without_the_packages_of_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read every file, so the error is made here."""
    for name in ("aiohttp", "botocore", "s3fs"):
        monkeypatch.setitem(sys.modules, name, None)
    s3_failures._kinds.cache_clear()
    told = storage_error(PermissionError(13, "Permission denied"), str(tmp_path))
    assert f"the table {tmp_path} cannot be read: [Errno 13] Permission denied" in str(told)
