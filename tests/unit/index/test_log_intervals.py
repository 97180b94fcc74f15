"""Test that the interval of the indexes has the first match of every timestamp, against a scan of all batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.index_writers import AppendedBatch, SegmentLogModel
from builders.segment_builder import Segment, batch_positions, build_batch
from builders.side_files import build_indexes
from builders.strategies import partitions
from coldlog.formats.kafka.offset_index import OffsetIndex, read_offset_index
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.formats.kafka.time_index import TimeIndex, read_time_index
from coldlog.index.log_intervals import LogIntervals, find_intervals
from drawn_examples import examples
from worlds.kafka_sample import KAFKA_SAMPLE

BASE_OFFSET = 1000
_GOLDEN = (KAFKA_SAMPLE / "archive", KAFKA_SAMPLE.parent / "clusters")
_STRIDES = (0, 1, 300, 5000, 1 << 20)


def indexes_of(model: SegmentLogModel) -> tuple[OffsetIndex, TimeIndex]:
    """Both indexes, read from the bytes of their files."""
    offsets = b"".join(struct.pack(">ii", last - BASE_OFFSET, position) for last, position in model.offset_entries)
    times = b"".join(struct.pack(">qi", timestamp_ms, at - BASE_OFFSET) for timestamp_ms, at in model.time_entries)
    return (
        read_offset_index(memoryview(offsets), base_offset=BASE_OFFSET),
        read_time_index(memoryview(times), base_offset=BASE_OFFSET),
    )


def intervals_of(model: SegmentLogModel, stride_bytes: int) -> LogIntervals | None:
    offset_index, time_index = indexes_of(model)
    return find_intervals(
        offset_index,
        time_index,
        end_offset=model.batches[-1].last_offset,
        max_timestamp_ms=model.time_entries[-1][0] if model.time_entries else 0,
        log_bytes=model.size_bytes,
        stride_bytes=stride_bytes,
    )


@st.composite
def sets_of_batches(draw: st.DrawFn, next_offset: int) -> list[AppendedBatch]:
    """Batches that are appended at once; their timestamps go forward and back."""
    batches = []
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 5)))):
        base_offset = next_offset + draw(st.sampled_from((0, 0, 3)))
        last_offset = base_offset + draw(st.integers(0, 4))
        batches.append(
            AppendedBatch(
                base_offset=base_offset,
                last_offset=last_offset,
                size_bytes=draw(st.integers(61, 900)),
                max_timestamp_ms=draw(st.one_of(st.integers(-1, 30), st.integers(0, 3).map(lambda at: 100 * at))),
                max_timestamp_at=draw(st.integers(base_offset, last_offset)),
            )
        )
        next_offset = last_offset + 1
    return batches


@st.composite
def written_segments(draw: st.DrawFn) -> SegmentLogModel:
    """A closed segment after any life: leaders and followers append, brokers restart, truncate and recover."""
    model = SegmentLogModel(
        base_offset=BASE_OFFSET,
        index_interval_bytes=draw(st.sampled_from((0, 256, 1000))),
        names_records=draw(st.booleans()),
    )
    for _ in range(draw(st.integers(1, 14))):
        next_offset = model.batches[-1].last_offset + 1 if model.batches else BASE_OFFSET
        step = draw(st.sampled_from(("append", "append", "append", "append", "restart", "truncate", "recover")))
        if step == "append" or not model.batches:
            model.append(draw(sets_of_batches(next_offset)))
        elif step == "restart":
            model.close()
        elif step == "recover":
            model.recover()
        elif len(model.batches) > 1:
            # Epochs end between batches.
            model.truncate(draw(st.sampled_from(model.batches[1:])).base_offset)
    model.close()
    return model


def scan(model: SegmentLogModel, timestamp_ms: int) -> AppendedBatch | None:
    return next((batch for batch in model.batches if batch.max_timestamp_ms >= timestamp_ms), None)


@examples(200)
@given(model=written_segments(), stride_bytes=st.sampled_from(_STRIDES))
def test_the_first_match_of_every_timestamp_lies_in_its_interval(model: SegmentLogModel, stride_bytes: int) -> None:
    found = intervals_of(model, stride_bytes)
    if not model.time_entries:
        assert found is None, "no batch has a timestamp"
        return
    assert found is not None
    for timestamp_ms in range(model.time_entries[-1][0] + 2):
        at, match = found.find(timestamp_ms), scan(model, timestamp_ms)
        assert (at is None) == (match is None), timestamp_ms
        if at is None or match is None:
            continue
        assert found.after_offset[at] < match.base_offset, timestamp_ms
        assert match.last_offset <= found.last_offset[at], timestamp_ms
        position = sum(batch.size_bytes for batch in model.batches[: model.batches.index(match)])
        assert found.position[at] <= position, timestamp_ms
        assert position + match.size_bytes <= found.position[at] + found.size_bytes[at], timestamp_ms


@examples(50)
@given(model=written_segments(), stride_bytes=st.sampled_from(_STRIDES))
def test_intervals_begin_at_batches_and_cover_the_log(model: SegmentLogModel, stride_bytes: int) -> None:
    found = intervals_of(model, stride_bytes)
    if found is None:
        return
    positions = np.cumsum([0, *(batch.size_bytes for batch in model.batches)]).tolist()
    ends = (found.position + found.size_bytes).tolist()
    assert set(found.position.tolist()) | set(ends) <= set(positions), "a read begins and ends between batches"
    assert found.position[0] == 0
    assert ends[-1] == model.size_bytes
    assert all(begin <= end for begin, end in zip(found.position.tolist()[1:], ends, strict=False))
    assert found.after_offset.tolist()[1:] == found.last_offset.tolist()[:-1], "each offset is in one interval"
    assert np.all(found.last_offset > found.after_offset), "and each interval has some"
    assert np.all(np.diff(found.position) >= max(stride_bytes, 1))


@examples(40)
@given(segments=partitions(max_segments=1, max_batches=12), stride_bytes=st.sampled_from(_STRIDES))
def test_the_first_match_lies_in_its_interval_in_archives_with_compacted_batches(
    segments: Sequence[Segment], stride_bytes: int
) -> None:
    (segment,) = segments
    sizes = [len(build_batch(batch)) for batch in segment.batches]
    offset_index, time_index = build_indexes(segment, sizes)
    found = find_intervals(
        read_offset_index(memoryview(offset_index), base_offset=segment.start_offset),
        read_time_index(memoryview(time_index), base_offset=segment.start_offset),
        end_offset=segment.end_offset,
        max_timestamp_ms=segment.metadata_max_timestamp_ms,
        log_bytes=sum(sizes),
        stride_bytes=stride_bytes,
    )
    if found is None:
        assert all(batch.max_timestamp_ms < 0 for batch in segment.batches)
        return
    placed = list(zip(segment.batches, batch_positions(segment.batches), strict=True))
    for timestamp_ms in {max(0, batch.max_timestamp_ms + shift) for batch in segment.batches for shift in (-1, 0)}:
        at = found.find(timestamp_ms)
        match = next(((each, where) for each, where in placed if each.max_timestamp_ms >= timestamp_ms), None)
        assert (at is None) == (match is None)
        if at is not None and match is not None:
            assert found.after_offset[at] < match[0].base_offset
            assert match[0].last_offset <= found.last_offset[at]
            assert found.position[at] <= match[1] < found.position[at] + found.size_bytes[at]


def test_the_first_match_lies_in_its_interval_in_every_log_of_brokers() -> None:
    """The sample's archive, and those of brokers from 3.6 to 4.3, written by leaders and followers."""
    paths = sorted(path for root in _GOLDEN for path in root.rglob("*.timeindex") if path.stat().st_size)
    checked = 0
    for path in paths:
        log = path.with_suffix(".log").read_bytes()
        headers = read_batch_headers(
            memoryview(log), position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 26
        ).headers
        base_offset = int(path.name[:20])
        times = read_time_index(memoryview(path.read_bytes()), base_offset=base_offset)
        offsets = read_offset_index(memoryview(path.with_suffix(".index").read_bytes()), base_offset=base_offset)
        if times.padding_bytes or offsets.padding_bytes:
            continue  # the segment is open
        for stride_bytes in (0, 5000):
            found = find_intervals(
                offsets,
                times,
                end_offset=int(headers.last_offset[-1]),
                max_timestamp_ms=int(headers.max_timestamp_ms.max()),
                log_bytes=len(log),
                stride_bytes=stride_bytes,
            )
            assert found is not None, path
            for timestamp_ms in {int(each) + shift for each in headers.max_timestamp_ms for shift in (-1, 0)}:
                match = int(np.argmax(headers.max_timestamp_ms >= timestamp_ms))
                at = found.find(max(timestamp_ms, 0))
                assert at is not None, path
                assert found.after_offset[at] < headers.base_offset[match], path
                assert headers.last_offset[match] <= found.last_offset[at], path
                assert 0 <= headers.position[match] - found.position[at] < found.size_bytes[at], path
        checked += 1
    assert checked > 20


