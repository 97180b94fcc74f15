"""Describe a segment as the plan of its partition needs it."""

from __future__ import annotations

from dataclasses import dataclass

from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.index.unserved_ranges import UnservedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """A listed or announced segment, with the results of its build if it `is_usable`; timestamps are None without
    records. `is_deleted`: the segment was copied, and its deletion has started or finished. `is_unread`: it was copied,
    not deleted, and has no index; `end_offset` and `metadata_max_timestamp_ms` are then those of its event, if any.
    `hides_log_start`: its leader epoch checkpoint is lost. `holes`: offsets that its damaged log has lost."""

    topic_id: str
    segment_id: str
    start_offset: int
    written_ms: int | None
    is_usable: bool
    is_deleted: bool = False
    is_unread: bool = False
    hides_log_start: bool = False
    holes: tuple[UnservedRange, ...] = ()
    end_offset: int = -1
    leader_epochs: tuple[EpochStart, ...] = ()
    counted_from_offset: int = -1
    counted_max_timestamp_ms: int | None = None
    counted_max_timestamp_offset: int | None = None
    metadata_max_timestamp_ms: int | None = None
