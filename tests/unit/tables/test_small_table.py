"""Test changes of a small table while another process changes it."""

from __future__ import annotations

from pathlib import Path

from coldlog.tables.definitions.committed_offsets import COMMITTED_OFFSETS
from coldlog.tables.delta.small_table import Row, SmallTable


def _row(group: str) -> Row:
    texts: Row = {"group_id": group, "topic": "orders", "metadata": ""}
    return {column.name: texts.get(column.name, 7) for column in COMMITTED_OFFSETS.columns if column.required}


def test_a_change_is_made_again_after_the_commit_of_another_process(tmp_path: Path) -> None:
    one, other = (SmallTable(uri=str(tmp_path), table=COMMITTED_OFFSETS) for _ in range(2))
    one.change(lambda _: [_row("first")])
    seen: list[set[object]] = []

    def add(rows: list[Row]) -> list[Row]:
        seen.append({row["group_id"] for row in rows})
        if len(seen) == 1:
            other.change(lambda newest: [*newest, _row("other")])
        return [*rows, _row("mine")]

    one.change(add)
    assert seen == [{"first"}, {"first", "other"}]
    assert {row["group_id"] for row in other.read()} == {"first", "other", "mine"}
