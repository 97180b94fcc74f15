"""growing_archive: an archive in memory to which segments are added at given times, as a RecordFetcher shows one.

It shows what was there at the last `refresh`, until the next. A byte of `max_bytes` is a record, and a batch has one.
Each call takes the time that it is said to take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coldlog.model.fetch import (
    DEFAULT_MAX_BYTES,
    DEFAULT_TIMEOUT_MS,
    FetchAnswer,
    FetchedRecord,
    FetchedRecords,
    FetchErrorCode,
    FetchFailure,
    PartitionEnds,
    TimestampType,
)
from coldlog.model.states import IsolationLevel
from coldlog.replay.positions import TopicPartition
from virtual_clock import VirtualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """Records that can be seen from a time on: `stamps` are offset and timestamp. Behind the last is nothing until
    `end_offset`."""

    from_ms: int
    stamps: tuple[tuple[int, int], ...]
    end_offset: int


@dataclass(slots=True, kw_only=True)
class GrowingArchive:
    """A RecordReader. Uploads of a partition come in order of offsets and times."""

    clock: VirtualClock
    uploads: Mapping[TopicPartition, Sequence[Uploaded]]
    fetch_ms: int = 0
    refresh_ms: int = 0
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[TopicPartition, str] = field(default_factory=dict)
    failures: dict[TopicPartition, FetchFailure] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    _seen: dict[TopicPartition, list[Uploaded]] = field(default_factory=dict)

    def refresh(self) -> None:
        """What is there now, and some time later."""
        self.calls.append("refresh")
        now_ms = self.clock.time_ms
        self._seen = {place: [each for each in log if each.from_ms <= now_ms] for place, log in self.uploads.items()}
        self._pass(self.refresh_ms)

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        """None before the first upload."""
        seen = self._seen.get((topic, partition))
        if not seen:
            return None
        end = seen[-1].end_offset
        start = self.log_starts.get((topic, partition), 0)
        topic_id = self.topic_ids.get((topic, partition), "")
        return PartitionEnds(log_start_offset=start, end_offset=end, last_stable_offset=end, topic_id=topic_id)

    def fetch_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> FetchAnswer:
        """Of one upload, as a fetch gets records of one segment."""
        self.calls.append(f"fetch {topic}-{partition} {offset}")
        self._pass(self.fetch_ms)
        if (topic, partition) in self.failures:
            return self.failures[topic, partition]
        ends = self.partition_ends(topic, partition)
        if ends is None:
            return FetchFailure(error=FetchErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message="not there yet")
        if not ends.log_start_offset <= offset <= ends.end_offset:
            return FetchFailure(error=FetchErrorCode.OFFSET_OUT_OF_RANGE, message=f"{offset} is not there", ends=ends)
        for upload in self._seen[topic, partition]:
            if offset < upload.end_offset:
                left = [record(*stamp) for stamp in upload.stamps if offset <= stamp[0]]
                got = left[: max(1, max_bytes)]
                following = upload.end_offset if len(got) == len(left) else got[-1].offset + 1
                return FetchedRecords(records=tuple(got), next_offset=following, ends=ends, read_bytes=len(got))
        return FetchedRecords(records=(), next_offset=offset, ends=ends, read_bytes=0)

    def _pass(self, duration_ms: int) -> None:
        self.clock.time_ms += duration_ms


def record(offset: int, timestamp_ms: int) -> FetchedRecord:
    """One without content."""
    return FetchedRecord(
        offset=offset,
        timestamp_ms=timestamp_ms,
        timestamp_type=TimestampType.CREATE_TIME,
        leader_epoch=0,
        key=None,
        value=None,
        headers=(),
    )
