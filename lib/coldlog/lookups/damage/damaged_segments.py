"""Say in which segment a lookup or a reader of records found damage, so that the next build can read it completely.

What only this reader cannot read is not damage: an object that is missing, which the next scan finds, or one that it
may not read, or for which it has no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from coldlog.archive.layouts.layout import ListedSegment, SegmentFileKind
from coldlog.errors import ArchiveError, Reason
from coldlog.tables.definitions.segments import listed_segment, required_integer

_OF_THE_READER = frozenset({Reason.OBJECT_MISSING, Reason.OBJECT_UNREADABLE, Reason.DECRYPTION_KEY_MISSING})


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedSegment:
    """A segment, the build of its index that a reader used, and what was found in its log."""

    topic: str
    partition: int
    start_offset: int
    segment_id: str
    build_number: int
    reason: str
    message: str
    object_name: str
    position: int
    expected: str
    found: str

    @property
    def text(self) -> str:
        """What is wrong and where, in one line."""
        wrong = ArchiveError(
            Reason(self.reason),
            self.message,
            object_name=self.object_name,
            position=self.position,
            expected=self.expected,
            found=self.found,
        )
        return f"segment {self.segment_id} of {self.topic}-{self.partition} is damaged: {wrong}"

    def row(self, reported_ms: int) -> dict[str, object]:
        """The row of `damage_reports`."""
        return {**asdict(self), "reported_ms": reported_ms}


def find_damage(segment: Mapping[str, object], wrong: ArchiveError) -> DamagedSegment | None:
    """Return what is to be reported of a row of `segments` with `OBJECT_COLUMNS`; None if its log may be sound."""
    return damage_of(listed_segment(segment), required_integer(segment["served_build_number"]), wrong)


def damage_of(listed: ListedSegment, build_number: int, wrong: ArchiveError) -> DamagedSegment | None:
    """Do the same for a segment that is served from this build."""
    if wrong.reason in _OF_THE_READER:
        return None
    return DamagedSegment(
        topic=listed.topic,
        partition=listed.partition,
        start_offset=listed.start_offset,
        segment_id=listed.segment_id,
        build_number=build_number,
        reason=wrong.reason.value,
        message=wrong.message,
        object_name=wrong.object_name or listed.object_name_of(SegmentFileKind.LOG),
        position=wrong.position,
        expected=wrong.expected,
        found=wrong.found,
    )
