"""The records of all batches are provided once and in order, however few fit into the scratch buffer."""

from __future__ import annotations

import random

import numpy as np
import pytest

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, build_segment
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 16)


def batches_of(codecs: list[Codec]) -> list[Batch]:
    """Batches of one record, whose sizes differ and which compress well or not at all."""
    values = random.Random(3)
    return [
        Batch(
            base_offset=at,
            codec=codec,
            records=(
                Record(
                    timestamp_ms=at,
                    value=values.randbytes(values.randrange(400)) if at % 3 else b"%d" % at * values.randrange(3_000),
                ),
            ),
        )
        for at, codec in enumerate(codecs)
    ]


def sections_of(log: bytes, scratch_bytes: int) -> tuple[list[bytes], int]:
    """The records of each batch, and in how many groups they were provided."""
    headers = read_batch_headers(
        memoryview(log), position=0, next_offset=0, is_last=True, max_batch_bytes=LIMITS.max_batch_bytes
    ).headers
    reader = SectionReader(limits=LIMITS, scratch=np.empty(scratch_bytes, dtype=np.uint8))
    found: list[bytes] = []
    groups = 0
    for group in reader.iter_sections(memoryview(log), headers, 0):
        assert group.first == len(found)
        groups += 1
        found += [group.buffer[begin:end].tobytes() for begin, end in zip(group.starts, group.ends, strict=True)]
    return found, groups


@pytest.mark.parametrize("scratch_bytes", [64, 2_000, 20_000, 1 << 20])
@pytest.mark.parametrize("codecs", [[Codec.LZ4], [Codec.LZ4, Codec.LZ4, Codec.ZSTD], list(Codec)])
def test_records_are_those_of_the_same_batches_without_compression(codecs: list[Codec], scratch_bytes: int) -> None:
    mixed = batches_of([*codecs * 40, *[Codec.LZ4] * 40])
    plain = batches_of([Codec.NONE] * len(mixed))
    found, groups = sections_of(build_segment(mixed), scratch_bytes)
    expected, _ = sections_of(build_segment(plain), scratch_bytes)
    assert found == expected
    assert groups > 1 or scratch_bytes == 1 << 20
