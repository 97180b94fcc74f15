"""Define the answers about segments and aborted transactions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An entry of Kafka's transaction index: records of the producer from `first_offset` to the abort marker at
    `last_offset` do not count.

    `last_stable_offset` is that of the partition when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSegment:
    """A segment, its offsets, both inclusive, and the leader epoch in which it was found."""

    segment_id: str
    start_offset: int
    end_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTxnSegment(FoundSegment):
    """A segment that holds aborted transactions or, if it is not certain, may hold some."""

    is_certain: bool
