"""Test the headers of a window's batches: however many they are, and when a batch is of another format."""

from __future__ import annotations

import numpy as np
import pytest

from builders.segment_builder import Batch, Record, build_batch, build_batch_around, build_segment
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_batch import BatchHeaders, read_batch_headers
from coldlog.index.aborted_transactions import AbortedTransactions

LENGTH, MAGIC = slice(8, 12), 16


def read(log: bytes) -> BatchHeaders:
    return read_batch_headers(memoryview(log), position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 20).headers


def test_headers_of_thousands_of_batches_are_read_at_once() -> None:
    count = 9_000
    empty = [
        build_batch_around(Batch(base_offset=at, last_offset_delta=0), b"", records_count=0) for at in range(count)
    ]
    headers = read(b"".join(empty))
    assert headers.base_offset.tolist() == headers.last_offset.tolist() == list(range(count))
    assert headers.position.tolist() == list(range(0, 61 * count, 61))


@pytest.mark.parametrize("magic", [3, 127, -1, -128])
def test_magic_that_does_not_exist_is_refused_as_such(magic: int) -> None:
    log = bytearray(build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1),))))
    log[MAGIC] = magic % 256
    with pytest.raises(ArchiveError, match="batch has a magic that does not exist") as refused:
        read(bytes(log))
    assert (refused.value.reason, refused.value.found) == (Reason.UNSUPPORTED_MAGIC, f"magic {magic}")


@pytest.mark.parametrize("magic", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [-1, 0, 13, 1 << 20])
def test_impossible_length_is_refused_before_the_magic(magic: int, length: int) -> None:
    log = bytearray(build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1),))))
    log[LENGTH], log[MAGIC] = length.to_bytes(4, "big", signed=True), magic
    with pytest.raises(ArchiveError, match="batch has an impossible length") as refused:
        read(bytes(log))
    assert (refused.value.reason, refused.value.found) == (Reason.BATCH_LENGTH_INVALID, str(length))


def test_log_without_transactional_batches_has_no_transactions() -> None:
    plain = [Batch(base_offset=at, records=(Record(timestamp_ms=1),), producer_id=4) for at in range(3)]
    nothing = np.empty(0, dtype=np.int64)
    found = AbortedTransactions()
    found.add(read(build_segment(plain)), nothing)
    assert not found.has_batches
    assert found.may_begin_before == frozenset()
    found.add(
        read(build_segment([Batch(base_offset=3, records=(Record(timestamp_ms=1),), is_transactional=True)])), nothing
    )
    assert found.has_batches
