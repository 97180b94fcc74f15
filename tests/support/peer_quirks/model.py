"""Logs of the shapes that other implementations of ListOffsets answered wrongly.

A `Quirk` is a topic named like its issue. Each of its logs is a partition, some of whose segments are archived, some in
a broker's log directory, some in both. The answers are written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker, uuid_text_of
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp

Found = tuple[int, int | None, int | None]
"""Offset, timestamp, leader epoch."""
Answer = Found | ErrorCode
NONE, LOCAL_REQUIRED, UNKNOWN = ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
UNSUPPORTED, INVALID = ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = SpecialTimestamp
READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Question:
    """One timestamp of one partition, and its answers.

    `archive` is the answer of the archive alone, `directory` that with the broker's log directory beside it: by default
    the same, or that there is no such record where the archive cannot know. `archive_as_broker` and
    `directory_as_broker` are those under `lookup.broker_compatible`, where its rule gives another answer.
    """

    timestamp_ms: int
    archive: Answer
    directory: Answer | None = None
    archive_as_broker: Answer | None = None
    directory_as_broker: Answer | None = None
    isolation_level: str = "read_uncommitted"
    version: int = 11
    request_id: str | None = None

    def answer(self, *, has_directory: bool, broker_compatible: bool) -> Answer:
        """The right one."""
        of_broker = self.directory_as_broker if has_directory else self.archive_as_broker
        if broker_compatible and of_broker is not None:
            return of_broker
        if not has_directory:
            return self.archive
        if self.directory is not None:
            return self.directory
        return NONE if self.archive is LOCAL_REQUIRED else self.archive


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A partition: the first `archived_count` segments are archived, those from `local_from` on are in the broker's log
    directory, the last of them as its active one. None in the directory: `local_from` is None."""

    segments: Sequence[Segment]
    questions: Sequence[Question]
    archived_count: int
    local_from: int | None = None
    log_start_offset: int = 0
    high_watermark: int | None = None

    @property
    def archived(self) -> Sequence[Segment]:
        """What lies in the archive."""
        return self.segments[: self.archived_count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirk:
    """A case: what the other implementation answered, what coldlog answers, and why; see docs/explanation/quirks.md."""

    name: str
    source: str
    happened: str
    answered: str
    reason: str
    logs: Sequence[Log]

    @property
    def topic_id(self) -> str:
        """Of the topic that is named like the case."""
        return uuid_text_of(self.name)

    @property
    def document_row(self) -> str:
        """The case in the table of docs/explanation/quirks.md."""
        columns = (f"[{self.name}]({self.source})", self.happened, self.answered, self.reason, f"`-k {self.name}`")
        return f"| {' | '.join(columns)} |"


def batch(base_offset: int, *timestamps_ms: int, epoch: int = 0, codec: Codec = Codec.NONE) -> Batch:
    records = tuple(Record(timestamp_ms=each, value=b"v") for each in timestamps_ms)
    return Batch(base_offset=base_offset, records=records, leader_epoch=epoch, codec=codec)


def transactional(base_offset: int, *timestamps_ms: int) -> Batch:
    records = tuple(Record(timestamp_ms=each) for each in timestamps_ms)
    return Batch(
        base_offset=base_offset,
        records=records,
        is_transactional=True,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
    )


def commit(offset: int, timestamp_ms: int) -> Batch:
    return commit_marker(offset=offset, timestamp_ms=timestamp_ms, producer_id=7, producer_epoch=0, leader_epoch=0)


def abort(offset: int, timestamp_ms: int) -> Batch:
    return abort_marker(offset=offset, timestamp_ms=timestamp_ms, producer_id=7, producer_epoch=0, leader_epoch=0)


def appended(base_offset: int, time_ms: int, count: int) -> Batch:
    """A batch of a topic with LogAppendTime; its records keep the client's deltas."""
    records = tuple(Record(timestamp_ms=each) for each in range(count))
    return Batch(base_offset=base_offset, records=records, log_append_time_ms=time_ms)


def segment(*batches: Batch) -> Segment:
    return Segment(batches=batches)


def empty_segment(base_offset: int) -> Segment:
    """An active segment that was just rolled."""
    return Segment(batches=(), stored_start_offset=base_offset)
