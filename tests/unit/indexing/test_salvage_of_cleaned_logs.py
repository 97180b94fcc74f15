"""Test what is lost of a damaged log that a log cleaner of Kafka before 3.9.1, or of 4.0.0, has written."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from builders.segment_builder import Batch, Record, Segment, batch_positions
from coldlog.index.sound_batches import SoundBatches
from coldlog.model.states import IndexDepth
from damage.damaged_archives import LOG, Built, Partition, build, options

KEPT = (110, 112, 115)
"""What compaction left of the second batch; its header still ends with offset 119."""
BATCHES = tuple(
    Batch(base_offset=100 + 10 * at, records=tuple(Record(timestamp_ms=at, value=b"x" * 90) for _ in range(10)))
    for at in range(4)
)
CLEANED = replace(
    BATCHES[1],
    last_offset_delta=9,
    records=tuple(Record(timestamp_ms=1, offset=offset, value=b"x" * 90) for offset in KEPT),
)
PARTITION = Partition.of(
    Segment(batches=(Batch(base_offset=0, records=BATCHES[0].records, last_offset_delta=99),)),
    Segment(batches=(BATCHES[0], CLEANED, *BATCHES[2:])),
)
POSITIONS = batch_positions(PARTITION.segments[1].batches)


def _build(*entries: tuple[int, int]) -> Built:
    """Build the segment with the third batch damaged and these entries in its offset index."""
    log = bytearray(PARTITION.content(LOG))
    log[POSITIONS[3] - 1] ^= 1
    index = b"".join(struct.pack(">ii", offset - 100, position) for offset, position in entries)
    damaged = PARTITION.with_content(LOG, bytes(log)).with_content(".index", index)
    return build(damaged, options(IndexDepth.RECORD, is_salvaging=True))[1]


@pytest.mark.parametrize("first", [0, 1])
def test_only_the_damaged_batch_is_lost_if_an_older_log_cleaner_wrote_the_index(first: int) -> None:
    """Its entry names the last record of a set of batches, with the position of the first one."""
    outcome = _build((KEPT[-1], POSITIONS[first]), (139, POSITIONS[3])).outcome
    assert outcome["outcome"] == "indexed"
    holes = outcome["holes"]
    assert isinstance(holes, list)
    assert [(hole["from_offset"], hole["to_offset"]) for hole in holes] == [(120, 129)]


@pytest.mark.parametrize("offset", [111, 105, 131])
def test_a_damaged_log_is_lost_if_no_record_can_have_an_offset_of_its_index(offset: int) -> None:
    assert _build((offset, POSITIONS[1 if offset == 111 else 0])).outcome["outcome"] == "quarantined"


def test_an_index_entry_after_the_log_is_of_no_batch() -> None:
    batches = np.zeros(1, dtype=[(name, np.int64) for name in ("base_offset", "last_offset", "record_count")])
    batches["base_offset"], batches["last_offset"], batches["record_count"] = 100, 109, 3
    found = SoundBatches(batches=batches, holes=())
    assert [found.holds_index_entries(np.array([offset])) for offset in (101, 102, 109, 110)] == [
        False,
        True,
        True,
        False,
    ]
