"""Test which partition directories must be listed although no event names them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.indexing.scan.due_listings import EVENT_DRIVEN_COLUMNS, event_driven, is_due

_HOUR_MS = 3_600_000
_NOW_MS = 1_700_000_000_000
_NAMES = [f"orders-{number}" for number in range(480)]


@given(st.text(), st.integers(0, 2**42), st.floats(0.01, 1000))
def test_a_directory_is_due_once_in_each_period(name: str, listed_ms: int, hours: float) -> None:
    period_ms = round(hours * _HOUR_MS)
    assert not is_due(name, listed_ms, listed_ms, hours)
    assert is_due(name, listed_ms, listed_ms + period_ms, hours)
    times = [listed_ms + step * period_ms // 8 for step in range(25)]
    due = [is_due(name, listed_ms, at, hours) for at in times]
    assert due == sorted(due), "what is due stays due"


def test_runs_of_a_day_share_the_directories() -> None:
    listed = dict.fromkeys(_NAMES, _NOW_MS)
    counts = []
    for hour in range(1, 49):
        now_ms = _NOW_MS + hour * _HOUR_MS
        due = [name for name in _NAMES if is_due(name, listed[name], now_ms, 24)]
        listed |= dict.fromkeys(due, now_ms)
        counts.append(len(due))
    assert sum(counts[:24]) == sum(counts[24:]) == len(_NAMES)
    assert max(counts) < 60


@pytest.mark.parametrize(("listed_ms", "hours"), [(None, 24.0), (_NOW_MS, 0.0), (_NOW_MS + 1, 24.0)])
def test_every_run_lists_what_has_no_time_or_no_period_or_a_time_to_come(listed_ms: int | None, hours: float) -> None:
    assert is_due("orders-0", listed_ms, _NOW_MS, hours)


def _segments(*rows: tuple[str, str, str | None], state: str = "COPY_SEGMENT_FINISHED") -> pa.Table:
    return pa.table(
        {
            "topic": ["orders"] * len(rows),
            "partition": pa.array([0] * len(rows), pa.int32()),
            "state": [state] * len(rows),
            "state_source": [row[0] for row in rows],
            "index_status": [row[1] for row in rows],
            "damaged_files": pa.array([row[2] for row in rows], pa.string()),
        }
    ).select(EVENT_DRIVEN_COLUMNS)


@pytest.mark.parametrize(
    ("more", "is_event_driven"),
    [
        (("events", "indexed", None), True),
        (("listing", "orphan", None), True),
        (("listing", "indexed", None), False),
        (("events", "indexed", "index"), False),
        (("events", "incomplete", None), False),
        (("events", "pending", None), False),
        (("events", "quarantined", None), False),
    ],
)
def test_a_partition_follows_events_if_nothing_else_can_change_it(
    more: tuple[str, str, str | None], is_event_driven: bool
) -> None:
    sound, other = _segments(("events", "indexed", None)), _segments(more)
    expected = {("orders", 0)} if is_event_driven else set()
    assert event_driven([sound, other]) == event_driven([other, sound]) == expected


@pytest.mark.parametrize(
    ("state", "is_event_driven"),
    [("DELETE_SEGMENT_FINISHED", True), ("DELETE_SEGMENT_STARTED", True), ("COPY_SEGMENT_FINISHED", False)],
)
def test_a_segment_that_was_copied_and_is_missing_may_still_come(state: str, is_event_driven: bool) -> None:
    found = event_driven([_segments(("events", "indexed", None)), _segments(("events", "gone", "log"), state=state)])
    assert found == ({("orders", 0)} if is_event_driven else set())


def test_a_segment_that_no_event_named_does_not_come_back() -> None:
    gone = _segments(("listing", "gone", None), state="DELETE_SEGMENT_FINISHED")
    assert event_driven([_segments(("events", "indexed", None)), gone]) == {("orders", 0)}


def test_a_partition_that_no_event_names_does_not_follow() -> None:
    assert event_driven([_segments(("listing", "orphan", None), ("listing", "indexed", None))]) == set()
    assert event_driven([]) == set()
