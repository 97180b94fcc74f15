"""Test the time index file: a real broker's files, round trips, damage, and lookups against a scan."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.kafka.time_index import TimeIndex, read_time_index, write_time_index
from worlds.kafka_sample import TIERED_STORAGE, golden_files, true_segments

STEPS = st.lists(st.tuples(st.integers(1, 2**50), st.integers(0, 2**24)), max_size=20)


def packed(*entries: tuple[int, int]) -> memoryview:
    return memoryview(b"".join(struct.pack(">qi", *entry) for entry in entries))


def climbing(steps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return list(accumulate(steps, lambda low, step: (low[0] + step[0], low[1] + step[1])))


def read_or_refusal(content: bytes, base_offset: int) -> TimeIndex | ArchiveError:
    try:
        return read_time_index(memoryview(content), base_offset=base_offset)
    except ArchiveError as refused:
        return refused


def test_every_time_index_of_a_real_broker_round_trips_byte_for_byte() -> None:
    files = list(golden_files(".timeindex"))
    assert len(files) == 284
    assert sum(read_time_index(content, base_offset=base).entry_count for base, content in files) > 800
    for base_offset, content in files:
        index = read_time_index(content, base_offset=base_offset)
        assert index.padding_bytes == 0
        assert write_time_index(index) == content


def test_only_segments_without_timestamps_have_an_empty_time_index() -> None:
    empty_count = 0
    for segment in true_segments("COPY_SEGMENT_FINISHED"):
        content = (TIERED_STORAGE / f"{segment['path']}.timeindex").read_bytes()
        index = read_time_index(memoryview(content), base_offset=segment["start_offset"])
        assert (index.entry_count == 0) == (segment["rec_max_ts"] == -1)
        assert index.timestamps_ms.tolist()[-1:] == [segment["rec_max_ts"]] * (index.entry_count > 0)
        empty_count += index.entry_count == 0
    assert empty_count > 0


@given(st.binary(max_size=400), st.integers(0, 2**63 - 1))
def test_any_bytes_parse_or_raise_archive_error(content: bytes, base_offset: int) -> None:
    outcome = read_or_refusal(content, base_offset)
    if isinstance(outcome, ArchiveError):
        assert outcome.reason is Reason.TIME_INDEX_INVALID
        assert 0 <= outcome.position < len(content)
    else:
        assert write_time_index(outcome) + bytes(outcome.padding_bytes) == content


@given(STEPS, st.integers(0, 2**40))
def test_entries_read_as_an_independent_builder_packed_them(steps: list[tuple[int, int]], base_offset: int) -> None:
    entries = climbing(steps)
    index = read_time_index(packed(*entries), base_offset=base_offset)
    assert index.timestamps_ms.tolist() == [timestamp_ms for timestamp_ms, _ in entries]
    assert index.offsets.tolist() == [base_offset + relative for _, relative in entries]


@given(STEPS, st.integers(-1, 2**50))
def test_offset_at_or_before_equals_a_scan(steps: list[tuple[int, int]], timestamp_ms: int) -> None:
    entries = climbing(steps)
    index = read_time_index(packed(*entries), base_offset=1000)
    for target in (timestamp_ms, *(timestamp for timestamp, _ in entries)):
        expected = max((relative for timestamp, relative in entries if timestamp <= target), default=0)
        assert index.offset_at_or_before(target) == 1000 + expected


def test_preallocated_tail_is_removed_and_counted() -> None:
    index = read_time_index(packed((7, 3), (0, 0), (0, 0)), base_offset=0)
    assert (index.timestamps_ms.tolist(), index.padding_bytes) == ([7], 24)


@pytest.mark.parametrize(("entries", "kept"), [([(0, 0)], 1), ([(0, 0), (1, 0)], 2), ([(0, 0), (0, 0)], 0)])
def test_zero_entry_is_kept_if_it_differs_from_the_tail(entries: list[tuple[int, int]], kept: int) -> None:
    assert read_time_index(packed(*entries), base_offset=9).entry_count == kept


def test_entries_with_the_same_offset_are_accepted() -> None:
    assert read_time_index(packed((5, 4), (6, 4)), base_offset=0).offsets.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (bytes(packed((1, 2))) + b"\1", 12),
        (packed((5, 10), (5, 20)), 12),
        (packed((5, 10), (4, 20)), 12),
        (packed((5, 10), (6, 9)), 12),
        (packed((-1, 10)), 0),
        (packed((3, 1), (4, -5)), 12),
        (packed((3, -1)), 0),
    ],
)
def test_damage_is_refused_at_its_entry(content: bytes | memoryview, position: int) -> None:
    with pytest.raises(ArchiveError) as refused:
        read_time_index(memoryview(content), base_offset=0)
    assert (refused.value.reason, refused.value.position) == (Reason.TIME_INDEX_INVALID, position)


def test_offset_beyond_int64_is_refused() -> None:
    base_offset = 2**63 - 3
    assert read_time_index(packed((9, 2)), base_offset=base_offset).offsets.tolist() == [2**63 - 1]
    with pytest.raises(ArchiveError, match="wrong offset in entry 1"):
        read_time_index(packed((9, 2), (10, 3)), base_offset=base_offset)


def test_descending_columns_are_not_written() -> None:
    up = read_time_index(packed((1, 1), (2, 2)), base_offset=0)
    down = TimeIndex(base_offset=0, timestamps_ms=up.timestamps_ms[::-1], offsets=up.offsets)
    with pytest.raises(UsageError, match="entry 1"):
        write_time_index(down)