def test_a_truncation_inside_a_batch_leaves_a_maximum_that_no_batch_has() -> None:
    """A leader up to Kafka 3.7 names the record, so its entry survives a truncation to a later offset of its batch."""
    model = SegmentLogModel(base_offset=BASE_OFFSET, index_interval_bytes=0, names_records=True)
    batches = [
        AppendedBatch(base_offset=1000, last_offset=1004, size_bytes=100, max_timestamp_ms=5, max_timestamp_at=1004),
        AppendedBatch(base_offset=1005, last_offset=1009, size_bytes=100, max_timestamp_ms=50, max_timestamp_at=1005),
    ]
    for batch in batches:
        model.append([batch])
    model.truncate(1008)
    for base_offset, timestamp_ms in ((1005, 7), (1010, 8), (1015, 20)):
        later = AppendedBatch(
            base_offset=base_offset,
            last_offset=base_offset + 4,
            size_bytes=100,
            max_timestamp_ms=timestamp_ms,
            max_timestamp_at=base_offset,
        )
        model.append([later])
    model.close()
    assert model.time_entries == [(50, 1005)]
    found = intervals_of(model, 0)
    assert found is not None
    at, match = found.find(20), scan(model, 20)
    assert match is not None
    assert at == 0
    assert match.base_offset > found.last_offset[0], "so a search goes on in the next intervals"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        pytest.param({"max_timestamp_ms": 31}, "an open segment's last entry", id="other maximum"),
        pytest.param({"end_offset": 1001}, "entries after the end", id="earlier end"),
        pytest.param({"log_bytes": 150}, "positions after the end", id="shorter log"),
        pytest.param({"end_offset": 900}, "an end before the segment", id="end before start"),
    ],
)
def test_indexes_that_do_not_fit_the_announcement_are_not_used(changed: dict[str, int], why: str) -> None:
    model = SegmentLogModel(base_offset=BASE_OFFSET, index_interval_bytes=0)
    for at in range(4):
        first = BASE_OFFSET + 2 * at
        model.append(
            [
                AppendedBatch(
                    base_offset=first,
                    last_offset=first + 1,
                    size_bytes=100,
                    max_timestamp_ms=10 * at,
                    max_timestamp_at=first,
                )
            ]
        )
    model.close()
    announced = {"end_offset": 1007, "max_timestamp_ms": 30, "log_bytes": 400}
    offset_index, time_index = indexes_of(model)
    assert find_intervals(offset_index, time_index, **announced, stride_bytes=0) is not None
    assert find_intervals(offset_index, time_index, **(announced | changed), stride_bytes=0) is None, why


def test_a_short_segment_is_one_interval() -> None:
    model = SegmentLogModel(base_offset=BASE_OFFSET, index_interval_bytes=4096)
    model.append(
        [AppendedBatch(base_offset=1000, last_offset=1004, size_bytes=500, max_timestamp_ms=9, max_timestamp_at=1001)]
    )
    model.close()
    found = intervals_of(model, 65536)
    assert found is not None
    columns = (found.after_offset, found.last_offset, found.position, found.size_bytes, found.running_max_ms)
    assert [column.tolist() for column in columns] == [[999], [1004], [0], [500], [9]]
