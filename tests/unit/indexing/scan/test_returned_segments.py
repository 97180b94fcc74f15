"""Test that a segment answers only from an index of its present objects and events, however these came and went."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS
from coldlog.indexing.scan.differences import STORED_COLUMNS, UPDATED_COLUMNS, find_differences
from coldlog.tables.delta.row_edits import Row

_PLACE = ("a", 0, "id-1", "segment-1")
_OTHER = ("a", 0, "id-1", "segment-2")
_KEY = dict(zip(("topic", "partition", "topic_id", "segment_id"), _PLACE, strict=True))
_STEPS = 40


class _Segment:
    """A segment whose objects and events change, its row in `segments`, and the log that its newest build has read."""

    def __init__(self, random: Random, *, is_mirror: bool) -> None:
        self.random, self.is_mirror = random, is_mirror
        self.is_listed, self.is_whole, self.state = True, True, random.choice((None, "COPY_SEGMENT_FINISHED"))
        self.has_events = self.state is not None
        self.log, self.damaged = 0, set[int]()
        self.row: Row = {}
        self.indexed: int | None = None

    def change(self) -> None:
        """One thing."""
        chance = self.random.random()
        if chance < 0.35:
            self.is_listed = not self.is_listed
        elif chance < 0.5:
            self.is_whole = not self.is_whole
        elif chance < 0.7:
            self.log += 1
            if self.random.random() < 0.3:
                self.damaged.add(self.log)
        else:
            self.has_events = True
            self.state = self.random.choice((None, "COPY_SEGMENT_STARTED", *["COPY_SEGMENT_FINISHED"] * 2))

    def scan(self) -> None:
        """As a run does that compares the segment."""
        announced: Row = dict.fromkeys(ANNOUNCED_COLUMNS) | {"announced_start_offset": 0}
        events = {_PLACE: announced | {"announced_state": self.state}} if self.state else {}
        if self.has_events:  # then a segment that no event names is an orphan
            events[_OTHER] = announced | {"announced_state": "COPY_SEGMENT_FINISHED"}
        stored = [{name: self.row.get(name) for name in STORED_COLUMNS}] if self.row else []
        listed = [self._listed()] if self.is_listed else []
        found = find_differences(listed, events, stored, is_mirror=self.is_mirror)
        for row in found:
            if row["segment_id"] == _KEY["segment_id"]:
                self.row |= {name: row[name] for name in (*_KEY, "start_offset", *UPDATED_COLUMNS)}

    def build(self) -> None:
        """As a run does with a segment that waits."""
        if self.row.get("index_status") == "indexed" and self.random.random() < 0.05:
            # It is counted again, and its bytes have changed meanwhile.
            self.damaged.add(self.log)
            self.row["index_status"] = "quarantined"
        if self.row.get("index_status") != "pending":
            return
        if self.log in self.damaged:
            self.row["index_status"] = "quarantined"
        else:
            self.row |= {"index_status": "indexed", "index_depth": "record"}
            self.row["build_number"] = (self.row.get("build_number") or 0) + 1
            self.indexed = self.log

    def _listed(self) -> dict[str, Any]:
        size = 10 if self.is_mirror else 10 + self.log
        kinds = ("log", "offset_index") if self.is_whole else ("log",)
        return {
            **_KEY,
            "start_offset": 0,
            "size_bytes": size,
            "objects": [{"kind": kind, "name": kind, "size_bytes": size} for kind in kinds],
            "missing_kinds": [] if self.is_whole else ["producer_snapshot"],
            "log_modified_ms": self.log,
            "state": "COPY_SEGMENT_FINISHED" if self.is_whole else "COPY_SEGMENT_STARTED",
            "index_status": "pending" if self.is_whole else "incomplete",
        }


@pytest.mark.parametrize("is_mirror", [False, True])
def test_an_index_of_other_objects_does_not_answer(is_mirror: bool) -> None:
    builds = returned = 0
    for seed in range(300):
        random = Random(seed)
        segment = _Segment(random, is_mirror=is_mirror)
        for _ in range(_STEPS):
            before = dict(segment.row)
            segment.change()
            segment.scan()
            is_indexed = segment.row.get("index_status") == "indexed"
            returned += is_indexed and before["index_status"] != "indexed"
            if random.random() < 0.9:  # another job may have scanned only
                segment.build()
                builds += segment.row.get("build_number") != before.get("build_number")
            if segment.row.get("index_status") == "indexed":
                assert segment.indexed == segment.log, seed
                assert segment.log not in segment.damaged, seed
    assert builds > 500
    assert returned > 200, "what comes back unchanged is not indexed again"


@pytest.mark.parametrize(
    ("told", "before", "status"),
    [
        ({"announced_size_bytes": 10}, {}, "indexed"),
        ({"announced_size_bytes": 11}, {}, "pending"),
        ({"announced_size_bytes": None}, {}, "indexed"),
        ({"announced_size_bytes": 11}, {"announced_size_bytes": 11}, "indexed"),
        ({"announced_end_offset": 7}, {"index_status": "quarantined"}, "pending"),
        ({"announced_end_offset": 7}, {"index_status": "quarantined", "announced_end_offset": 7}, "quarantined"),
        ({"announced_leader_epochs": []}, {"damaged_files": ["x"]}, "pending"),
        ({"broker_id": 1}, {"damaged_files": ["x"]}, "indexed"),
    ],
)
def test_a_segment_that_was_read_before_its_events_is_read_again_if_they_may_tell_more(
    told: Row, before: Row, status: str
) -> None:
    segment = _Segment(Random(1), is_mirror=False)
    segment.scan()
    segment.build()
    stored = {name: (segment.row | before).get(name) for name in STORED_COLUMNS}
    announced: Row = dict.fromkeys(ANNOUNCED_COLUMNS) | {"announced_start_offset": 0} | told
    events = {_PLACE: announced | {"announced_state": "COPY_SEGMENT_FINISHED"}}
    (found,) = find_differences([segment._listed()], events, [stored], is_mirror=False)
    assert found["index_status"] == status
