"""Read one segment and make its index rows.

This runs in a task. It reads the segment's small files and its log in windows, yields the index rows as pieces, and
ends with one outcome piece: indexed, quarantined (the bytes are wrong, with the facts) or unreadable (the store did not
answer; to be tried again). A failure of one segment becomes its outcome, and the next segment is read.

At sidecar depth no byte of the log is read (`sidecar_index`), unless the small files are not fit for it, or the log was
found damaged before: then the segment is indexed at batch depth. A segment that is indexed at record depth keeps it.

A segment must agree with its side files: the offset index must not point after the end of the log or between batches,
the time index must not name offsets that the log does not hold, and the transaction index must list the aborts that the
log shows. If a file is damaged, the segment is read again without it, or, if it is the log, without the bad batches
(`salvage`).

The last segment of a mirror counts up to its last whole batch: a cut batch or zeros at the end are not damage, unless a
whole batch follows (archive.layouts.log_windows has the rule). So its log is read twice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import chain

import pyarrow as pa

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.archive.layouts.log_windows import find_log_end
from coldlog.errors import ArchiveError, Reason, RetriableError
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.aborted_transactions import AbortedTransactions
from coldlog.index.segment_index import IndexChunk, SegmentIndexer
from coldlog.index.segment_summary import SegmentSummary
from coldlog.index.sound_batches import SoundBatches
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.index_rows import IndexPart
from coldlog.indexing.builds.log_chunks import LogReader
from coldlog.indexing.builds.preceding_segments import EarlierSegments, SegmentLog
from coldlog.indexing.builds.salvage import Losses, find_sound_of_damaged, require_listed_aborts, rows_of_holes
from coldlog.indexing.builds.settled_transactions import (
    require_known_starts,
    require_no_unlisted_abort,
    settle_transactions,
)
from coldlog.indexing.builds.side_files import SideFiles, read_checkpoint_of_damaged, read_side_files
from coldlog.indexing.builds.sidecar_index import find_sidecar_index
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.segments import SEGMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """The index depth, the bytes of a log to hold at once, and the limits of a batch.

    `is_salvaging`: what is sound of a damaged segment is indexed, if at most `max_hole_share` of the log's bytes is
    lost. `stride_bytes`: the least bytes of an interval at sidecar depth. A segment is decoded by a thread for each
    `bytes_per_thread`, by `most_threads` at most; 0: by one thread.
    """

    depth: IndexDepth
    limits: DecodeLimits
    window_bytes: int
    is_salvaging: bool = True
    max_hole_share: float = 1.0
    stride_bytes: int = 64 << 10
    bytes_per_thread: int = 0
    most_threads: int = 1

    def threads_for(self, log_bytes: int) -> int:
        """Return how many threads decode a log of so many bytes."""
        return min(self.most_threads, -(-log_bytes // self.bytes_per_thread)) if self.bytes_per_thread else 1


class OutcomeKind(StrEnum):
    """The outcome of a segment."""

    INDEXED = "indexed"
    QUARANTINED = "quarantined"
    UNREADABLE = "unreadable"


READ_COLUMNS = (
    "end_offset",
    "size_bytes",
    "max_timestamp_ms",
    "max_timestamp_offset",
    "min_timestamp_ms",
    "metadata_max_timestamp_ms",
    "segment_leader_epochs",
    "txn_index_empty",
    "index_depth",
    "counted_from_offset",
    "counted_max_timestamp_ms",
    "counted_max_timestamp_offset",
    "batch_count",
    "record_count",
    "control_batch_count",
    "commit_marker_count",
    "abort_marker_count",
    "codecs",
    "leader_epoch_checkpoint",
    "open_transaction_count",
    "open_from_offset",
    "damaged_files",
    "holes",
)
"""The columns of `segments` that a build fills with what it has read."""
OUTCOME_SCHEMA = pa.schema(
    [
        *(SEGMENTS.arrow_schema.field(name).with_nullable(True) for name in (*SEGMENTS.key, "topic_id", *READ_COLUMNS)),
        ("outcome", pa.string()),
        ("replaces_build_numbers", pa.list_(pa.int64())),
        ("log_bytes", pa.int64()),
        ("stair_count", pa.int64()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("object_name", pa.string()),
        ("position", pa.int64()),
        ("expected", pa.string()),
        ("found", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a segment; `row` has columns of `OUTCOME_SCHEMA`, those without a value may be missing."""

    segment: ListedSegment
    row: dict[str, object]

    @property
    def is_indexed(self) -> bool:
        """Whether the parts of the segment count."""
        return self.row["outcome"] == OutcomeKind.INDEXED.value


@dataclass(frozen=True, slots=True)
class Dropped:
    """The segment is read again: its parts so far do not count."""


BuiltPart = IndexPart | Dropped | Outcome


