"""Test that a log read in windows of any size has the content that a real broker and an independent builder report."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.brute_force import list_stairs
from builders.segment_builder import Segment, build_segment, commit_marker
from builders.strategies import partitions
from coldlog.formats.kafka.compression import CODEC_NAMES
from coldlog.formats.limits import DecodeLimits
from coldlog.index.segment_index import IndexChunk
from coldlog.index.segment_summary import SegmentSummary
from coldlog.model.states import IndexDepth
from contents.walked_logs import walk_log
from worlds.kafka_sample import KAFKA_SAMPLE, TIERED_STORAGE, true_segments

LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)


def walk(
    log: bytes,
    *,
    start_offset: int,
    counted_from: int | None = None,
    depth: IndexDepth = IndexDepth.RECORD,
    window_bytes: int = 1 << 22,
) -> tuple[list[IndexChunk], SegmentSummary]:
    """All chunks of a log, and its summary."""
    chunks: list[IndexChunk] = []
    summary = walk_log(
        log,
        start_offset=start_offset,
        counted_from=counted_from,
        depth=depth,
        window_bytes=window_bytes,
        add=chunks.append,
    )
    return chunks, summary


def _batches(chunks: list[IndexChunk]) -> Iterator[dict[str, object]]:
    for chunk in chunks:
        headers = chunk.headers
        for at in range(len(headers)):
            yield {
                "pos": int(headers.position[at]),
                "size": int(headers.size_bytes[at]),
                "base": int(headers.base_offset[at]),
                "last": int(headers.last_offset[at]),
                "records": int(headers.record_count[at]),
                "codec": CODEC_NAMES[headers.codec[at]],
                "ts_type": "LogAppendTime" if headers.is_log_append_time[at] else "CreateTime",
                "max_ts": int(headers.max_timestamp_ms[at]),
                "pid": int(headers.producer_id[at]),
                "pepoch": int(headers.producer_epoch[at]),
                "bseq": int(headers.base_sequence[at]),
                "txn": bool(headers.is_transactional[at]),
                "control": bool(headers.is_control[at]),
                "leader_epoch": int(headers.leader_epoch[at]),
                "crc": int(headers.crc[at]),
            }


def test_every_field_of_every_batch_of_the_broker_is_read() -> None:
    truth: dict[str, list[dict[str, object]]] = {}
    for path in sorted((KAFKA_SAMPLE / "truth" / "batches").glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            batch = json.loads(line)
            truth.setdefault(batch["segment_id"], []).append(batch)
    compared = 0
    for segment in true_segments("COPY_SEGMENT_FINISHED"):
        log = (TIERED_STORAGE / f"{segment['path']}.log").read_bytes()
        true = truth[segment["segment_id"]]
        for depth in IndexDepth:
            chunks, summary = walk(log, start_offset=segment["start_offset"], depth=depth, window_bytes=4096)
            found = list(_batches(chunks))
            assert found == [{name: batch[name] for name in found[0]} for batch in true]
            assert_summary(summary, true)
            assert summary.stair_count == len(_stairs(chunks))
            assert summary.abort_marker_count >= len(segment["aborted"])
            compared += len(found)
        assert segment["rec_max_ts"] == summary.max_timestamp_ms
    assert compared > 10_000


def assert_summary(summary: SegmentSummary, batches: Sequence[Mapping[str, Any]]) -> None:
    """Compare what the headers say, which both depths report."""
    last = batches[-1]
    assert (summary.base_offset, summary.last_offset) == (batches[0]["base"], last["last"])
    assert (summary.batch_count, summary.last_position) == (len(batches), last["pos"])
    assert summary.last_producer_id == (-1 if last["control"] else last["pid"])
    assert summary.record_count == sum(batch["records"] for batch in batches)
    assert summary.control_batch_count == sum(batch["control"] for batch in batches)
    assert summary.max_timestamp_ms == max(batch["max_ts"] for batch in batches if batch["records"])
    assert summary.largest_batch_timestamp_ms == max(batch["max_ts"] for batch in batches)
    assert set(summary.codecs) == {batch["codec"] for batch in batches}


def _stairs(chunks: list[IndexChunk]) -> list[tuple[int, int, int | None, int, int]]:
    return [
        (
            int(chunk.stairs.offset[at]),
            int(chunk.stairs.timestamp_ms[at]),
            int(chunk.stairs.previous_timestamp_ms[at]) if chunk.stairs.has_previous[at] else None,
            int(chunk.headers.base_offset[chunk.stairs.batch[at]]),
            int(chunk.headers.leader_epoch[chunk.stairs.batch[at]]),
        )
        for chunk in chunks
        for at in range(len(chunk.stairs.offset))
    ]


def _expected_stairs(segment: Segment, counted_from: int) -> list[tuple[int, int, int | None, int, int]]:
    batch_of = {record.offset: batch for batch in segment.batches for record in batch.placed_records}
    stairs = list_stairs(segment.placed_records, from_offset=counted_from)
    before: list[int | None] = [None, *(stair.timestamp_ms for stair in stairs)]
    return [
        (stair.offset, stair.timestamp_ms, previous, batch_of[stair.offset].base_offset, stair.leader_epoch)
        for stair, previous in zip(stairs, before, strict=False)
    ]


@given(segments=partitions(), window_bytes=st.integers(1, 5000), data=st.data())
def test_stairs_and_running_maxima_equal_a_scan_for_any_windows(
    segments: list[Segment], window_bytes: int, data: st.DataObject
) -> None:
    for segment in segments:
        log = build_segment(segment.batches)
        last = segment.batches[-1].last_offset
        counted_from = data.draw(st.integers(segment.start_offset, min(last + 2, 2**63 - 1)))
        chunks, summary = walk(
            log, start_offset=segment.start_offset, counted_from=counted_from, window_bytes=window_bytes
        )
        assert _stairs(chunks) == _expected_stairs(segment, counted_from)
        running: int | None = None
        rows = [(chunk, at) for chunk in chunks for at in range(len(chunk.headers))]
        for (chunk, at), batch in zip(rows, segment.batches, strict=True):
            before = int(chunk.previous_running_ms[at]) if chunk.has_previous_running[at] else None
            assert before == running
            counted = [each.timestamp_ms for each in batch.placed_records if each.offset >= counted_from]
            running = max([*counted, *([] if running is None else [running])], default=None)
            assert (int(chunk.running_ms[at]) if chunk.has_running[at] else None) == running
            smallest = min((each.timestamp_ms for each in batch.placed_records), default=None)
            assert (int(chunk.smallest_ms[at]) if chunk.has_smallest[at] else None) == smallest
        assert summary.counted_max_timestamp_ms == running
        times = [record.timestamp_ms for record in segment.placed_records]
        assert (summary.max_timestamp_ms, summary.min_timestamp_ms) == (
            max(times, default=None),
            min(times, default=None),
        )
        assert summary.max_timestamp_offset == _first_offset_of_the_largest(segment, 0)
        assert summary.counted_max_timestamp_offset == _first_offset_of_the_largest(segment, counted_from)
        assert summary.record_count == len(times)
        assert summary.last_offset == last


def _first_offset_of_the_largest(segment: Segment, from_offset: int) -> int | None:
    """The lowest offset that has the largest timestamp, found by looking at every record."""
    records = [record for record in segment.placed_records if record.offset >= from_offset]
    largest = max((record.timestamp_ms for record in records), default=None)
    return min((record.offset for record in records if record.timestamp_ms == largest), default=None)


@given(segments=partitions(), window_bytes=st.integers(1, 5000), data=st.data())
def test_depth_batch_finds_the_batch_with_the_first_record_at_or_after_a_time(
    segments: list[Segment], window_bytes: int, data: st.DataObject
) -> None:
    for segment in segments:
        log = build_segment(segment.batches)
        counted_from = data.draw(st.integers(segment.start_offset, segment.batches[-1].last_offset))
        chunks, summary = walk(
            log,
            start_offset=segment.start_offset,
            counted_from=counted_from,
            depth=IndexDepth.BATCH,
            window_bytes=window_bytes,
        )
        assert (summary.max_timestamp_offset, summary.counted_max_timestamp_offset) == (None, None)
        rows = [(chunk, at) for chunk in chunks for at in range(len(chunk.headers))]
        for (chunk, at), batch in zip(rows, segment.batches, strict=True):
            is_known = bool(chunk.headers.is_log_append_time[at]) and bool(batch.placed_records)
            assert bool(chunk.has_smallest[at]) == is_known
            if is_known:
                assert int(chunk.smallest_ms[at]) == min(each.timestamp_ms for each in batch.placed_records)
        for stair in list_stairs(segment.placed_records, from_offset=counted_from):
            holding = [
                int(chunk.headers.base_offset[at])
                for chunk, at in rows
                if chunk.has_running[at]
                and stair.timestamp_ms <= int(chunk.running_ms[at])
                and not (chunk.has_previous_running[at] and int(chunk.previous_running_ms[at]) >= stair.timestamp_ms)
            ]
            batch = next(b for b in segment.batches if b.base_offset <= stair.offset <= b.last_offset)
            assert holding == [batch.base_offset]


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_window_smaller_than_a_batch_requests_more_bytes(depth: IndexDepth) -> None:
    segment = true_segments("COPY_SEGMENT_FINISHED")[0]
    log = (TIERED_STORAGE / f"{segment['path']}.log").read_bytes()
    whole, of_whole = walk(log, start_offset=segment["start_offset"], depth=depth)
    pieces, of_pieces = walk(log, start_offset=segment["start_offset"], depth=depth, window_bytes=1)
    assert of_pieces == of_whole
    assert list(_batches(pieces)) == list(_batches(whole))
    assert len(pieces) > len(whole)


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_control_batch_whose_marker_was_compacted_away_counts_no_marker(depth: IndexDepth) -> None:
    marker = commit_marker(offset=3, timestamp_ms=5, producer_id=1, producer_epoch=0, leader_epoch=0)
    emptied = replace(marker, base_offset=4, records=(), last_offset_delta=0)
    chunks, summary = walk(build_segment([marker, emptied]), start_offset=3, depth=depth)
    assert (summary.control_batch_count, summary.commit_marker_count, summary.abort_marker_count) == (2, 1, 0)
    assert [chunk.abort_offsets.tolist() for chunk in chunks] == [[]]
