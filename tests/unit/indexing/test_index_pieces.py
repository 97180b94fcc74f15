"""Rows are made of many windows at a time, and are the rows that one window of the whole log has."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, build_segment
from coldlog.archive.layouts.layout import ListedSegment
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.joined_chunks import join_chunks
from coldlog.index.segment_index import IndexChunk, SegmentIndexer
from coldlog.indexing.builds import index_pieces
from coldlog.indexing.builds.encoded_rows import payload_schema, read_payloads
from coldlog.indexing.builds.index_pieces import IndexPieces
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.time_index import TIME_INDEX

SEGMENT = ListedSegment(
    topic="t", partition=0, topic_id="T", segment_id="s", start_offset=0, objects=(), missing_kinds=()
)
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


def pieces_of(chunks: list[IndexChunk]) -> list[tuple[str, bytes]]:
    """Table and payload of each piece."""
    pieces = IndexPieces(segment=SEGMENT)
    made = [piece for chunk in chunks for piece in pieces.add(chunk)]
    return [
        (piece.column("table_name")[0].as_py(), piece.column("payload")[0].as_py())
        for piece in [*made, *pieces.finish()]
    ]


def rows_of(pieces: list[tuple[str, bytes]]) -> list[pa.Table]:
    return [
        read_payloads(payload_schema(table), [payload for name, payload in pieces if name == table.name])
        for table in (OFFSET_INDEX, TIME_INDEX)
    ]


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


@pytest.mark.parametrize("piece_rows", [1, 50, 100_000])
def test_rows_are_the_same_however_many_windows_a_piece_has(piece_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(pieces_of(chunks_of(len(LOG), IndexDepth.RECORD)))
    monkeypatch.setattr(index_pieces, "PIECE_ROWS", piece_rows)
    chunks = chunks_of(300, IndexDepth.RECORD)
    pieces = pieces_of(chunks)
    assert [found.to_pylist() for found in rows_of(pieces)] == [rows.to_pylist() for rows in expected]
    assert expected[0].num_rows == 60
    row_count = sum(rows.num_rows for rows in expected)
    assert len(pieces) <= 2 * (row_count // piece_rows + 1)
    if piece_rows == 1:
        assert len(pieces) > 2 * len(chunks) // 3
