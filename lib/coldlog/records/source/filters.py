"""Convert a query's filters into bounds of the records to read.

Spark passes conditions that must all hold. Comparisons of `topic`, `partition`, `offset`, `timestamp` and `timestampMs`
with a constant become bounds. They prune segments and batches, and are exact for every record that is read. Other
conditions are left to Spark; those that narrow the bounds are also used. None of these columns is ever NULL, except
`timestamp` on request: then a condition that NULL does not meet leaves out the times that a TIMESTAMP cannot hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyspark.sql.datasource as ds

from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.records.source.columns import GREATEST_FITTING_MS, LEAST_FITTING_MS, TIMESTAMP_MS

_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", TIMESTAMP_MS, "timestampType"})


@dataclass(slots=True, kw_only=True)
class _Range:
    """The least and the greatest value, both inclusive."""

    low: int = _LEAST
    high: int = _GREATEST

    def narrow(self, low: int, high: int) -> None:
        self.low, self.high = max(self.low, low), min(self.high, high)

    def holds(self, value: int) -> bool:
        return self.low <= value <= self.high


@dataclass(slots=True, kw_only=True)
class RecordFilter:
    """The bounds; the default is everything. `topics` None means any. `nulls_timestamps`: see `SourceOptions`."""

    nulls_timestamps: bool = False
    topics: frozenset[str] | None = None
    partitions: _Range = field(default_factory=_Range)
    offsets: _Range = field(default_factory=_Range)
    timestamps_us: _Range = field(default_factory=_Range)
    timestamps_ms: _Range = field(default_factory=_Range)

    def push(self, filters: Sequence[ds.Filter]) -> Iterable[ds.Filter]:
        """Use what can become bounds; return the filters that Spark must still evaluate."""
        return [condition for condition in filters if not self._take(condition)]

    def holds_partition(self, topic: str, partition: int) -> bool:
        """True if a record of the partition may pass."""
        return (self.topics is None or topic in self.topics) and self.partitions.holds(partition)

    @property
    def bounds(self) -> RecordBounds:
        """Return the bounds of offsets and timestamps, microseconds converted to whole milliseconds."""
        us = self.timestamps_us
        from_ms = -(-us.low // 1000) if us.low > _LEAST else _LEAST
        to_ms = us.high // 1000 if us.high < _GREATEST else _GREATEST
        return RecordBounds(
            from_offset=max(self.offsets.low, 0),
            to_offset=self.offsets.high,
            from_timestamp_ms=max(from_ms, self.timestamps_ms.low),
            to_timestamp_ms=min(to_ms, self.timestamps_ms.high),
        )

    def _take(self, condition: ds.Filter) -> bool:
        """Narrow the bounds. Return True if they express the condition completely."""
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(attribute) != 1 or attribute[0] not in _NEVER_NULL:
            return False
        column = attribute[0]
        if column == "timestamp" and self.nulls_timestamps:
            if not _refuses_null(condition):
                return False
            self.timestamps_us.narrow(LEAST_FITTING_MS * 1000, GREATEST_FITTING_MS * 1000)
        if isinstance(condition, ds.IsNotNull):
            return True
        if column == "topic":
            return self._take_topics(condition)
        values = {
            "partition": self.partitions,
            "offset": self.offsets,
            "timestamp": self.timestamps_us,
            TIMESTAMP_MS: self.timestamps_ms,
        }.get(column)
        if values is None:
            return False
        if isinstance(condition, ds.In):
            members = [_number(member) for member in condition.value if member is not None]
            values.narrow(min(members, default=1), max(members, default=0))
            return False
        return isinstance(condition, _comparisons()) and _narrow(values, condition)

    def _take_topics(self, condition: ds.Filter) -> bool:
        if isinstance(condition, ds.EqualTo | ds.EqualNullSafe):
            named = frozenset({condition.value})
        elif isinstance(condition, ds.In):
            named = frozenset(condition.value)
        else:
            return False
        self.topics = named if self.topics is None else self.topics & named
        return True


def _comparisons() -> tuple[type[ds.Filter], ...]:
    # Not a constant: Spark 4.0 has none of these classes, and reads with bounds of its own all the same.
    return (ds.EqualTo, ds.EqualNullSafe, ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual)


def _refuses_null(condition: ds.Filter) -> bool:
    """True if NULL does not meet a condition that may become bounds; False for every other kind."""
    if isinstance(condition, ds.EqualNullSafe):
        return condition.value is not None
    return isinstance(condition, (ds.IsNotNull, ds.In, *_comparisons()))


def _narrow(values: _Range, condition: ds.Filter) -> bool:
    if condition.value is None:  # type: ignore[attr-defined]  # every comparison has one
        values.narrow(1, 0)
        return True
    number = _number(condition.value)  # type: ignore[attr-defined]
    if isinstance(condition, ds.GreaterThanOrEqual):
        values.narrow(number, _GREATEST)
    elif isinstance(condition, ds.GreaterThan):
        values.narrow(number + 1, _GREATEST)
    elif isinstance(condition, ds.LessThanOrEqual):
        values.narrow(_LEAST, number)
    elif isinstance(condition, ds.LessThan):
        values.narrow(_LEAST, number - 1)
    else:
        values.narrow(number, number)
    return True


def _number(value: object) -> int:
    """Return an integer, or the microseconds of a timestamp."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    assert isinstance(value, int)
    return value
