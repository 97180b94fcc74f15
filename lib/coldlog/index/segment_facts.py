"""Describe a segment as the plan of its partition needs it.

`finished_max_timestamp_ms` is the largest timestamp of all segments that were copied and not deleted, as in KIP-1075:
also of those that wait for the build, are damaged, or serve nothing. Nothing later is archived. If it is not known of
one segment, every time may be in it: the result is then `ANY_TIMESTAMP_MS`, which no time is later than.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.index.unserved_ranges import UnservedRange

ANY_TIMESTAMP_MS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """A listed or announced segment, with the results of its build if it `is_usable`; timestamps are None without
    records. `written_ms`: when its copy started, as far as is known; `deleted_ms`: when its deletion started or
    finished. `is_finished`: its state is COPY_SEGMENT_FINISHED, and it is no orphan. `is_deleted`: the segment was
    copied, and its deletion has started or finished. `is_unread`: it was copied, not deleted, and has no index;
    `end_offset` and `metadata_max_timestamp_ms` are then those of its event, if any. `hides_log_start`: its leader
    epoch checkpoint is lost. `holes`: offsets that its damaged log has lost. `leader_epochs` begin where its event
    says, or with their first batches; `may_be_compacted`: compaction may have removed some of these."""

    topic_id: str
    segment_id: str
    start_offset: int
    written_ms: int | None
    is_usable: bool
    is_finished: bool = False
    is_deleted: bool = False
    is_unread: bool = False
    hides_log_start: bool = False
    deleted_ms: int | None = None
    holes: tuple[UnservedRange, ...] = ()
    end_offset: int = -1
    leader_epochs: tuple[EpochStart, ...] = ()
    may_be_compacted: bool = False
    counted_from_offset: int = -1
    counted_max_timestamp_ms: int | None = None
    counted_max_timestamp_offset: int | None = None
    metadata_max_timestamp_ms: int | None = None


def finished_max_timestamp_ms(segments: Iterable[SegmentFacts]) -> int | None:
    """Return the largest timestamp of the finished segments; None if there is none."""
    return max((_max_timestamp_ms(segment) for segment in segments if segment.is_finished), default=None)


def _max_timestamp_ms(segment: SegmentFacts) -> int:
    """Return a timestamp that no record of the segment is later than.

    Kafka's metadata has it, or the time of the file if no record has a timestamp. That may be wrong: the records that
    were read count too, and what a damaged log may have lost.
    """
    bounds = [hole.max_timestamp_bound_ms for hole in segment.holes]
    known = [segment.metadata_max_timestamp_ms, segment.counted_max_timestamp_ms, *bounds]
    largest = max((value for value in known if value is not None), default=ANY_TIMESTAMP_MS)
    return ANY_TIMESTAMP_MS if None in bounds else largest
