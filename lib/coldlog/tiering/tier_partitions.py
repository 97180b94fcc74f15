"""Keep the log start of each partition in the tier, and which offsets the tier has of it.

Both are in the table `tier_partitions`. A log start moves forward. It moves back only if a replica with fewer records
became the leader (`valid_log_start`). The finished segments say what the tier has, as for Kafka's `earliest` and
`latest-tiered` offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coldlog.model.ids import TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.tier.tier_partitions import TIER_PARTITIONS
from coldlog.tables.delta.small_table import Row, SmallTable
from coldlog.tiering.rules.clock import Clock
from coldlog.tiering.rules.remote_segments import RemoteSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOffsets:
    """The first and the last offset of a partition in the tier, both inclusive; None: the tier has no offset of it."""

    earliest: int | None
    latest: int | None

    @classmethod
    def of(cls, segments: Iterable[RemoteSegment], log_start_offset: int | None) -> RemoteOffsets:
        """Compute them from a partition's segments; offsets below the log start no longer count."""
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
    """The table `tier_partitions` of one warehouse."""

    table: SmallTable
    clock: Clock

    @classmethod
    def below(cls, warehouse_uri: str, clock: Clock) -> TierPartitions:
        """Return the table of a warehouse; it may not exist yet."""
        return cls(table=SmallTable(uri=warehouse_uri, table=TIER_PARTITIONS), clock=clock)

    def log_starts(self) -> dict[TopicIdPartition, int]:
        """Return the log starts that expiry has set."""
        return {
            _partition(row): int(str(row["log_start_offset"]))
            for row in self.table.read()
            if row["log_start_offset"] is not None
        }

    def move_log_start(self, partition: TopicIdPartition, *, since: int, to: int) -> None:
        """Set the log start to this offset. If it is no longer `since`, another run has moved it: the later counts."""

        def change(rows: list[Row]) -> list[Row]:
            known = {_partition(row): row for row in rows}
            row = known.get(partition, _empty(partition))
            before = int(str(row["log_start_offset"] or 0))
            start = to if before == since else max(to, before)
            return list({**known, partition: {**row, "log_start_offset": start}}.values())

        self.table.change(change)

    def retrieve(self, found: Mapping[TopicIdPartition, RemoteOffsets]) -> None:
        """Write which offsets the tier has of these partitions; rows that did not change are not written."""

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
