"""Test which offsets lookups pass over, and the bounds of the timestamps there."""

from __future__ import annotations

import pytest

from coldlog.index.unserved_ranges import (
    UnreadSegment,
    UnservedRange,
    find_unserved_ranges,
    ranges_with_rising_bounds,
)

Passed = tuple[int, int | None, int | None]


def unread(start: int, end: int | None = None, max_ms: int | None = None) -> UnreadSegment:
    return UnreadSegment(start_offset=start, end_offset=end, max_timestamp_ms=max_ms)


def as_tuples(ranges: list[UnservedRange]) -> list[Passed]:
    return [(each.from_offset, each.to_offset, each.max_timestamp_bound_ms) for each in ranges]


@pytest.mark.parametrize(
    ("served", "segments", "log_start", "expected"),
    [
        pytest.param([(0, 9), (10, 19)], [], 0, [], id="nothing is missing"),
        pytest.param([(0, 9), (20, 29)], [], 0, [(10, 19, None)], id="no segment is known"),
        pytest.param([(0, 9), (20, 29)], [unread(10, 19, 7)], 0, [(10, 19, 7)], id="the segment was announced"),
        pytest.param([(0, 9), (20, 29)], [unread(10)], 0, [(10, 19, None)], id="the segment was only listed"),
        pytest.param(
            [(0, 9), (30, 39)], [unread(10, 19, 7), unread(20, 29, 5)], 0, [(10, 29, 7)], id="two cover the range"
        ),
        pytest.param(
            [(0, 9), (30, 39)], [unread(10, 19, 7), unread(20, 29)], 0, [(10, 29, None)], id="one was not announced"
        ),
        pytest.param([(0, 9), (30, 39)], [unread(10, 25, 7)], 0, [(10, 29, None)], id="the end is not covered"),
        pytest.param([(0, 9), (30, 39)], [unread(15, 29, 7)], 0, [(10, 29, None)], id="the begin is not covered"),
        pytest.param(
            [(0, 9), (30, 39)], [unread(10, 14, 7), unread(20, 29, 7)], 0, [(10, 29, None)], id="the middle is not"
        ),
        pytest.param([(0, 14), (20, 29)], [unread(5, 25, 7)], 0, [(15, 19, 7)], id="the segment overlaps served ones"),
        pytest.param([(0, 14), (20, 29)], [unread(5, 12, 7)], 0, [(15, 19, None)], id="a served segment covers it"),
        pytest.param([(10, 19)], [], None, [], id="the log may start at the first served segment"),
        pytest.param([(10, 19)], [], 4, [(4, 9, None)], id="the log starts before it"),
        pytest.param([(10, 19)], [unread(2, 9, 7)], 4, [(4, 9, 7)], id="the log starts in an unread segment"),
        pytest.param([(10, 19)], [unread(2, 9, 7)], 10, [], id="an unread segment is below the log start"),
        pytest.param([(10, 19)], [unread(2)], 10, [], id="a listed one is, too"),
        pytest.param([(10, 19)], [unread(2, 9, 7)], None, [(2, 9, 7)], id="an unread segment is the first"),
        pytest.param([(0, 9)], [unread(10, 19, 7)], 0, [(10, 19, 7)], id="an unread segment is the last"),
        pytest.param([(0, 9)], [unread(10, 19, 7), unread(20)], 0, [(10, None, None)], id="the end is not known"),
        pytest.param([(0, 9), (10, 19)], [unread(10)], 0, [], id="the last served one was uploaded twice"),
        pytest.param([(0, 9)], [unread(5)], 0, [(10, None, None)], id="the last one begins in a served one"),
        pytest.param([(0, 9)], [unread(12, 19, 7)], 0, [(10, 19, None)], id="the last one does not follow"),
        pytest.param([], [unread(5, 9, 7), unread(10, 19, 3)], None, [(5, 19, 7)], id="nothing is served"),
        pytest.param([], [unread(5, 9, 7)], 8, [(8, 9, 7)], id="nothing is served from the log start on"),
        pytest.param([], [], 8, [], id="nothing is known"),
    ],
)
def test_offsets_between_and_around_served_segments_are_passed_over(
    served: list[tuple[int, int]], segments: list[UnreadSegment], log_start: int | None, expected: list[Passed]
) -> None:
    assert as_tuples(find_unserved_ranges(served, segments, log_start)) == expected
    assert as_tuples(find_unserved_ranges(served, segments[::-1], log_start)) == expected


def test_only_ranges_with_a_larger_bound_than_all_before_are_kept() -> None:
    bounds = [5, 5, 3, 8, 7, None, 9, None]
    ranges = [
        UnservedRange(from_offset=10 * at, to_offset=10 * at + 1, max_timestamp_bound_ms=bound)
        for at, bound in enumerate(bounds)
    ]
    assert as_tuples(ranges_with_rising_bounds(ranges, 99)) == [(0, 1, 5), (30, 31, 8), (50, 51, None)]
    assert ranges_with_rising_bounds([], None) == []


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ([5, 3], [(0, 1, 5), (10, 11, 5)]),
        ([5, 8], [(0, 1, 5), (10, 11, 8)]),
        ([None, 8], [(0, 1, None), (10, 11, None)]),
        ([5], [(0, 1, 5)]),
    ],
    ids=["smaller", "larger", "smaller than an unknown one", "alone"],
)
def test_range_after_the_last_served_offset_is_always_kept(bounds: list[int | None], kept: list[Passed]) -> None:
    ranges = [
        UnservedRange(from_offset=10 * at, to_offset=10 * at + 1, max_timestamp_bound_ms=bound)
        for at, bound in enumerate(bounds)
    ]
    assert as_tuples(ranges_with_rising_bounds(ranges, 9)) == kept
