"""Test that written batches equal those of the independent builder and can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.segment_builder import Batch, Record, build_batch
from coldlog.errors import UsageError
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.formats.kafka.record_batch_writer import write_record_batch
from coldlog.formats.kafka.records import iter_records
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
VALUES = st.lists(st.one_of(st.binary(max_size=5), st.binary(min_size=60, max_size=200)), min_size=1, max_size=140)


@given(values=VALUES, base=st.integers(0, 1 << 62), timestamp_ms=st.integers(-1, 1 << 50), epoch=st.integers(0, 9))
def test_batch_is_as_kafka_writes_it(values: list[bytes], base: int, timestamp_ms: int, epoch: int) -> None:
    written = write_record_batch(values, base_offset=base, timestamp_ms=timestamp_ms, leader_epoch=epoch)
    records = tuple(Record(timestamp_ms=timestamp_ms, value=value) for value in values)
    assert written == build_batch(Batch(base_offset=base, records=records, leader_epoch=epoch))


def test_batch_is_read_back() -> None:
    written = memoryview(write_record_batch([b"a", b"", b"c" * 300], base_offset=7, timestamp_ms=1_000))
    read = read_batch_headers(written, position=0, next_offset=7, is_last=True, max_batch_bytes=1 << 20)
    records = list(iter_records(written, read.headers, 0, SectionReader(limits=LIMITS)))
    assert [(each.offset, each.timestamp_ms, each.key, each.value) for each in records] == [
        (7, 1_000, None, b"a"),
        (8, 1_000, None, b""),
        (9, 1_000, None, b"c" * 300),
    ]


@pytest.mark.parametrize(("values", "base"), [([], 0), ([b""], -1)])
def test_impossible_batch_is_not_written(values: list[bytes], base: int) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_record_batch(values, base_offset=base, timestamp_ms=0)
