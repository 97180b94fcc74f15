"""Test that filters become bounds for exactly the same records, or are left to Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyspark.sql.datasource as ds
import pytest

from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.records.source.filters import RecordFilter

pytestmark = pytest.mark.pushdown
NOON = datetime(2023, 11, 15, 12, tzinfo=UTC)
NOON_MS = 1_700_049_600_000


FITTING_MS = 9_223_372_036_854_775


def pushed(*filters: ds.Filter, nulls_timestamps: bool = False) -> tuple[RecordFilter, list[ds.Filter]]:
    found = RecordFilter(nulls_timestamps=nulls_timestamps)
    return found, list(found.push(filters))


def test_comparisons_become_bounds_and_are_not_left_to_spark() -> None:
    found, left = pushed(
        ds.IsNotNull(("offset",)),
        ds.GreaterThan(("offset",), 10),
        ds.LessThan(("offset",), 20),
        ds.GreaterThanOrEqual(("timestamp",), NOON),
        ds.LessThan(("timestamp",), NOON + timedelta(hours=1)),
        ds.In(("topic",), ("a", "b")),
        ds.EqualTo(("topic",), "b"),
        ds.EqualTo(("partition",), 3),
    )
    assert left == []
    # Records have whole milliseconds, so "before 13:00" ends with the last millisecond before it.
    assert found.bounds == RecordBounds(
        from_offset=11, to_offset=19, from_timestamp_ms=NOON_MS, to_timestamp_ms=NOON_MS + 3_600_000 - 1
    )
    assert [found.holds_partition(*place) for place in (("b", 3), ("a", 3), ("b", 2))] == [True, False, False]


def test_several_conditions_on_the_topic_must_all_hold() -> None:
    found, left = pushed(ds.EqualTo(("topic",), "b"), ds.In(("topic",), ("a", "b")))
    assert left == []
    assert [found.holds_partition(topic, 0) for topic in ("a", "b")] == [False, True]


def test_microseconds_are_exact() -> None:
    found, _ = pushed(
        ds.GreaterThanOrEqual(("timestamp",), NOON + timedelta(microseconds=1)),
        ds.LessThanOrEqual(("timestamp",), NOON + timedelta(milliseconds=5, microseconds=1)),
    )
    assert (found.bounds.from_timestamp_ms, found.bounds.to_timestamp_ms) == (NOON_MS + 1, NOON_MS + 5)
    found, _ = pushed(
        ds.GreaterThan(("timestamp",), NOON), ds.LessThan(("timestamp",), NOON + timedelta(microseconds=1))
    )
    assert found.bounds.from_timestamp_ms > found.bounds.to_timestamp_ms, "no whole millisecond is in between"


def test_times_before_1970_are_rounded_correctly() -> None:
    before = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    assert pushed(ds.GreaterThanOrEqual(("timestamp",), before))[0].bounds.from_timestamp_ms == 0
    assert pushed(ds.LessThanOrEqual(("timestamp",), before))[0].bounds.to_timestamp_ms == -1


def test_conditions_that_only_narrow_are_used_and_left_to_spark() -> None:
    members = ds.In(("offset",), (7, 3, None, 5))
    others = (ds.Not(ds.EqualTo(("topic",), "a")), ds.EqualTo(("key",), b"k"), ds.StringStartsWith(("topic",), "a"))
    found, left = pushed(members, *others)
    assert left == [members, *others]
    assert (found.bounds.from_offset, found.bounds.to_offset) == (3, 7)


def test_a_comparison_with_null_holds_for_nothing() -> None:
    found, left = pushed(ds.EqualNullSafe(("offset",), None))
    assert left == []
    assert found.bounds.from_offset > found.bounds.to_offset
    assert not pushed(ds.EqualNullSafe(("topic",), None))[0].holds_partition("a", 0)


def test_milliseconds_and_timestamp_bound_the_same_times() -> None:
    found, left = pushed(ds.GreaterThan(("timestampMs",), 5), ds.LessThan(("timestamp",), NOON))
    assert left == []
    assert (found.bounds.from_timestamp_ms, found.bounds.to_timestamp_ms) == (6, NOON_MS - 1)


def test_conditions_that_null_does_not_meet_leave_out_times_that_are_null() -> None:
    conditions: list[ds.Filter] = [
        ds.GreaterThan(("timestamp",), NOON),
        ds.IsNotNull(("timestamp",)),
        ds.EqualNullSafe(("timestamp",), NOON),
    ]
    for condition in conditions:
        found, left = pushed(condition, nulls_timestamps=True)
        assert left == []
        assert found.bounds.to_timestamp_ms <= FITTING_MS
    conditions = [ds.IsNull(("timestamp",)), ds.EqualNullSafe(("timestamp",), None)]
    for condition in conditions:
        found, left = pushed(condition, nulls_timestamps=True)
        assert left == [condition]
        assert found.bounds == RecordFilter().bounds
