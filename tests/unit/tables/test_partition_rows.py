"""Test that of a large table only the row groups of wanted partitions are read, and all of their rows."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coldlog.errors import ColdlogError
from coldlog.tables.delta.files.partition_rows import WantedPartitions, greatest_of_row_groups, read_partition_rows

_SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("added", pa.string())])
_STORED = pa.schema([_SCHEMA.field(name) for name in ("topic", "partition", "offset")])
_GROUP_ROWS = 50
_ALL = 1 << 40


def _rows(chosen: random.Random, count: int) -> list[dict[str, object]]:
    """Rows of topics a to d, some without a topic or, as an unreadable event, without a partition too."""
    rows: list[dict[str, object]] = []
    for offset in range(count):
        topic = chosen.choice(["a", "b", "c", "d", None])
        partition = None if topic is None and chosen.random() < 0.5 else chosen.randrange(12)
        rows.append({"topic": topic, "partition": partition, "offset": offset})
    return rows


def _write(folder: Path, name: str, rows: list[dict[str, object]], *, is_sorted: bool) -> None:
    table = pa.Table.from_pylist(rows, schema=_STORED)
    if is_sorted:
        table = table.sort_by([("topic", "ascending"), ("partition", "ascending")])
    pq.write_table(table, folder / name, row_group_size=_GROUP_ROWS, write_page_checksum=True)


@pytest.mark.parametrize("is_sorted", [True, False])
def test_rows_are_those_of_a_scan(tmp_path: Path, *, is_sorted: bool) -> None:
    chosen = random.Random(7)
    rows = _rows(chosen, 600)
    for number in range(3):
        _write(tmp_path, f"{number}.parquet", rows[number::3], is_sorted=is_sorted)
    for _ in range(200):
        drawn = [(chosen.choice("abcde"), chosen.randrange(14)) for _ in range(chosen.randrange(1, 6))]
        wanted = frozenset(drawn)
        numbers = {number for _, number in wanted}
        found = read_partition_rows(
            str(tmp_path), [f"{number}.parquet" for number in range(3)], _SCHEMA, WantedPartitions.of(wanted), _ALL
        )
        assert found is not None
        assert found.schema == _SCHEMA
        expected = [
            row
            for row in rows
            if (row["topic"], row["partition"]) in wanted or (row["topic"] is None and row["partition"] in numbers)
        ]
        by_offset = sorted(found.to_pylist(), key=lambda row: row["offset"])
        assert by_offset == [{**row, "added": None} for row in expected]


def test_other_row_groups_are_not_decoded(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"topic": "a", "partition": at // 100, "offset": at} for at in range(1_000)]
    _write(tmp_path, "file.parquet", rows, is_sorted=True)
    wanted = WantedPartitions.of({("a", 3)})
    # Two of twenty row groups: more than their rows are never decoded, and fewer are too few.
    for most, count in ((100, 100), (99, None)):
        found = read_partition_rows(str(tmp_path), ["file.parquet"], _SCHEMA, wanted, most)
        assert (None if found is None else len(found)) == count
    content = bytearray((tmp_path / "file.parquet").read_bytes())
    damaged = pq.read_metadata(tmp_path / "file.parquet").row_group(12).column(2)
    content[damaged.dictionary_page_offset + damaged.total_compressed_size // 2] ^= 1
    (tmp_path / "file.parquet").write_bytes(content)
    found = read_partition_rows(str(tmp_path), ["file.parquet"], _SCHEMA, wanted, _ALL)
    assert found is not None
    assert found["offset"].to_pylist() == list(range(300, 400))
    with pytest.raises(ColdlogError, match=r"file\.parquet"):
        read_partition_rows(str(tmp_path), ["file.parquet"], _SCHEMA, WantedPartitions.of({("a", 6)}), _ALL)


def test_files_are_chosen_by_their_statistics() -> None:
    actions = pa.table(
        {
            "path": ["all", "b to c", "c only", "unknown", "tombstones"],
            "min.topic": ["a", "b", "c", None, "x"],
            "max.topic": ["d", "c", "c", None, "x"],
            "min.partition": [0, 5, 2, None, 0],
            "max.partition": [9, 6, 2, None, 1],
            "null_count.topic": [0, 0, 0, None, 3],
        }
    )

    def files(*wanted: tuple[str, int]) -> list[str]:
        paths: list[str] = WantedPartitions.of(wanted).files(actions)["path"].to_pylist()
        return paths

    assert files(("b", 5)) == ["all", "b to c", "unknown"]
    assert files(("c", 2)) == ["all", "c only", "unknown"]
    assert files(("c", 1)) == ["all", "unknown", "tombstones"]
    assert files(("e", 7)) == ["unknown"]
    assert files(("e", 7), ("c", 6)) == ["all", "b to c", "unknown"]


def test_the_greatest_value_is_that_of_the_statistics(tmp_path: Path) -> None:
    table = pa.table({"number": pa.array([3, None, 9, 4, None, None], pa.int64())})
    pq.write_table(table, tmp_path / "with", row_group_size=2)
    pq.write_table(table, tmp_path / "without", row_group_size=2, write_statistics=False)
    assert greatest_of_row_groups(pq.read_metadata(tmp_path / "with"), "number") == [3, 9]
    assert greatest_of_row_groups(pq.read_metadata(tmp_path / "without"), "number") is None
    assert greatest_of_row_groups(pq.read_metadata(tmp_path / "with"), "another") == []
