"""tier_partitions: from which offset on does the tier keep a partition, and what of it is there?

The table of that name. A log start only moves on. What the tier holds is told by its finished segments, as Kafka's
`earliest` and `latest-tiered` offsets are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.tier_partitions import TIER_PARTITIONS
from coldlog.tables.delta.small_table import Row, SmallTable
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.remote_segments import RemoteSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOffsets:
    """The first and the last offset of a partition in the tier, both inclusive; None: none is there."""

    earliest: int | None
    latest: int | None

    @classmethod
    def of(cls, segments: Iterable[RemoteSegment], log_start_offset: int | None) -> RemoteOffsets:
        """Of a partition's segments; what lies below the log start is there no more."""
        start = log_start_offset or 0
        finished = [
            each
            for each in segments
            if each.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and each.end_offset >= start
        ]
        if not finished:
            return cls(earliest=None, latest=None)
        earliest = max(start, min(each.start_offset for each in finished))
        return cls(earliest=earliest, latest=max(each.end_offset for each in finished))


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPartitions:
    """The table below one warehouse."""

    table: SmallTable
    clock: Clock

    @classmethod
    def below(cls, warehouse_uri: str, clock: Clock) -> TierPartitions:
        """Where it lies, be it there or not."""
        return cls(table=SmallTable(uri=warehouse_uri, table=TIER_PARTITIONS), clock=clock)

    def log_starts(self) -> dict[TopicIdPartition, int]:
        """Where expiry let the logs begin."""
        return {
            _partition(row): int(str(row["log_start_offset"]))
            for row in self.table.read()
            if row["log_start_offset"] is not None
        }

    def advance(self, partition: TopicIdPartition, log_start_offset: int) -> None:
        """The log begins there, or later as it did, when this returns."""

        def change(rows: list[Row]) -> list[Row]:
            known = {_partition(row): row for row in rows}
            row = known.get(partition, _empty(partition))
            before = row["log_start_offset"]
            start = log_start_offset if before is None else max(log_start_offset, int(str(before)))
            return list({**known, partition: {**row, "log_start_offset": start}}.values())

        self.table.change(change)

    def retrieve(self, found: Mapping[TopicIdPartition, RemoteOffsets]) -> None:
        """What the tier holds now of these partitions; only what differs is written."""

        def change(rows: list[Row]) -> list[Row]:
            known = {_partition(row): row for row in rows}
            for partition, offsets in found.items():
                row = known.get(partition, _empty(partition))
                if (row["earliest_remote_offset"], row["latest_remote_offset"], row["retrieved_ms"] is None) != (
                    offsets.earliest,
                    offsets.latest,
                    False,
                ):
                    known[partition] = {
                        **row,
                        "earliest_remote_offset": offsets.earliest,
                        "latest_remote_offset": offsets.latest,
                        "retrieved_ms": self.clock.now_ms(),
                    }
            return list(known.values())

        if found:
            self.table.change(change)


def _partition(row: Row) -> TopicIdPartition:
    return TopicIdPartition(
        topic=str(row["topic"]), partition=int(str(row["partition"])), topic_id=str(row["topic_id"])
    )


def _empty(partition: TopicIdPartition) -> Row:
    return {
        **dict.fromkeys(TIER_PARTITIONS.column_names),
        "topic": partition.topic,
        "partition": partition.partition,
        "topic_id": partition.topic_id,
    }
