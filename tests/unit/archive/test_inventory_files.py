"""Test that rows of S3 Inventory files are read as AWS means them, whatever their format, and damage is an error."""

from __future__ import annotations

import random

import pytest

from coldlog.archive.inventory.report_files import iter_rows
from coldlog.errors import ArchiveError
from servers.inventory_reports import FORMATS, Reported, write_rows

ODD_KEYS = ("t/a b", "t/a+b", "t/a%2Fb", "t/ü/日本", 't/"quoted",comma', "t/%", "t/a//b", "t/", "t/ ")
_CSV = ("Bucket", "Key", "Size", "LastModifiedDate", "ETag")


def _read(content: bytes, file_format: str, columns: tuple[str, ...] = _CSV) -> list[tuple[str, int, int]]:
    tables = iter_rows("data/file", memoryview(content), file_format, columns, "t/")
    return [(row["key"], row["size_bytes"], row["modified_ms"]) for each in tables for row in each.to_pylist()]


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_format_gives_the_keys_sizes_and_times_below_the_prefix(file_format: str) -> None:
    keys = [*ODD_KEYS, *(f"t/{number}" for number in range(500)), "T/x", "other/t/x", "t"]
    random.Random(1).shuffle(keys)
    rows = [Reported(key=key, size=at << 30, modified_ms=1_700_000_000_000 + at) for at, key in enumerate(keys)]
    expected = [(row.key, row.size, row.modified_ms) for row in rows if row.key.startswith("t/")]
    assert _read(write_rows(rows, file_format), file_format) == expected


@pytest.mark.parametrize("file_format", FORMATS)
def test_only_the_latest_version_counts_and_no_delete_marker(file_format: str) -> None:
    rows = [
        Reported(key="t/replaced", size=1, is_latest=False),
        Reported(key="t/replaced", size=2, is_latest=True),
        Reported(key="t/deleted", size=3, is_latest=False),
        Reported(key="t/deleted", size=None, is_latest=True, is_delete_marker=True),
        Reported(key="t/restored", size=None, is_latest=False, is_delete_marker=True),
        Reported(key="t/restored", size=4, is_latest=True),
    ]
    columns = ("Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker", "Size", "LastModifiedDate", "ETag")
    found = _read(write_rows(rows, file_format, columns), file_format, columns)
    assert [row[:2] for row in found] == [("t/replaced", 2), ("t/restored", 4)]


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("missing", ["Key", "Size", "LastModifiedDate", "IsLatest"])
def test_a_report_without_a_column_is_refused_with_its_name(file_format: str, missing: str) -> None:
    whole = ("Bucket", "Key", "VersionId", "IsLatest", "Size", "LastModifiedDate")
    columns = tuple(name for name in whole if name != missing)
    with pytest.raises(ArchiveError, match=f"lacks columns.*data/file: expected {missing}, found "):
        _read(write_rows([Reported(key="t/x", is_latest=True)], file_format, columns), file_format, columns)


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("row", [Reported(key="t/x", size=None), Reported(key="t/x", modified_ms=None)])
def test_an_object_without_size_or_date_is_refused(file_format: str, row: Reported) -> None:
    with pytest.raises(ArchiveError, match="an object without a key, size or date"):
        _read(write_rows([Reported(key="t/y"), row], file_format), file_format)


@pytest.mark.parametrize("file_format", FORMATS)
def test_any_bytes_are_read_or_refused_with_the_name_of_the_file(file_format: str) -> None:
    chance = random.Random(2)
    rows = [Reported(key=f"t/{number}") for number in range(50)]
    whole = write_rows(rows, file_format)
    for _ in range(200):
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        refused = _refusal(bytes(content[: chance.choice([None, len(whole) // 2, 3])]), file_format)
        if refused is not None:
            assert refused.object_name == "data/file"
            assert "scan.inventory_uri" in str(refused)
            assert "\n" not in str(refused)


def _refusal(content: bytes, file_format: str) -> ArchiveError | None:
    try:
        _read(content, file_format)
    except ArchiveError as refused:
        return refused
    return None