def build_segments(layout: ArchiveLayout, works: Iterable[SegmentWork], options: BuildOptions) -> Iterator[BuiltPart]:
    """Yield the parts of the index of every segment of `works`, each segment's outcome last."""
    earlier = EarlierSegments(layout=layout, limits=options.limits, window_bytes=options.window_bytes)
    for work in works:
        outcome = yield from _index_what_is_sound(earlier, work, options)
        row = {**_key_of(work.segment), "log_bytes": work.log_bytes, **outcome}
        yield Outcome(segment=work.segment, row=row)


def _index_what_is_sound(
    earlier: EarlierSegments, work: SegmentWork, options: BuildOptions
) -> Generator[BuiltPart, None, dict[str, object]]:
    """Yield the parts of one segment; return its outcome. If a file is damaged, the segment is read without it."""
    layout = earlier.layout
    losses: Losses | None = Losses()
    first: ArchiveError | None = None
    while losses is not None:
        try:
            facts = yield from _index_at_depth(earlier, work, options, losses)
        except ArchiveError as unnamed:
            log_name = work.segment.object_name_of(SegmentFileKind.LOG)
            wrong = unnamed if unnamed.object_name else unnamed.with_object_name(log_name)
            first = first or wrong
            losses = losses.and_also(wrong, is_mirror=layout.is_mirror) if options.is_salvaging else None
            yield Dropped()
        except RetriableError as unanswered:
            return _unreadable(unanswered)
        else:
            return {"outcome": OutcomeKind.INDEXED.value, **facts}
    assert first is not None
    return _quarantined(layout, work, first)


def _index_at_depth(
    earlier: EarlierSegments, work: SegmentWork, options: BuildOptions, losses: Losses
) -> Generator[BuiltPart, None, dict[str, object]]:
    """As `_index_one`; at sidecar depth without the log, unless something is damaged or not fit for it."""
    if work.is_decoded:
        options = replace(options, depth=IndexDepth.RECORD)
    if options.depth is not IndexDepth.SIDECAR:
        return (yield from _index_one(earlier, work, options, losses))
    is_fit = not (losses.log or losses.files or work.is_log_damaged)
    found = find_sidecar_index(earlier, work, options.stride_bytes) if is_fit else None
    if found is None:
        return (yield from _index_one(earlier, work, replace(options, depth=IndexDepth.BATCH), losses))
    yield found.intervals
    if found.txn_index.entry_count:
        yield found.txn_index
    return found.facts


def _index_one(
    earlier: EarlierSegments, work: SegmentWork, options: BuildOptions, losses: Losses
) -> Generator[BuiltPart, None, dict[str, object]]:
    """Yield the parts of one segment; return the values to publish."""
    layout, segment = earlier.layout, work.segment
    if losses.log is None:
        _require_announced_size(layout, work)
    is_open_ended = work.is_last and layout.is_mirror
    side_files = read_side_files(layout, segment, losses.files, is_open_ended=is_open_ended)
    is_aborted_needed = side_files.is_without_snapshot or side_files.is_without_txn_index or losses.log is not None
    is_aborted_needed |= not layout.is_mirror and side_files.txn_index.is_empty
    aborted = AbortedTransactions() if is_aborted_needed else None
    indexer = SegmentIndexer(
        start_offset=segment.start_offset,
        depth=options.depth,
        counted_from_offset=work.count_from_offset,
        sections=SectionReader(limits=options.limits),
    )
    size_bytes = _find_end(layout, segment, options) if is_open_ended else layout.log_size_bytes(segment)
    sound = None if losses.log is None else _find_sound(layout, work, side_files, losses.log, options)
    reader = LogReader(layout=layout, segment=segment, indexer=indexer, window_bytes=options.window_bytes)
    for chunk in _iter_chunks(reader, size_bytes, side_files, sound, options):
        if sound is None:
            side_files.add(chunk)
        if aborted is not None:
            aborted.add(chunk.headers, chunk.abort_offsets)
        yield chunk
        del chunk  # free it before the next one is read
    summary = indexer.finish()
    open_before: Mapping[int, int] = {}
    if sound is not None and losses.log is not None and aborted is not None:
        require_listed_aborts(side_files, aborted, sound, losses.log)
    else:
        if aborted is not None and summary.abort_marker_count and not layout.is_mirror:
            require_no_unlisted_abort(earlier, segment, side_files, aborted)
        side_files, open_before = settle_transactions(earlier, work, side_files, aborted, summary)
        side_files.require_agreement(summary, work.announced_end_offset)
    require_known_starts(earlier, segment, side_files)
    _require_announced_end(work, summary)
    if side_files.txn_index.entry_count:
        yield side_files.txn_index
    listed_bytes = segment.listed_log_size_bytes
    return {
        **_published(work, summary, options.depth),
        "size_bytes": size_bytes if listed_bytes is None else listed_bytes,
        **side_files.facts(summary, open_before, log_damage=losses.log),
        "holes": None if sound is None else rows_of_holes(sound, side_files, work.announced_max_timestamp_ms),
    }


