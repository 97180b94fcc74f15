"""Decide which partition directories a run must list although no event names them.

A partition follows the metadata topic if its segments were announced, and none of them waits for a file, is missing or
is damaged. New events name it when it changes. Without them, only a person or a program other than Kafka can have
changed its directory. So it is listed when an event names it, and once in a period (`scan.full_listing_hours`).

A segment is missing if it was announced as copied and is not listed. It may still come: a replica of a bucket gets
objects after their events.

Each directory has its own time in the period, by the CRC of its name. So each of many runs lists some of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.model.states import IndexStatus, RemoteLogSegmentState

EVENT_DRIVEN_COLUMNS = ("topic", "partition", "state", "state_source", "index_status", "damaged_files")
"""What `event_driven` needs of `segments`."""
_IN_WORK = (IndexStatus.PENDING.value, IndexStatus.INCOMPLETE.value, IndexStatus.QUARANTINED.value)
_HOUR_MS = 3_600_000


def is_due(name: str, listed_ms: int | None, now_ms: int, hours: float) -> bool:
    """Whether a directory that was listed at `listed_ms` must be listed again; None: in every run."""
    period_ms = round(hours * _HOUR_MS)
    if listed_ms is None or listed_ms > now_ms or not period_ms:
        return True
    phase_ms = zlib.crc32(name.encode("utf-8", "surrogateescape")) % period_ms
    return (now_ms - phase_ms) // period_ms > (listed_ms - phase_ms) // period_ms


def event_driven(segments: Iterable[pa.Table]) -> frozenset[tuple[str, int]]:
    """Return the topics and partitions that follow the metadata topic, from their rows of `segments`."""
    announced, changing = set[tuple[str, int]](), set[tuple[str, int]]()
    for rows in segments:
        is_announced = pc.equal(rows["state_source"], "events")
        is_served = pc.equal(rows["index_status"], IndexStatus.INDEXED.value)
        is_unsure = pc.or_(pc.invert(is_announced), pc.is_valid(rows["damaged_files"]))
        is_gone = pc.equal(rows["index_status"], IndexStatus.GONE.value)
        is_missing = pc.and_(is_gone, pc.equal(rows["state"], RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name))
        is_in_work = pc.or_(pc.is_in(rows["index_status"], pa.array(_IN_WORK)), is_missing)
        is_changing = pc.or_(is_in_work, pc.and_(is_served, is_unsure))
        announced |= _partitions_of(rows.filter(is_announced))
        changing |= _partitions_of(rows.filter(is_changing))
    return frozenset(announced - changing)


def _partitions_of(rows: pa.Table) -> set[tuple[str, int]]:
    found = rows.group_by(["topic", "partition"]).aggregate([])
    return set(zip(found["topic"].to_pylist(), found["partition"].to_pylist(), strict=True))
