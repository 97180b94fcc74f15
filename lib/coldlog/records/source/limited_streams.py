"""Limit the micro-batches of a stream, with what Spark has for this since 4.2.

The limits are `maxOffsetsPerTrigger`, and for Trigger.AvailableNow the end of the archive when the run began. Before
4.2 this module cannot be imported: its classes of Spark are missing.
"""

from __future__ import annotations

from pyspark.accumulators import Accumulator
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from coldlog.records.source.datasource import StreamReader
from coldlog.records.source.options import SourceOptions
from coldlog.records.source.stream_positions import Position
from coldlog.records.source.streaming import latest_position


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """A stream whose micro-batches have limits."""

    def __init__(self, options: SourceOptions, bytes_read: Accumulator[int] | None) -> None:
        super().__init__(options, bytes_read)
        self._target: Position | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's names, here and below
        """Return `maxOffsetsPerTrigger`, or everything."""
        most = self._options.most_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """Return how far the next micro-batch may read."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return latest_position(self._options, start, most_offsets=most, target=self._target)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run: what is uploaded from now on belongs to the next run."""
        self._target = latest_position(self._options, {})
