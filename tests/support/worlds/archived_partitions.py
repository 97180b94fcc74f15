"""archived_partitions: what does a plain loop over the tables' rows answer to a ListOffsets request?

The oracle of the SQL functions: no SQL, no index, a scan of all stairs of a partition for every question.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from coldlog.model.list_offsets import ErrorCode, Route, SpecialTimestamp
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in

Answer = tuple[ErrorCode, int | None, int | None, int | None, Route | None, int | None]
"""Error, offset, its timestamp, its leader epoch, route, where a local search begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """As given to list_offsets."""

    topic: str | None
    partition: int | None
    timestamp_ms: int | None
    current_leader_epoch: int | None = -1
    isolation_level: str | None = "read_uncommitted"
    version: int | None = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """A row of partition_metadata, with the stairs (offset, timestamp, leader epoch) of its served segments."""

    log_start_offset: int | None
    earliest_offset: int | None
    latest_tiered_offset: int | None
    max_timestamp_ms: int | None
    max_timestamp_offset: int | None
    finished_max_timestamp_ms: int | None
    stable_offset: int | None
    lineage: list[tuple[int, int]]
    stairs: list[tuple[int, int, int]]
    is_decoded: bool

    @property
    def start(self) -> int | None:
        return self.earliest_offset if self.log_start_offset is None else self.log_start_offset

    @property
    def local_start(self) -> int:
        if self.latest_tiered_offset is not None:
            return self.latest_tiered_offset + 1
        return self.log_start_offset or 0

    def leader_epoch_at(self, offset: int | None) -> int | None:
        """By the lineage; its epochs begin in ascending order."""
        epochs = [epoch for epoch, start in self.lineage if offset is not None and start <= offset]
        return epochs[-1] if epochs else None


def archived_partitions(warehouse: Warehouse) -> dict[tuple[str, int], ArchivedPartition]:
    """By topic and partition, the current incarnation alone."""
    served = (row for row in rows_in(warehouse, SEGMENTS) if row["served_from_offset"] is not None)
    segments = {(row["segment_id"], row["build_number"]): row for row in served}
    stairs = defaultdict[tuple[str, int, str], list[tuple[int, int, int]]](list)
    for row in rows_in(warehouse, TIME_INDEX):
        segment = segments.get((row["segment_id"], row["build_number"]))
        if segment is not None:
            key = row["topic"], row["partition"], segment["topic_id"]
            stairs[key].append((row["offset"], row["timestamp_ms"], row["leader_epoch"]))
    shallow = {
        (row["topic"], row["partition"], row["topic_id"]) for row in segments.values() if row["index_depth"] == "batch"
    }
    return {
        (row["topic"], row["partition"]): ArchivedPartition(
            log_start_offset=row["log_start_offset"],
            earliest_offset=row["earliest_offset"],
            latest_tiered_offset=row["latest_tiered_offset"],
            max_timestamp_ms=row["max_timestamp_ms"],
            max_timestamp_offset=row["max_timestamp_offset"],
            finished_max_timestamp_ms=row["finished_max_timestamp_ms"],
            stable_offset=row["stable_offset"],
            lineage=[(each["leader_epoch"], each["start_offset"]) for each in row["leader_epoch_lineage"]],
            stairs=stairs[row["topic"], row["partition"], row["topic_id"]],
            is_decoded=(row["topic"], row["partition"], row["topic_id"]) not in shallow,
        )
        for row in rows_in(warehouse, PARTITION_METADATA)
        if row["is_current"]
    }


