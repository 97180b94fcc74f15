"""Test that rows made of many parts at a time are those of each part, and windows joined are one window."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, build_segment
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.kafka.txn_index import TxnIndex
from coldlog.formats.limits import DecodeLimits
from coldlog.index.joined_chunks import join_chunks
from coldlog.index.log_intervals import LogIntervals
from coldlog.index.segment_index import IndexChunk, SegmentIndexer
from coldlog.indexing.builds.index_rows import IndexPart, count_rows, iter_rows
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.txn_index import TXN_INDEX
from coldlog.tables.delta.row_edits import Row

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
BATCH_RECORDS = 4
LOG = build_segment(
    [
        Batch(
            base_offset=at * BATCH_RECORDS,
            codec=(Codec.LZ4, Codec.NONE)[at % 2],
            # Times before 1970 too, and some that are equal.
            records=tuple(Record(timestamp_ms=at // 4 * 40 + step * 7 % 20 - 300) for step in range(BATCH_RECORDS)),
        )
        if at % 5
        else Batch(base_offset=at * BATCH_RECORDS, last_offset_delta=BATCH_RECORDS - 1)
        for at in range(60)
    ]
)


def chunks_of(window_bytes: int, depth: IndexDepth) -> list[IndexChunk]:
    """The index of each window of the log; a window that holds no whole batch has an index without rows."""
    indexer = SegmentIndexer(start_offset=0, depth=depth, counted_from_offset=0, sections=SectionReader(limits=LIMITS))
    chunks: list[IndexChunk] = []
    position = needed = 0
    while position < len(LOG):
        end = min(position + max(window_bytes, needed), len(LOG))
        chunks.append(indexer.add_window(memoryview(LOG)[position:end], position, is_last=end == len(LOG)))
        position, needed = position + chunks[-1].consumed_bytes, chunks[-1].needed_bytes
    return chunks


@pytest.mark.parametrize("depth", [IndexDepth.BATCH, IndexDepth.RECORD])
@pytest.mark.parametrize("window_bytes", [20, 200, 1_000])
def test_joined_windows_are_the_window_of_the_whole_log(window_bytes: int, depth: IndexDepth) -> None:
    chunks = chunks_of(window_bytes, depth)
    joined, (whole,) = join_chunks(chunks), chunks_of(len(LOG), depth)
    assert len(chunks) > 5
    assert joined.consumed_bytes == whole.consumed_bytes == len(LOG)
    for values in ("headers", "stairs"):
        found, expected = getattr(joined, values), getattr(whole, values)
        for field in fields(expected):
            assert getattr(found, field.name).tolist() == getattr(expected, field.name).tolist(), field.name
            assert getattr(found, field.name).dtype == getattr(expected, field.name).dtype, field.name
    for name, flag in (
        ("previous_running_ms", "has_previous_running"),
        ("running_ms", "has_running"),
        ("smallest_ms", "has_smallest"),
    ):
        is_valid = getattr(whole, flag)
        assert getattr(joined, flag).tolist() == is_valid.tolist()
        assert np.array_equal(getattr(joined, name)[is_valid], getattr(whole, name)[is_valid])


def test_rows_of_many_parts_are_those_of_each_part() -> None:
    aborts = [
        TxnIndex(**{field.name: np.arange(at, at + count) for field in fields(TxnIndex)})
        for at, count in ((3, 2), (7, 1))
    ]
    intervals = [
        LogIntervals(**{field.name: np.arange(at, at + count) for field in fields(LogIntervals)})
        for at, count in ((-1, 4), (20, 2))
    ]
    chunks = chunks_of(300, IndexDepth.RECORD)
    parts: list[IndexPart] = [chunks[0], aborts[0], intervals[0], *chunks[1:], aborts[1], intervals[1]]
    found = dict[str, list[Row]]()
    for at, part in enumerate(parts):
        for table, places, rows in iter_rows([part]):
            assert set(places) == {0}
            found.setdefault(table.name, []).extend({**row, "at": at} for row in rows.to_pylist())
    assert found == {
        table.name: [{**row, "at": at} for row, at in zip(rows.to_pylist(), places.tolist(), strict=True)]
        for table, places, rows in iter_rows(parts)
    }
    assert [len(found[table.name]) for table in (OFFSET_INDEX, TXN_INDEX, INTERVAL_INDEX)] == [60, 3, 6]
    assert sum(map(count_rows, parts)) == sum(map(len, found.values()))
    running_ms = [row["previous_running_max_timestamp_ms"] for row in found[INTERVAL_INDEX.name]]
    assert running_ms == [None, None, 0, 1, None, 20], "the first interval of each segment has none before it"