def _iter_chunks(
    reader: LogReader, size_bytes: int, side_files: SideFiles, sound: SoundBatches | None, options: BuildOptions
) -> Iterator[IndexChunk]:
    if sound is not None:
        return chain.from_iterable(reader.iter_chunks(*run) for run in sound.runs())
    positions = side_files.offset_index_check.index.positions
    return reader.iter_chunks_by_threads(size_bytes, positions, options.threads_for(size_bytes))


def _find_sound(
    layout: ArchiveLayout, work: SegmentWork, side_files: SideFiles, wrong: ArchiveError, options: BuildOptions
) -> SoundBatches:
    """Find the sound batches; raise `wrong` again if more of the log than `max_hole_share` is lost."""
    limits, window_bytes = options.limits, options.window_bytes
    found = find_sound_of_damaged(layout, work, side_files, wrong, limits=limits, window_bytes=window_bytes)
    size_bytes = max(layout.log_size_bytes(work.segment), work.announced_size_bytes or 0)
    sound_bytes = sum(end - position for position, end in found.runs())
    if size_bytes - sound_bytes > options.max_hole_share * size_bytes:
        raise wrong
    return found


def _find_end(layout: ArchiveLayout, segment: ListedSegment, options: BuildOptions) -> int:
    """Find the end of the last whole batch of a log that may be cut or still grow."""
    log = SegmentLog(layout=layout, segment=segment)
    return find_log_end(log, log.log_file(is_active=True), limits=options.limits, window_bytes=options.window_bytes)


def _require_announced_size(layout: ArchiveLayout, work: SegmentWork) -> None:
    size_bytes = layout.log_size_bytes(work.segment)
    if work.announced_size_bytes not in (None, size_bytes):
        raise ArchiveError(
            Reason.LOG_SIZE_DIFFERS,
            "log has another size than its metadata announced",
            expected=f"{work.announced_size_bytes} bytes",
            found=f"{size_bytes} bytes",
        )


def _require_announced_end(work: SegmentWork, summary: SegmentSummary) -> None:
    if work.announced_end_offset is not None and summary.last_offset > work.announced_end_offset:
        raise ArchiveError(
            Reason.OFFSETS_NOT_ANNOUNCED,
            "log holds offsets after the end that its metadata announced",
            expected=f"at most offset {work.announced_end_offset}",
            found=f"offset {summary.last_offset}",
        )


def _published(work: SegmentWork, summary: SegmentSummary, depth: IndexDepth) -> dict[str, object]:
    """Make the values to publish. Without timestamps, Kafka announces the file's time (LogSegment.largestTimestamp)."""
    largest = summary.largest_batch_timestamp_ms
    return {
        "end_offset": summary.last_offset,
        "max_timestamp_ms": summary.max_timestamp_ms,
        "max_timestamp_offset": summary.max_timestamp_offset,
        "min_timestamp_ms": summary.min_timestamp_ms,
        "metadata_max_timestamp_ms": largest if largest >= 0 else work.log_modified_ms,
        "segment_leader_epochs": [
            {"leader_epoch": epoch, "start_offset": offset} for epoch, offset in summary.leader_epochs
        ],
        "index_depth": depth.value,
        "counted_from_offset": work.count_from_offset,
        "counted_max_timestamp_ms": summary.counted_max_timestamp_ms,
        "counted_max_timestamp_offset": summary.counted_max_timestamp_offset,
        "batch_count": summary.batch_count,
        "record_count": summary.record_count,
        "control_batch_count": summary.control_batch_count,
        "commit_marker_count": summary.commit_marker_count,
        "abort_marker_count": summary.abort_marker_count,
        "codecs": list(summary.codecs),
        "stair_count": summary.stair_count,
        "replaces_build_numbers": list(work.replaces_build_numbers),
    }


def _key_of(segment: ListedSegment) -> dict[str, object]:
    return {
        "topic": segment.topic,
        "partition": segment.partition,
        "topic_id": segment.topic_id,
        "start_offset": segment.start_offset,
        "segment_id": segment.segment_id,
    }


def _quarantined(layout: ArchiveLayout, work: SegmentWork, wrong: ArchiveError) -> dict[str, object]:
    """Make the outcome of a damaged segment. Its checkpoint is kept: the newest one shows where the log starts."""
    try:
        checkpoint = read_checkpoint_of_damaged(layout, work.segment, work.announced_end_offset)
    except RetriableError as unanswered:
        return _unreadable(unanswered)
    return {
        **wrong.facts,
        "outcome": OutcomeKind.QUARANTINED.value,
        "leader_epoch_checkpoint": None if checkpoint is None else [asdict(entry) for entry in checkpoint.entries],
    }


def _unreadable(unanswered: RetriableError) -> dict[str, object]:
    return {"outcome": OutcomeKind.UNREADABLE.value, "message": str(unanswered)}
