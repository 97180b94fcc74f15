"""Test that column decoding equals decoding one by one: logs of a real broker, built logs, damaged logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.segment_builder import Batch, Segment, build_batch_around, build_segment, varint
from builders.strategies import partitions
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.record_batch import BatchHeaders, read_batch_headers
from coldlog.formats.kafka.record_columns import (
    ByteColumn,
    HeaderColumn,
    RecordBounds,
    RecordColumns,
    WantedFields,
    read_record_columns,
)
from coldlog.formats.kafka.records import Headers, iter_records
from coldlog.formats.kafka.sections import RecordSections, SectionReader
from coldlog.formats.limits import DecodeLimits
from drawn_examples import is_sampled, sampled
from worlds.kafka_sample import TIERED_STORAGE, true_segments

LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)
EVERYTHING = WantedFields(key=True, value=True, headers=True)
Row = tuple[int, int, bool, bytes | None, bytes | None, Headers | None]


def headers_of(log: bytes) -> BatchHeaders:
    return read_batch_headers(memoryview(log), position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 26).headers


def by_record(log: bytes) -> list[Row]:
    return [
        (each.offset, each.timestamp_ms, each.is_log_append_time, each.key, each.value, each.headers)
        for each in iter_records(memoryview(log), headers_of(log), 0, SectionReader(limits=LIMITS))
    ]


def by_column(log: bytes, bounds: RecordBounds, wanted: WantedFields) -> list[Row]:
    headers = headers_of(log)
    sections = SectionReader(limits=LIMITS).iter_sections(memoryview(log), headers, 0)
    return [row for each in sections for row in rows(read_record_columns(each, headers, bounds, wanted))]


def rows(columns: RecordColumns) -> Iterator[Row]:
    nothing = [None] * len(columns)
    keys = nothing if columns.key is None else entries(columns.key)
    values = nothing if columns.value is None else entries(columns.value)
    headers = nothing if columns.headers is None else header_entries(columns.headers)
    fixed = (columns.offset.tolist(), columns.timestamp_ms.tolist(), columns.is_log_append_time.tolist())
    yield from zip(*fixed, keys, values, headers, strict=True)


def entries(column: ByteColumn) -> list[bytes | None]:
    is_null = np.zeros(len(column.offsets) - 1, dtype=np.bool_) if column.is_null is None else column.is_null
    content, offsets = column.content.tobytes(), column.offsets.tolist()
    return [None if is_null[at] else content[offsets[at] : offsets[at + 1]] for at in range(len(offsets) - 1)]


def header_entries(column: HeaderColumn) -> list[Headers]:
    named = list(zip(entries(column.names), entries(column.values), strict=True))
    offsets = column.offsets.tolist()
    return [tuple((name or b"", value) for name, value in named[first:last]) for first, last in pairwise(offsets)]


def test_logs_of_a_real_broker_are_decoded_alike() -> None:
    compared = 0
    for segment in sampled(true_segments("COPY_SEGMENT_FINISHED")):
        log = (TIERED_STORAGE / f"{segment['path']}.log").read_bytes()
        expected = by_record(log)
        assert by_column(log, RecordBounds(), EVERYTHING) == expected
        compared += len(expected)
    assert compared > (5_000 if is_sampled() else 70_000)


@given(segments=partitions(), data=st.data())
def test_records_within_bounds_equal_a_scan(segments: list[Segment], data: st.DataObject) -> None:
    log = build_segment(batch for segment in segments for batch in segment.batches)
    every = by_record(log)
    offsets = sorted({0, *(row[0] for row in every)})
    times = sorted({0, *(row[1] for row in every)})
    first, last = sorted(data.draw(st.tuples(st.sampled_from(offsets), st.sampled_from(offsets))))
    early, late = sorted(data.draw(st.tuples(st.sampled_from(times), st.sampled_from(times))))
    bounds = RecordBounds(from_offset=first, to_offset=last, from_timestamp_ms=early, to_timestamp_ms=late)
    kept = [row for row in every if first <= row[0] <= last and early <= row[1] <= late]
    assert by_column(log, bounds, EVERYTHING) == kept
    bare = by_column(log, bounds, WantedFields(key=False, value=True, headers=False))
    assert bare == [(*row[:3], None, row[4], None) for row in kept]
    assert by_column(log, bounds, WantedFields(key=False, value=False, headers=False)) == [
        (*row[:3], None, None, None) for row in kept
    ]


@given(segments=partitions(max_segments=1, max_batches=2), data=st.data())
def test_damaged_records_are_refused_as_by_the_record_decoder(segments: list[Segment], data: st.DataObject) -> None:
    log = build_segment(segments[0].batches)
    headers = headers_of(log)
    # Compressed sections are decompressed first, so that the records themselves are damaged.
    whole = [
        (each.first, each.buffer.copy(), each.starts.copy(), each.ends.copy())
        for each in SectionReader(limits=LIMITS).iter_sections(memoryview(log), headers, 0)
    ]
    places = [(at, place) for at, (_, _, starts, ends) in enumerate(whole) for place in _inside(starts, ends)]
    if not places:
        return
    at, place = data.draw(st.sampled_from(places))
    whole[at][1][place] ^= data.draw(st.integers(1, 255))
    for first, buffer, starts, ends in whole:
        sections = RecordSections(first=first, buffer=buffer, starts=starts, ends=ends)
        found = _outcome(_by_column, sections, headers)
        expected = _outcome(_one_by_one, sections, headers)
        if found != expected:
            assert found == "refused", "it knows more than one by one: offsets ascend within their batch"
            assert not _are_offsets_good(expected, headers)


def _inside(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[int]:
    return [place for start, end in zip(starts.tolist(), ends.tolist(), strict=True) for place in range(start, end)]


def _outcome(
    read: Callable[[RecordSections, BatchHeaders], list[Row]], sections: RecordSections, headers: BatchHeaders
) -> list[Row] | str:
    try:
        return read(sections, headers)
    except ArchiveError:
        return "refused"


def _by_column(sections: RecordSections, headers: BatchHeaders) -> list[Row]:
    return list(rows(read_record_columns(sections, headers, RecordBounds(), EVERYTHING)))


class _Given(SectionReader):
    """Return prepared sections."""

    given: RecordSections

    def iter_sections(self, window: memoryview, headers: BatchHeaders, position: int) -> Iterator[RecordSections]:
        yield self.given


def _one_by_one(sections: RecordSections, headers: BatchHeaders) -> list[Row]:
    reader = _Given(limits=LIMITS)
    reader.given = sections
    return [
        (each.offset, each.timestamp_ms, each.is_log_append_time, each.key, each.value, each.headers)
        for each in iter_records(memoryview(b""), headers, 0, reader)
    ]


def _are_offsets_good(found: list[Row] | str, headers: BatchHeaders) -> bool:
    if isinstance(found, str):
        return False
    offsets = [row[0] for row in found]
    ascend = all(before < after for before, after in pairwise(offsets))
    inside = all(
        any(low <= offset <= high for low, high in zip(headers.base_offset, headers.last_offset, strict=True))
        for offset in offsets
    )
    return ascend and inside


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (varint(50) + b"abc" + varint(-1) + varint(0), "key, value or header extends beyond its record"),
        (varint(-1) + varint(50) + b"abc" + varint(0), "key, value or header extends beyond its record"),
        (varint(-1) + varint(-1) + varint(1) + varint(9) + b"abc", "key, value or header extends beyond its record"),
        (varint(-1) + varint(-1) + varint(3), "record has more headers than bytes"),
        (varint(-1) + varint(-1) + varint(1) + varint(-1) + varint(-1), "header has no name"),
        (varint(-1) + varint(-1) + varint(0) + b"rest", "record is longer than its fields"),
        (varint(-1) + b"\xff\xff\xff", "record has a number that does not end"),
    ],
)
def test_wrong_field_is_named(fields: bytes, message: str) -> None:
    body = b"\x00" + varint(0) + varint(0) + fields
    log = build_batch_around(Batch(base_offset=0, last_offset_delta=0), varint(len(body)) + body, records_count=1)
    with pytest.raises(ArchiveError, match=message):
        by_column(log, RecordBounds(), EVERYTHING)


def test_more_records_than_in_the_header_are_refused_with_the_batch_position() -> None:
    log = (TIERED_STORAGE / f"{true_segments('COPY_SEGMENT_FINISHED')[0]['path']}.log").read_bytes()
    headers = headers_of(log)
    sections = next(iter(SectionReader(limits=LIMITS).iter_sections(memoryview(log), headers, 0)))
    fewer = headers.record_count.copy()
    fewer[sections.first + 1] -= 1
    lying = BatchHeaders(
        **{name: getattr(headers, name) for name in headers.__slots__ if name != "record_count"}, record_count=fewer
    )
    with pytest.raises(ArchiveError, match="batch has bytes after its last record") as refused:
        read_record_columns(sections, lying, RecordBounds(), EVERYTHING)
    assert refused.value.position == int(headers.position[sections.first + 1])
