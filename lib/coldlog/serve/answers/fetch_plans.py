"""Plan which bytes answer each partition of a fetch, within the limits of the client and the read quota.

`max_bytes` bounds the whole answer, and the limit of a partition that partition; the first batch of the answer is read
whole. The planning begins with another partition each time (`first_partition`), or the first would starve the others.
Runs in a thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from kio.schema.errors import ErrorCode

from coldlog.errors import ColdlogError
from coldlog.model.fetch import FetchedRecords, FetchFailure, FetchRequest, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.serve.answers.offsets import find_newest, find_partition
from coldlog.serve.archive_view import ServedPartition
from coldlog.serve.context import Context
from coldlog.serve.read_ahead import AheadSlice
from coldlog.serve.security.rights import Rights


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPartition:
    """One partition of a fetch. `topic_id` is None in versions that ask by name. `name` is empty if there is no topic
    of this id."""

    name: str
    topic_id: UUID | None
    number: int
    offset: int
    max_bytes: int
    current_leader_epoch: int

    @property
    def place(self) -> tuple[str, int]:
        """What the partition's slices are read ahead under."""
        return self.name, self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRecords:
    """All partitions of a fetch, at which of them the planning begins, and what was read ahead for each."""

    partitions: Sequence[AskedPartition]
    first: int
    most_bytes: int
    level: IsolationLevel
    rights: Rights
    looks: int
    """`ArchiveView.looks` when the fetch arrived."""


Found = FetchedBatches | FetchedRecords | FetchFailure | ErrorCode
"""What one partition gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """What is to be read for a partition, or what it gets without; `taken` is the slice that was read ahead for it."""

    ends: PartitionEnds | None
    plan: LogSlice | Found
    taken: AheadSlice | None = None


def first_partition(correlation_id: int, count: int) -> int:
    """Return the number of the partition, of so many, with which the planning begins.

    Some clients change the order themselves, by one partition each time; others leave it. Some count by one for each
    fetch, others by more. If this went round in steps too, it could find the same partition first each time. So it
    takes any, by a digest of the request's number."""
    content = hashlib.blake2b((correlation_id % (1 << 32)).to_bytes(4, "big"), digest_size=4).digest()
    return int.from_bytes(content, "big") * count >> 32


def plan_partitions(
    context: Context, asked: AskedRecords, ahead: Sequence[AheadSlice | None]
) -> tuple[list[PartitionPlan], int]:
    """Plan every partition, from the first one on around, as long as bytes are left and the quota allows it. Return
    also for how many milliseconds the client is throttled. What was read ahead is charged already."""
    partitions = asked.partitions
    plans: dict[int, PartitionPlan] = {}
    left, has_any, throttle_ms = asked.most_bytes, False, 0
    for at in (*range(asked.first, len(partitions)), *range(asked.first)):
        ends, plan = _plan_one(context, asked, partitions[at], left)
        taken = None
        if isinstance(plan, LogSlice):
            if has_any and plan.size_bytes > left:
                plan = no_records(plan)
            elif (read := ahead[at]) is not None and read.covers(plan):
                left, has_any, taken = max(0, left - plan.size_bytes), True, read
            elif isinstance(charged := _charge(context, plan.size_bytes), ErrorCode):
                plan = charged
            elif charged:
                context.metrics.throttled_partition(partitions[at].name, plan.size_bytes)
                plan, throttle_ms = no_records(plan), max(throttle_ms, charged)
            else:
                left, has_any = max(0, left - plan.size_bytes), True
        plans[at] = PartitionPlan(ends=ends, plan=plan, taken=taken)
    return [plans[at] for at in range(len(partitions))], throttle_ms


def no_records(plan: LogSlice) -> FetchedRecords:
    """Return what a client gets that is to ask again."""
    return FetchedRecords(records=(), next_offset=plan.request.offset, ends=plan.ends, read_bytes=0)


def _charge(context: Context, size_bytes: int) -> int | ErrorCode:
    """Charge a read; return how long it is throttled, or the error of a shared quota that does not answer."""
    try:
        return context.quota.charge(size_bytes)
    except ColdlogError as failed:
        context.report_once("quota", f"the shared read quota does not answer: {failed}")
        return ErrorCode.kafka_storage_error


def _plan_one(
    context: Context, asked: AskedRecords, partition: AskedPartition, left: int
) -> tuple[PartitionEnds | None, LogSlice | Found]:
    if not partition.name:
        return None, ErrorCode.unknown_topic_id
    named = partition.name, partition.number, partition.current_leader_epoch
    known = find_partition(context, asked.rights, *named, looks=asked.looks)
    if isinstance(known, ServedPartition) and partition.offset > known.ends.end_offset:
        known = find_newest(context, asked.rights, *named, looks=asked.looks)
    if isinstance(known, ErrorCode):
        return None, known
    if not known.is_archived:
        nothing = FetchedRecords(records=(), next_offset=0, ends=known.ends, read_bytes=0)
        return known.ends, ErrorCode.offset_out_of_range if partition.offset else nothing
    wanted = FetchRequest(
        topic=context.view.archive_name(partition.name),
        partition=partition.number,
        offset=partition.offset,
        max_bytes=min(partition.max_bytes, left),
        isolation_level=asked.level,
    )
    try:
        planned = context.view.plan(wanted)
        if isinstance(planned, FetchFailure) and known.is_lost(partition.offset):
            return known.ends, context.view.at_lost_end(planned, partition.offset)
        return known.ends, planned
    except ColdlogError as failed:
        context.report_once(f"{wanted}", f"{wanted}: {failed}")
        return known.ends, ErrorCode.kafka_storage_error
