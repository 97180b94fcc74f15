"""Test the offset index: a real broker's files, round trips, damage, and lookups against a scan."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.kafka.offset_index import OffsetIndex, read_offset_index, write_offset_index
from worlds.kafka_sample import golden_files

ENTRIES = st.lists(st.tuples(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1)), max_size=20).map(
    lambda pairs: list(zip(sorted({a for a, _ in pairs}), sorted({b for _, b in pairs}), strict=False))
)


def packed(*entries: tuple[int, int]) -> memoryview:
    return memoryview(b"".join(struct.pack(">ii", *entry) for entry in entries))


def read_or_refusal(content: bytes, base_offset: int) -> OffsetIndex | ArchiveError:
    try:
        return read_offset_index(memoryview(content), base_offset=base_offset)
    except ArchiveError as refused:
        return refused


def test_every_offset_index_of_a_real_broker_round_trips_byte_for_byte() -> None:
    files = list(golden_files(".index"))
    assert len(files) == 284
    assert sum(read_offset_index(content, base_offset=base).entry_count for base, content in files) > 1000
    for base_offset, content in files:
        index = read_offset_index(content, base_offset=base_offset)
        assert index.padding_bytes == 0
        assert write_offset_index(index) == content


@given(st.binary(max_size=400), st.integers(0, 2**63 - 1))
def test_any_bytes_parse_or_raise_archive_error(content: bytes, base_offset: int) -> None:
    outcome = read_or_refusal(content, base_offset)
    if isinstance(outcome, ArchiveError):
        assert outcome.reason is Reason.OFFSET_INDEX_INVALID
        assert 0 <= outcome.position < len(content)
    else:
        assert write_offset_index(outcome) + bytes(outcome.padding_bytes) == content


@given(ENTRIES, st.integers(0, 2**40))
def test_entries_read_as_an_independent_builder_packed_them(entries: list[tuple[int, int]], base_offset: int) -> None:
    index = read_offset_index(packed(*entries), base_offset=base_offset)
    assert index.offsets.tolist() == [base_offset + relative for relative, _ in entries]
    assert index.positions.tolist() == [position for _, position in entries]


def test_preallocated_tail_is_removed_and_counted() -> None:
    index = read_offset_index(packed((9, 500), (20, 900), (0, 0), (0, 0)), base_offset=100)
    assert index.offsets.tolist() == [109, 120]
    assert index.padding_bytes == 16


def test_file_of_zeros_is_an_index_without_entries() -> None:
    index = read_offset_index(memoryview(bytes(80)), base_offset=7)
    assert (index.entry_count, index.padding_bytes) == (0, 80)


@pytest.mark.parametrize(
    ("content", "position"),
    [
        (bytes(packed((1, 2))) + b"\1\2\3", 8),
        (packed((5, 10), (5, 20)), 8),
        (packed((5, 10), (4, 20)), 8),
        (packed((5, 10), (6, 10)), 8),
        (packed((5, 10), (6, 9)), 8),
        (packed((5, 10), (0, 0), (6, 30)), 8),
        (packed((-1, 10)), 0),
        (packed((3, 1), (4, -5)), 8),
        (packed((3, -1)), 0),
    ],
)
def test_damage_is_refused_at_its_entry(content: bytes | memoryview, position: int) -> None:
    with pytest.raises(ArchiveError) as refused:
        read_offset_index(memoryview(content), base_offset=0)
    assert (refused.value.reason, refused.value.position) == (Reason.OFFSET_INDEX_INVALID, position)
    assert refused.value.expected
    assert refused.value.found


def test_offset_beyond_int64_is_refused() -> None:
    base_offset = 2**63 - 3
    assert read_offset_index(packed((2, 9)), base_offset=base_offset).offsets.tolist() == [2**63 - 1]
    with pytest.raises(ArchiveError, match="wrong offset in entry 1"):
        read_offset_index(packed((2, 9), (3, 10)), base_offset=base_offset)


def test_columns_cannot_be_changed() -> None:
    index = read_offset_index(packed((1, 2)), base_offset=0)
    with pytest.raises(ValueError, match="read-only"):
        index.offsets[0] = 5


def test_offset_too_far_from_the_base_is_not_written() -> None:
    far = read_offset_index(packed((2**31 - 1, 5)), base_offset=100)
    with pytest.raises(UsageError, match="entry 0"):
        write_offset_index(OffsetIndex(base_offset=99, offsets=far.offsets, positions=far.positions))


def test_entry_of_the_first_batch_is_written() -> None:
    content = packed((0, 0), (3, 90))
    assert write_offset_index(read_offset_index(content, base_offset=7)) == bytes(content)
