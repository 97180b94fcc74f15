"""Test that batches are sound as indexed exactly if their headers can be read and are those of the index."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, build_batch, build_segment
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.indexed_batches import ANY_LEADER_EPOCH, are_indexed_batches
from coldlog.formats.kafka.record_batch import BatchHeaders, read_batch_headers

POSITION, START_OFFSET, MOST_BYTES = 7_000, 100, 1 << 16
BATCHES = [
    Batch(
        base_offset=START_OFFSET + 5 * number,
        records=tuple(Record(timestamp_ms=1_000 + number, value=b"value" * 9) for _ in range(3)),
        codec=codec,
    )
    for number, codec in enumerate(Codec)
]
LOG = build_segment(BATCHES)


def read(log: bytes) -> BatchHeaders:
    return read_batch_headers(
        memoryview(log), position=POSITION, next_offset=START_OFFSET, is_last=True, max_batch_bytes=MOST_BYTES
    ).headers


INDEXED = read(LOG)


def are_sound(
    log: bytes, indexed: BatchHeaders = INDEXED, max_batch_bytes: int = MOST_BYTES, leader_epoch: int = ANY_LEADER_EPOCH
) -> bool:
    return are_indexed_batches(
        memoryview(log),
        position=POSITION,
        next_offset=START_OFFSET,
        max_batch_bytes=max_batch_bytes,
        positions=indexed.position,
        sizes=indexed.size_bytes.astype(np.int64),
        base_offsets=indexed.base_offset,
        last_offsets=indexed.last_offset,
        leader_epochs=np.full(len(indexed), leader_epoch, dtype=np.int64),
    )


def is_as_indexed(log: bytes) -> bool:
    try:
        found = read(log)
    except ArchiveError:
        return False
    pairs = ((found.position, INDEXED.position), (found.base_offset, INDEXED.base_offset))
    return all(np.array_equal(*pair) for pair in (*pairs, (found.last_offset, INDEXED.last_offset)))


def test_sound_batches_are_sound_and_those_of_another_index_are_not() -> None:
    assert are_sound(LOG)
    assert not are_sound(LOG, INDEXED.slice(0, len(INDEXED) - 1)), "bytes after the last batch"
    assert not are_sound(LOG, INDEXED.slice(1, len(INDEXED))), "a batch before the first one"
    assert not are_sound(LOG[:-1])
    assert not are_sound(LOG, max_batch_bytes=max(len(build_batch(each)) for each in BATCHES) - 1)


def test_a_batch_has_the_expected_leader_epoch_or_none() -> None:
    assert are_sound(LOG, leader_epoch=0)
    assert not are_sound(LOG, leader_epoch=1)
    without = bytearray(LOG)
    without[12:16] = b"\xff" * 4
    assert are_sound(bytes(without), leader_epoch=0)


@pytest.mark.parametrize("at", range(len(BATCHES)))
@pytest.mark.parametrize("field", ["position", "base_offset", "last_offset"])
def test_each_place_in_the_index_must_be_that_of_the_batch(field: str, at: int) -> None:
    others = {name: getattr(INDEXED, name).copy() for name in BatchHeaders.__slots__}
    others[field][at] += 1
    assert not are_sound(LOG, BatchHeaders(**others))


@given(st.integers(0, len(LOG) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed_wherever_reading_the_headers_notices_it(at: int, mask: int) -> None:
    damaged = bytearray(LOG)
    damaged[at] ^= mask
    assert are_sound(bytes(damaged)) is is_as_indexed(bytes(damaged))


def test_every_changed_byte_of_a_header_is_noticed_as_in_reading() -> None:
    chance, start = random.Random(5), len(build_batch(BATCHES[0]))
    outcomes = []
    for at in range(start, start + 61):
        damaged = bytearray(LOG)
        damaged[at] ^= chance.randrange(1, 256)
        outcomes.append(are_sound(bytes(damaged)))
        assert outcomes[-1] is is_as_indexed(bytes(damaged)), at
    assert outcomes.count(True) == 4, "nothing protects the leader epoch"
