"""Read one segment and make its index rows.

This runs in a task. It reads the segment's small files and its log in windows, yields the index rows as pieces, and
ends with one outcome piece: indexed, quarantined (the bytes are wrong, with the facts) or unreadable (the store did not
answer; to be tried again). A failure of one segment becomes its outcome, and the next segment is read.

A segment must agree with its side files: the offset index must not point after the end of the log or between batches,
the time index must not name offsets that the log does not hold, and the transaction index must list the aborts that the
log shows. An offset or time index that does not is left out if events prove the log whole (`side_files`).

The last segment of a mirror counts up to its last whole batch: a cut batch or zeros at the end are not damage, unless a
whole batch follows (archive.log_windows has the rule). So its log is read twice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.archive.layouts.log_windows import find_log_end
from coldlog.errors import ArchiveError, Reason, RetriableError
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.aborted_transactions import AbortedTransactions
from coldlog.index.segment_index import IndexChunk, SegmentIndexer
from coldlog.index.segment_summary import SegmentSummary
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.encoded_rows import OUTCOME, encode_rows
from coldlog.indexing.builds.index_rows import offset_index_rows, time_index_rows, txn_index_rows
from coldlog.indexing.builds.preceding_segments import SegmentLog, find_open_before
from coldlog.indexing.builds.side_files import SideFiles, read_checkpoint_of_damaged, read_side_files
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.definitions.time_index import TIME_INDEX
from coldlog.tables.definitions.txn_index import TXN_INDEX


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """The index depth, the bytes of a log to hold at once, and the limits of a batch."""

    depth: IndexDepth
    limits: DecodeLimits
    window_bytes: int


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


def build_segments(layout: ArchiveLayout, works: list[SegmentWork], options: BuildOptions) -> Iterator[pa.RecordBatch]:
    """Yield the pieces of every segment of `works`, each segment's outcome last."""
    for work in works:
        try:
            facts = yield from _index_one(layout, work, options)
            outcome: dict[str, object] = {"outcome": OutcomeKind.INDEXED.value, **facts}
        except ArchiveError as wrong:
            outcome = _quarantined(layout, work, wrong)
        except RetriableError as unanswered:
            outcome = _unreadable(unanswered)
        row = {**_key_of(work.segment), "log_bytes": work.log_bytes, **outcome}
        yield encode_rows(OUTCOME, work.segment, pa.RecordBatch.from_pylist([row], schema=OUTCOME_SCHEMA))


def _index_one(
    layout: ArchiveLayout, work: SegmentWork, options: BuildOptions
) -> Generator[pa.RecordBatch, None, dict[str, object]]:
    """Yield the pieces of one segment; return the values to publish."""
    segment = work.segment
    _require_announced_size(layout, work)
    is_open_ended = work.is_last and layout.is_mirror
    side_files = read_side_files(layout, segment, is_open_ended=is_open_ended)
    aborted = AbortedTransactions() if side_files.is_without_snapshot else None
    indexer = SegmentIndexer(
        start_offset=segment.start_offset,
        depth=options.depth,
        counted_from_offset=work.count_from_offset,
        sections=SectionReader(limits=options.limits),
    )
    size_bytes = _find_end(layout, segment, options) if is_open_ended else layout.log_size_bytes(segment)
    for chunk in _iter_chunks(layout, segment, indexer, size_bytes, options.window_bytes):
        side_files.add(chunk)
        if aborted is not None:
            aborted.add(chunk.headers, chunk.abort_offsets)
        if len(chunk.headers):
            yield encode_rows(OFFSET_INDEX.name, segment, offset_index_rows(chunk))
        if len(chunk.stairs.offset):
            yield encode_rows(TIME_INDEX.name, segment, time_index_rows(chunk))
        del chunk  # free it before the next one is read
    summary = indexer.finish()
    side_files, open_before = _settle_transactions(layout, work, side_files, aborted, summary, options)
    side_files.require_agreement(summary, work.announced_end_offset)
    _require_announced_end(work, summary)
    if side_files.txn_index.entry_count:
        yield encode_rows(TXN_INDEX.name, segment, txn_index_rows(side_files.txn_index))
    listed_bytes = segment.listed_log_size_bytes
    return {
        **_published(work, summary, options.depth),
        "size_bytes": size_bytes if listed_bytes is None else listed_bytes,
        **side_files.facts(summary, open_before),
    }


def _find_end(layout: ArchiveLayout, segment: ListedSegment, options: BuildOptions) -> int:
    """Find the end of the last whole batch of a log that may be cut or still grow."""
    log = SegmentLog(layout=layout, segment=segment)
    return find_log_end(log, log.log_file(is_active=True), limits=options.limits, window_bytes=options.window_bytes)


def _settle_transactions(
    layout: ArchiveLayout,
    work: SegmentWork,
    side_files: SideFiles,
    aborted: AbortedTransactions | None,
    summary: SegmentSummary,
    options: BuildOptions,
) -> tuple[SideFiles, Mapping[int, int]]:
    """Add aborts from the log to the side files, and find the transactions that earlier segments leave open.

    These are only searched if something depends on them: the aborts of this segment, or the transactions that the last
    segment leaves open.
    """
    open_before: Mapping[int, int] = {}
    if aborted is not None:
        producers = aborted.may_begin_before if side_files.is_without_txn_index else frozenset()
        is_end_needed = work.is_last and aborted.has_batches
        if is_end_needed:
            producers |= summary.open_transactions.keys() - summary.ended_producers
        if producers or is_end_needed:
            limits, window_bytes = options.limits, options.window_bytes
            open_before = find_open_before(layout, work.segment, producers, limits=limits, window_bytes=window_bytes)
        if side_files.is_without_txn_index:
            side_files = replace(side_files, txn_index=aborted.finish(open_before))
    if work.is_last and layout.is_mirror:
        side_files = side_files.up_to(summary.last_offset)
    return side_files, open_before


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


def _iter_chunks(
    layout: ArchiveLayout, segment: ListedSegment, indexer: SegmentIndexer, size_bytes: int, window_bytes: int
) -> Iterator[IndexChunk]:
    """Iterate over the log's chunks up to `size_bytes`, window by window; a window grows to hold the next batch."""
    position, needed = 0, 0
    while position < size_bytes:
        wanted = min(max(window_bytes, needed), size_bytes - position)
        window = layout.read_log_range(segment, position, wanted)
        if len(window) < wanted:
            raise ArchiveError(
                Reason.LOG_TRUNCATED,
                "log is shorter than when it was listed",
                position=position + len(window),
                expected=f"{size_bytes} bytes",
                found=f"{position + len(window)} bytes",
            )
        chunk = indexer.add_window(window, position, is_last=position + wanted == size_bytes)
        del window  # the next one is then read into the same memory, which is in the processor's cache
        position, needed = position + chunk.consumed_bytes, chunk.needed_bytes
        yield chunk
        del chunk  # free it before the next one is read


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
        "object_name": wrong.object_name or work.segment.object_name_of(SegmentFileKind.LOG),
        "leader_epoch_checkpoint": [
            {"leader_epoch": entry.leader_epoch, "start_offset": entry.start_offset} for entry in checkpoint.entries
        ],
    }


def _unreadable(unanswered: RetriableError) -> dict[str, object]:
    return {"outcome": OutcomeKind.UNREADABLE.value, "message": str(unanswered)}