def expected_answer(request: Request, partition: ArchivedPartition | None) -> Answer:
    """What list_offsets has to say."""
    refusal = _refusal(request, partition)
    if refusal is not None or partition is None:
        return refusal or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, None, None, None, None
    timestamp_ms = request.timestamp_ms
    assert timestamp_ms is not None
    route, found = _search(timestamp_ms, partition)
    is_told = route is not Route.METADATA or found is ErrorCode.LOCAL_REQUIRED
    local_start = partition.local_start if is_told else None
    if isinstance(found, ErrorCode):
        return found, None, None, None, route, local_start
    offset, offset_timestamp_ms, leader_epoch = found
    is_record = timestamp_ms >= 0 or timestamp_ms == SpecialTimestamp.MAX_TIMESTAMP
    is_committed = request.isolation_level == "read_committed" and (request.version or 0) >= 2
    if is_record and is_committed and partition.stable_offset is not None:
        assert offset is not None
        if offset >= partition.stable_offset:
            return ErrorCode.OPEN_TRANSACTION, None, None, None, route, local_start
    if request.version is not None and request.version < 4:
        leader_epoch = None
    return ErrorCode.NONE, offset, offset_timestamp_ms, leader_epoch, route, local_start


def _refusal(request: Request, partition: ArchivedPartition | None) -> ErrorCode | None:
    timestamp_ms, version = request.timestamp_ms, request.version
    if timestamp_ms is None or version is None or version not in range(1, 12):
        return ErrorCode.UNSUPPORTED_VERSION
    if timestamp_ms < 0 and (
        timestamp_ms not in list(SpecialTimestamp) or version < SpecialTimestamp(timestamp_ms).since_version
    ):
        return ErrorCode.UNSUPPORTED_VERSION
    if request.isolation_level not in ("read_uncommitted", "read_committed"):
        return ErrorCode.INVALID_REQUEST
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    believed = request.current_leader_epoch
    if version < 4 or believed is None or believed < 0 or not partition.lineage:
        return None
    last = partition.lineage[-1][0]
    if believed == last:
        return None
    return ErrorCode.FENCED_LEADER_EPOCH if believed < last else ErrorCode.UNKNOWN_LEADER_EPOCH


_Found = ErrorCode | tuple[int | None, int | None, int | None]


def _search(timestamp_ms: int, partition: ArchivedPartition) -> tuple[Route, _Found]:
    if timestamp_ms >= 0:
        return _search_records(timestamp_ms, partition)
    latest = partition.latest_tiered_offset
    match SpecialTimestamp(timestamp_ms):
        case SpecialTimestamp.EARLIEST:
            return Route.METADATA, _place(partition, partition.start)
        case SpecialTimestamp.LATEST_TIERED:
            return Route.METADATA, (latest, None, partition.leader_epoch_at(latest))
        case SpecialTimestamp.EARLIEST_PENDING_UPLOAD:
            pending = None if latest is None else max(latest + 1, partition.log_start_offset or 0)
            return Route.METADATA, _place(partition, pending)
        case SpecialTimestamp.MAX_TIMESTAMP:
            return Route.REMOTE_THEN_LOCAL, _newest(partition)
        case _:
            return Route.LOCAL_ONLY, ErrorCode.LOCAL_REQUIRED


def _place(partition: ArchivedPartition, offset: int | None) -> _Found:
    return ErrorCode.LOCAL_REQUIRED if offset is None else (offset, None, partition.leader_epoch_at(offset))


def _newest(partition: ArchivedPartition) -> _Found:
    if partition.max_timestamp_ms is None:
        return ErrorCode.LOCAL_REQUIRED
    offset = partition.max_timestamp_offset
    if offset is None:
        return ErrorCode.NOT_DECODED
    return offset, partition.max_timestamp_ms, partition.leader_epoch_at(offset)


def _search_records(timestamp_ms: int, partition: ArchivedPartition) -> tuple[Route, _Found]:
    newest, finished = partition.max_timestamp_ms, partition.finished_max_timestamp_ms
    limit = newest if finished is None else finished
    route = Route.LOCAL_ONLY if limit is not None and timestamp_ms > limit else Route.REMOTE_THEN_LOCAL
    if newest is not None and timestamp_ms <= newest and not partition.is_decoded:
        return route, ErrorCode.NOT_DECODED
    late = [stair for stair in partition.stairs if stair[1] >= timestamp_ms]
    if not late:
        return route, ErrorCode.LOCAL_REQUIRED
    offset, found_ms, leader_epoch = min(late)
    return route, (offset, found_ms, None if leader_epoch < 0 else leader_epoch)
