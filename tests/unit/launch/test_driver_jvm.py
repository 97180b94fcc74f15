"""Test when jobs whose rows go through Spark get the small JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.launch.driver_jvm import has_large_tables
from coldlog.runtime.settings_sources import load_settings
from tables.small_warehouse import write_small_warehouse

MANY = 17 << 20


@pytest.mark.parametrize(
    ("grown", "is_large"),
    [
        ([], False),
        ([("segments", MANY // 2)], False),
        ([("segments", MANY // 2), ("txn_index/more", MANY // 2 + 1)], True),
        ([("data_docs", MANY)], False),
    ],
    ids=["as it is", "half", "two tables together", "not a table"],
)
def test_tables_are_large_by_their_bytes_together(grown: list[tuple[str, int]], is_large: bool, tmp_path: Path) -> None:
    uri = write_small_warehouse(tmp_path)
    for folder, size in grown:
        path = Path(uri, folder, "grown.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
    assert has_large_tables(load_settings("local", [f"warehouse.uri={uri}"])) is is_large


def test_tables_in_a_bucket_count_as_large() -> None:
    assert has_large_tables(load_settings("local", ["warehouse.uri=s3://bucket/tables"]))
