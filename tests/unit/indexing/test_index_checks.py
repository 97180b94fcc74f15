"""Test that an offset index may have the entries that a leader or a follower writes, and that others are refused."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.segment_builder import Batch, Record, Segment, batch_positions, build_batch, build_segment
from builders.side_files import build_indexes
from builders.strategies import partitions
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.offset_index import read_offset_index
from coldlog.formats.limits import DecodeLimits
from coldlog.index.index_checks import OffsetIndexCheck
from coldlog.model.states import IndexDepth
from contents.walked_logs import walk_log

LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)
SIX_BATCHES = Segment(
    batches=tuple(
        Batch(base_offset=100 + 10 * at, records=tuple(Record(timestamp_ms=at, value=b"x" * 90) for _ in range(10)))
        for at in range(6)
    )
)
POSITIONS = batch_positions(SIX_BATCHES.batches)
"""Entries for the batches whose last offsets are 109, 119, ..., 159."""


def check(segment: Segment, offset_index: bytes, window_bytes: int = 1 << 20) -> None:
    """Check the offset index of a segment as a build does."""
    index = read_offset_index(memoryview(offset_index), base_offset=segment.start_offset)
    checked = OffsetIndexCheck(index=index, object_name="00000000000000000100.index")
    checked.finish(
        walk_log(
            build_segment(segment.batches),
            start_offset=segment.start_offset,
            depth=IndexDepth.BATCH,
            window_bytes=window_bytes,
            add=checked.add,
        )
    )


def entries(*offsets_and_positions: tuple[int, int]) -> bytes:
    """The bytes of an offset index of `SIX_BATCHES`."""
    return b"".join(struct.pack(">ii", offset - 100, position) for offset, position in offsets_and_positions)


@given(segments=partitions(max_segments=1, max_batches=12), window_bytes=st.integers(1, 5000))
def test_indexes_of_leaders_and_followers_agree_with_their_log(segments: Sequence[Segment], window_bytes: int) -> None:
    (segment,) = segments
    offset_index, _ = build_indexes(segment, [len(build_batch(batch)) for batch in segment.batches])
    check(segment, offset_index, window_bytes)


@pytest.mark.parametrize(
    "good",
    [
        pytest.param(entries((119, POSITIONS[1]), (149, POSITIONS[4])), id="leader"),
        pytest.param(entries((129, POSITIONS[1]), (159, POSITIONS[3])), id="follower"),
        pytest.param(entries((109, POSITIONS[0]), (159, POSITIONS[5])), id="every-end"),
    ],
)
@pytest.mark.parametrize("window_bytes", [1, 1500, 1 << 20])
def test_an_entry_may_name_a_batch_or_a_fetched_set(good: bytes, window_bytes: int) -> None:
    check(SIX_BATCHES, good, window_bytes)


@pytest.mark.parametrize(
    ("bad", "entry"),
    [
        pytest.param(entries((118, POSITIONS[1])), 0, id="offset inside a batch"),
        pytest.param(entries((119, POSITIONS[1] + 1)), 0, id="position inside a batch"),
        pytest.param(entries((119, POSITIONS[2])), 0, id="batch begins before the position"),
        pytest.param(entries((139, POSITIONS[1]), (149, POSITIONS[3])), 0, id="batch begins at the next position"),
        pytest.param(entries((119, POSITIONS[1]), (169, POSITIONS[4])), 1, id="offset after the end"),
        pytest.param(entries((119, POSITIONS[1]), (159, 1 << 20)), 1, id="position after the end"),
    ],
)
@pytest.mark.parametrize("window_bytes", [1, 1500, 1 << 20])
def test_any_other_entry_is_refused_with_its_position(bad: bytes, entry: int, window_bytes: int) -> None:
    with pytest.raises(ArchiveError) as caught:
        check(SIX_BATCHES, bad, window_bytes)
    assert caught.value.reason is Reason.OFFSET_INDEX_INVALID
    assert caught.value.object_name == "00000000000000000100.index"
    assert caught.value.position == 8 * entry


KEPT = (130, 132, 135)
COMPACTED = Segment(
    batches=tuple(
        replace(
            each, last_offset_delta=9, records=tuple(Record(timestamp_ms=at, offset=at, value=b"x" * 90) for at in KEPT)
        )
        if each.base_offset == 130
        else each
        for each in SIX_BATCHES.batches
    )
)
"""Compaction left three records of the fourth batch; its header still ends with offset 139."""


@pytest.mark.parametrize("window_bytes", [1, 1500, 1 << 20])
def test_an_entry_of_the_log_cleaner_may_name_the_last_record_that_is_left_of_a_batch(window_bytes: int) -> None:
    """Before Kafka 3.9.1, and in 4.0.0, it names that record of the last batch that it appended."""
    positions = batch_positions(COMPACTED.batches)
    for good in (entries((135, positions[3])), entries((135, positions[1]), (159, positions[4]))):
        check(COMPACTED, good, window_bytes)
    for offset, position in ((131, positions[3]), (135, positions[4]), (128, positions[2])):
        with pytest.raises(ArchiveError):
            check(COMPACTED, entries((offset, position)), window_bytes)
