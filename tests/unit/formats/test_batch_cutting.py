"""Test that a batch that is cut is the batch without its last records."""

from __future__ import annotations

import pytest

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, build_batch
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.batch_cutting import cut_record_batch
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.formats.limits import DecodeLimits

_LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
_POSITION = 1000
_RECORDS = tuple(
    Record(timestamp_ms=5_000 + at, key=b"k" * at, value=b"v" * 90 * at, headers=((b"h", None),), offset=40 + 2 * at)
    for at in range(6)
)
"""Offsets 40, 42 to 50."""


def _batch(records: tuple[Record, ...], codec: Codec, last_offset_delta: int | None = None) -> bytes:
    return build_batch(
        Batch(
            base_offset=40,
            records=records,
            codec=codec,
            leader_epoch=3,
            is_transactional=True,
            producer_id=9,
            producer_epoch=2,
            base_sequence=7,
            last_offset_delta=last_offset_delta,
            stored_max_timestamp_ms=5_005,
        )
    )


def _cut(written: bytes, last_offset: int) -> bytes:
    # Bytes before and after it, as in a window of a log.
    window = memoryview(b"\0" * 10 + written)
    headers = read_batch_headers(
        window[10:], position=_POSITION + 10, next_offset=40, is_last=True, max_batch_bytes=1 << 20
    ).headers
    return cut_record_batch(window, headers, _POSITION, last_offset, _LIMITS)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(("last_offset", "count"), [(44, 3), (45, 3), (46, 4), (39 + 1, 1)])
def test_the_records_up_to_an_offset_stay_byte_for_byte(codec: Codec, last_offset: int, count: int) -> None:
    expected = _batch(_RECORDS[:count], Codec.NONE, last_offset - 40)
    assert _cut(_batch(_RECORDS, codec), last_offset) == expected


def test_a_record_that_extends_beyond_its_batch_is_damage() -> None:
    written = bytearray(_batch(_RECORDS[:1], Codec.NONE))
    headers = read_batch_headers(
        memoryview(bytes(written)), position=0, next_offset=40, is_last=True, max_batch_bytes=1 << 20
    ).headers
    written[61] = 0x7E  # the length of the first record
    with pytest.raises(ArchiveError) as raised:
        cut_record_batch(memoryview(bytes(written)), headers, 0, 40, _LIMITS)
    assert raised.value.reason is Reason.RECORDS_INVALID
