"""Test the differences between listing, events and stored rows against rules that are written down twice, over rows at
random."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS
from coldlog.indexing.scan.differences import find_differences, without_unknown
from coldlog.indexing.scan.listed_rows import LISTED_COLUMNS
from coldlog.model.states import IndexStatus
from tables.drawn_rows import draw_announced, draw_listed, draw_stored

_SEGMENTS = 6_000
_KEY = ("topic", "partition", "topic_id", "segment_id")
_UNLISTED: list[dict[str, object]] = [
    {"topic": "a", "partition": 1, "topic_id": ""},
    {"topic": "b", "partition": 0, "topic_id": "id-1"},
]
_TOLD_TO_BUILDS = [f"announced_{name}" for name in ("size_bytes", "end_offset", "max_timestamp_ms", "leader_epochs")]
_Row = Mapping[str, Any]


def _rows(random: Random) -> tuple[list[dict[str, object]], list[dict[str, object]], list[dict[str, object]]]:
    """What is listed, announced and stored; each segment is in some of the three."""
    listed, announced, stored = list[dict[str, object]](), list[dict[str, object]](), list[dict[str, object]]()
    for number in range(_SEGMENTS):
        key: dict[str, object] = {
            "topic": random.choice("ab"),
            "partition": random.randint(0, 60),
            "topic_id": random.choice(("id-1", "id-2")),
            "segment_id": f"segment-{number}",
        }
        rows = draw_listed(random, key, number), draw_announced(random, key, number)
        if random.random() < 0.7:
            listed.append(rows[0])
        if int(str(key["partition"])) % 3 and random.random() < 0.7:
            announced.append(rows[1])
        if random.random() < 0.7:
            stored.append(draw_stored(random, key, number, *rows))
    return listed, announced, stored


def _wanted(listed: _Row | None, told: _Row | None, stored: _Row | None, is_governed: bool, is_mirror: bool) -> Any:
    """The row that a scan leaves of a segment that is listed, of which events have told, or that has a row."""
    before: _Row = stored or {}
    if listed is None and told is None:
        row: dict[str, Any] = dict(before) | {"is_listed": False, "state": "DELETE_SEGMENT_FINISHED"}
        row["index_depth"] = before["index_depth"] if _may_keep_depth(row, before, is_mirror) else None
        return row | {"index_status": "gone"}
    row = {
        "start_offset": told["announced_start_offset"] if listed is None and told else (listed or {})["start_offset"],
        "is_listed": listed is not None,
        **{name: (listed or before).get(name) for name in LISTED_COLUMNS},
        **{name: told[name] if told else None for name in ANNOUNCED_COLUMNS},
        "state": told["announced_state"] if told else (listed or {})["state"],
        "state_source": "events" if told else "listing",
        "txn_index_empty": True if told and told["announced_txn_index_empty"] else None,
    }
    row["objects"], row["missing_kinds"] = row["objects"] or [], row["missing_kinds"] or []
    if listed and listed["log_modified_ms"] is not None and listed["size_bytes"] is None:
        row["size_bytes"] = before.get("size_bytes")
    if before.get("build_number") is not None:
        row["txn_index_empty"] = before["txn_index_empty"]
    row["index_status"] = _status(listed, told, is_governed)
    if row["index_status"] == "pending" and _is_same(row, before, is_mirror):
        if before["index_status"] in ("indexed", "quarantined"):
            row["index_status"] = before["index_status"]
        elif before["index_status"] != "pending" and before["index_depth"] is not None:
            row["index_status"] = "indexed"
    row["index_depth"] = before["index_depth"] if _may_keep_depth(row, before, is_mirror) else None
    return row


def _status(listed: _Row | None, told: _Row | None, is_governed: bool) -> str:
    """What listing and events say, whatever a build has found."""
    if told is None:
        return "orphan" if is_governed else str((listed or {})["index_status"])
    if told["announced_state"].startswith("DELETE"):
        return "gone"
    is_copied = told["announced_state"] == "COPY_SEGMENT_FINISHED"
    if listed is None:
        return "gone" if is_copied else "incomplete"
    missing = set(listed["missing_kinds"])
    if told["announced_start_offset"] is not None:
        missing -= {"offset_index", "time_index"}
    return "incomplete" if missing or not is_copied else "pending"


def _is_same(row: _Row, before: _Row, is_mirror: bool) -> bool:
    """Whether a build that has read the segment would find the same."""
    if not before or row["objects"] != before["objects"]:
        return False
    was_bad = before["index_status"] == "quarantined" or before["damaged_files"] is not None
    if (was_bad or is_mirror) and row["log_modified_ms"] != before["log_modified_ms"]:
        return False
    if [row[name] for name in _TOLD_TO_BUILDS] == [before[name] for name in _TOLD_TO_BUILDS]:
        return True
    sizes = {row["announced_size_bytes"], row["size_bytes"]}
    return not was_bad and (None in sizes or len(sizes) == 1)


def _may_keep_depth(row: _Row, before: _Row, is_mirror: bool) -> bool:
    was_read = before.get("index_status") not in ("pending", "quarantined")
    return _is_same(row, before, is_mirror) and was_read and row.get("index_status") != "pending"


@pytest.mark.parametrize("is_mirror", [False, True])
def test_differences_are_those_of_the_rules(is_mirror: bool) -> None:
    listed, announced, stored = ({_key(row): row for row in rows} for rows in _rows(Random(29)))
    found = find_differences(listed.values(), announced, stored.values(), is_mirror=is_mirror)
    by_key = {_key(row): row for row in found}
    assert len(by_key) == len(found)

    told = {key: row for key, row in announced.items() if row["announced_state"] is not None}
    placed = {key: row for key, row in told.items() if row["announced_start_offset"] is not None}
    governed = {(key[2], key[1]) for key in placed}
    for key in {*listed, *announced, *stored}:
        of_events = told.get(key) if key in listed else placed.get(key)
        before = stored.get(key)
        if before is None and key not in listed and of_events is None:
            assert key not in by_key
            continue
        wanted = _wanted(listed.get(key), of_events, before, (key[2], key[1]) in governed, is_mirror)
        compared = [name for name in wanted if name in _WRITTEN and (is_mirror or name != "log_modified_ms")]
        if before is not None and all(wanted[name] == before[name] for name in compared):
            assert key not in by_key
            continue
        change = "new" if before is None else "gone" if wanted["index_status"] == "gone" else "changed"
        row = by_key[key]
        assert row["change"] == change
        assert {name: row[name] for name in (*_WRITTEN, "index_depth")} == {
            name: wanted[name] for name in (*_WRITTEN, "index_depth")
        }
    for change, most in (("new", 1_000), ("changed", 1_000), ("gone", 500)):
        assert sum(row["change"] == change for row in found) > most
    assert {row["index_status"] for row in found} == {each.value for each in IndexStatus}

    kept = {_key(row) for row in without_unknown(found, _UNLISTED)}
    hidden = {("a", 1, "id-1"), ("a", 1, "id-2"), ("b", 0, "id-1")}
    assert kept == {key for key, row in by_key.items() if row["is_listed"] or key[:3] not in hidden}
    assert len(kept) < len(found)


_WRITTEN = (
    *LISTED_COLUMNS, "is_listed", "state", "state_source", "index_status", "txn_index_empty", *ANNOUNCED_COLUMNS
)  # fmt: skip


def _key(row: _Row) -> Any:
    return tuple(row[name] for name in _KEY)
