"""Test that lag is computed from what is known, without a request."""

from __future__ import annotations

from functools import partial

import pytest

from coldlog.errors import UsageError
from coldlog.model.fetch import FetchedRecords, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.replay.positions import PartitionPositions

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class Ends:
    """Ends that a test sets; counts the calls."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], PartitionEnds] = {}
        self.asked = list[str]()

    def refresh(self) -> None:
        self.asked.append("refresh")

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        self.asked.append(f"{topic}-{partition}")
        return self.ends.get((topic, partition))


def ends(end: int, stable: int) -> PartitionEnds:
    return PartitionEnds(log_start_offset=0, end_offset=end, last_stable_offset=stable)


def test_lag_is_unknown_without_a_position_or_an_end_and_an_error_if_not_assigned() -> None:
    reader = Ends()
    reader.ends["orders", 0] = ends(100, 90)
    positions = PartitionPositions(reader)
    for call in (positions.current_lag, positions.position, partial(positions.seek, offset=0)):
        with pytest.raises(UsageError, match="partition orders-0 is not assigned"):
            call("orders", 0)
    positions.assign([("orders", 0), ("new", 1)])
    assert positions.current_lag("orders", 0) is None
    positions.seek("orders", 0, 40)
    positions.seek("new", 1, 0)
    assert positions.current_lag("orders", 0) is None, "no end is known yet"
    assert reader.asked == []
    positions.refresh()
    assert reader.asked == ["refresh", "orders-0", "new-1"]
    assert positions.current_lag("orders", 0) == 60
    assert positions.current_lag("new", 1) is None, "the archive does not know it"
    with pytest.raises(UsageError, match="negative"):
        positions.seek("orders", 0, -1)
    assert positions.position("orders", 0) == 40
    positions.seek("orders", 0, 110)
    assert positions.current_lag("orders", 0) == 0
    assert len(reader.asked) == 3


@pytest.mark.parametrize(("level", "lags"), [(UNCOMMITTED, (60, 50, 0)), (COMMITTED, (50, 40, 0))])
def test_ends_are_those_of_the_isolation_level_and_a_fetch_updates_them(
    level: IsolationLevel, lags: tuple[int, int, int]
) -> None:
    reader = Ends()
    reader.ends["orders", 0] = ends(100, 90)
    positions = PartitionPositions(reader, level)
    positions.assign([("orders", 0)])
    positions.refresh()
    positions.seek("orders", 0, 40)
    found = [positions.current_lag("orders", 0)]
    positions.seek("orders", 0, 50)
    found.append(positions.current_lag("orders", 0))
    positions.fetched("orders", 0, FetchedRecords(records=(), next_offset=200, ends=ends(200, 200), read_bytes=0))
    assert positions.position("orders", 0) == 200
    found.append(positions.current_lag("orders", 0))
    assert tuple(found) == lags
    assert reader.asked == ["refresh", "orders-0"]


def test_positions_and_ends_of_partitions_that_stay_assigned_are_kept() -> None:
    reader = Ends()
    reader.ends["a", 0] = reader.ends["b", 0] = ends(10, 10)
    positions = PartitionPositions(reader)
    positions.assign([("b", 0), ("a", 0)])
    assert positions.assigned == (("a", 0), ("b", 0))
    positions.refresh()
    positions.seek("a", 0, 3)
    positions.seek("b", 0, 3)
    positions.assign([("a", 0)])
    assert positions.current_lag("a", 0) == 7
    positions.assign([("a", 0), ("b", 0)])
    assert (positions.current_lag("a", 0), positions.current_lag("b", 0)) == (7, None)
