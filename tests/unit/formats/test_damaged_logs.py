"""Test that any bytes of a log parse or raise ArchiveError, in bounded time and memory."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import cramjam
import lz4.frame
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from builders.message_sets import Magic, build_compressed_message_set, build_message_set
from builders.payload_codecs import XERIAL_HEAD, Codec, compress
from builders.segment_builder import Batch, Record, build_batch, build_batch_around, build_segment, varint
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.compression import decompress_into
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.index.segment_index import SegmentIndexer
from coldlog.index.segment_summary import SegmentSummary
from coldlog.model.states import IndexDepth

LIMITS = DecodeLimits(max_batch_bytes=1 << 22, max_decompressed_bytes=1 << 22)


def read(log: bytes, depth: IndexDepth = IndexDepth.RECORD) -> SegmentSummary:
    indexer = SegmentIndexer(start_offset=0, depth=depth, counted_from_offset=0, sections=SectionReader(limits=LIMITS))
    indexer.add_window(memoryview(log), 0, is_last=True)
    return indexer.finish()


def read_or_refusal(log: bytes, depth: IndexDepth = IndexDepth.RECORD) -> SegmentSummary | ArchiveError:
    """The summary, or the ArchiveError; any other error fails the test."""
    try:
        return read(log, depth)
    except ArchiveError as refused:
        return refused


def _segment() -> list[Batch]:
    """A batch of each codec, and markers."""
    batches = []
    for number, codec in enumerate(Codec):
        records = tuple(Record(timestamp_ms=1000 + number * 10 + i, key=b"k", value=b"value" * 5) for i in range(3))
        batches.append(Batch(base_offset=number * 3, records=records, codec=codec, leader_epoch=2))
    return batches


LOG = build_segment(_segment())
BORDERS = [0]
for one in _segment():
    BORDERS.append(BORDERS[-1] + len(build_batch(one)))


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_every_flipped_byte_is_found_or_outside_the_checksum(depth: IndexDepth) -> None:
    whole = read(LOG, depth)
    found = 0
    for at in range(len(LOG)):
        damaged = bytearray(LOG)
        damaged[at] ^= 0x40
        begin = max(border for border in BORDERS if border <= at)
        outcome = read_or_refusal(bytes(damaged), depth)
        if isinstance(outcome, ArchiveError):
            # A wrong base offset is noticed at this batch or at the next one.
            assert outcome.position in (begin, min((b for b in BORDERS if b > at), default=begin)), at
            found += 1
        else:
            in_batch = at - begin
            assert in_batch < 8 or 12 <= in_batch < 16, "only the base offset and the leader epoch are not protected"
            assert outcome.record_count == whole.record_count
    assert found > 0.9 * len(LOG)


def test_every_truncation_is_refused_unless_it_ends_with_a_batch() -> None:
    for length in range(1, len(LOG)):
        if length in BORDERS:
            assert read(LOG[:length]).batch_count == BORDERS.index(length)
            continue
        with pytest.raises(ArchiveError) as caught:
            read(LOG[:length])
        assert caught.value.reason is Reason.LOG_TRUNCATED
        assert caught.value.position == max(border for border in BORDERS if border < length)


def test_empty_log_is_refused() -> None:
    with pytest.raises(ArchiveError) as caught:
        SegmentIndexer(
            start_offset=0, depth=IndexDepth.BATCH, counted_from_offset=0, sections=SectionReader(limits=LIMITS)
        ).finish()
    assert caught.value.reason is Reason.LOG_EMPTY


@given(st.binary(max_size=400))
def test_any_bytes_parse_or_raise_archive_error(log: bytes) -> None:
    if not log:
        return
    for depth in IndexDepth:
        with pytest.raises(ArchiveError):
            read(log, depth)


@given(codec=st.sampled_from(list(Codec)), payload=st.binary(max_size=300), count=st.integers(0, 2**31 - 1))
def test_any_records_with_a_correct_checksum_parse_or_raise_archive_error(
    codec: Codec, payload: bytes, count: int
) -> None:
    batch = Batch(base_offset=5, codec=codec, last_offset_delta=2**31 - 6)
    _parses_or_refuses(build_batch_around(batch, payload, records_count=count))


@given(codec=st.sampled_from(list(Codec)), seed=st.integers(0, 2**32), flips=st.integers(1, 4))
def test_damaged_records_with_a_correct_checksum_parse_or_raise_archive_error(
    codec: Codec, seed: int, flips: int
) -> None:
    chance = random.Random(seed)
    records = tuple(Record(timestamp_ms=i, value=bytes([i]) * 40) for i in range(5))
    batch = Batch(base_offset=5, records=records, codec=codec)
    payload = bytearray(build_batch(batch)[61:])
    for _ in range(flips):
        payload[chance.randrange(len(payload))] ^= 1 << chance.randrange(8)
    _parses_or_refuses(build_batch_around(batch, bytes(payload)))


def _parses_or_refuses(log: bytes) -> None:
    outcome = read_or_refusal(log)
    if isinstance(outcome, ArchiveError):
        assert outcome.position in (0, -1)
    else:
        assert outcome.batch_count == 1


def _bomb(codec: Codec, size: int) -> bytes:
    zeros = bytes(size)
    if codec is Codec.GZIP:
        return gzip.compress(zeros, mtime=0)
    if codec is Codec.LZ4:
        return bytes(lz4.frame.compress(zeros))
    if codec is Codec.ZSTD:
        return zstandard.ZstdCompressor(write_content_size=False).compress(zeros)
    block = bytes(cramjam.snappy.compress_raw(zeros))
    if codec is Codec.SNAPPY_RAW:
        return block
    return b"\x82SNAPPY\x00" + bytes([0, 0, 0, 1, 0, 0, 0, 1]) + len(block).to_bytes(4, "big") + block


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_decompression_bomb_stops_at_the_limit(codec: Codec) -> None:
    log = build_batch_around(
        Batch(base_offset=0, codec=codec, last_offset_delta=9), _bomb(codec, 60 << 20), records_count=9
    )
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError) as caught:
            read(log)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.reason is Reason.DECOMPRESSION_LIMIT
    assert peak < 8 * LIMITS.max_decompressed_bytes


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (Codec.SNAPPY_RAW, b"\xff\xff\xff\xff\x0f\x00"),
        (Codec.SNAPPY_XERIAL, b"\x82SNAPPY\x00" + bytes(8) + b"\x7f\xff\xff\xff"),
        (Codec.SNAPPY_XERIAL, b"\x82SNAPPY\x00" + bytes(8) + b"\xff\xff\xff\xff"),
        (Codec.SNAPPY_XERIAL, b"\x82SNAPPY\x00" + bytes(3)),
        (Codec.GZIP, gzip.compress(b"x", mtime=0) + b"rubbish"),
        (Codec.GZIP, gzip.compress(b"x" * 100, mtime=0)[:-9]),
        (Codec.LZ4, lz4.frame.compress(b"x" * 100)[:-5]),
        (Codec.ZSTD, zstandard.compress(b"x" * 100)[:-1]),
        (Codec.ZSTD, zstandard.compress(b"x") + b"rubbish"),
    ],
)
def test_damaged_compression_is_refused_with_its_batch(codec: Codec, payload: bytes) -> None:
    good = build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1),)))
    bad = build_batch_around(Batch(base_offset=1, codec=codec, last_offset_delta=0), payload, records_count=1)
    with pytest.raises(ArchiveError) as caught:
        read(good + bad)
    assert caught.value.reason in (Reason.DECOMPRESSION_FAILED, Reason.DECOMPRESSION_LIMIT)
    assert caught.value.position == len(good)


def test_consecutive_gzip_members_and_zstd_frames_are_joined() -> None:
    plain = build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1), Record(timestamp_ms=2))))[61:]
    half = len(plain) // 2
    for codec, squeeze in (
        (Codec.GZIP, gzip.compress),
        (Codec.ZSTD, zstandard.compress),
    ):
        payload = squeeze(plain[:half]) + squeeze(plain[half:])
        log = build_batch_around(Batch(base_offset=0, codec=codec, last_offset_delta=1), payload, records_count=2)
        assert read(log).record_count == 2


def test_empty_blocks_of_snappy_are_skipped() -> None:
    plain = build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1), Record(timestamp_ms=2))))[61:]
    whole = compress(Codec.SNAPPY_XERIAL, plain)
    assert whole.startswith(XERIAL_HEAD)
    empty = b"\x00\x00\x00\x01\x00"
    payload = XERIAL_HEAD + empty + whole[len(XERIAL_HEAD) :] + empty
    log = build_batch_around(
        Batch(base_offset=0, codec=Codec.SNAPPY_XERIAL, last_offset_delta=1), payload, records_count=2
    )
    assert read(log).record_count == 2


def test_lz4_frame_ends_at_its_end_mark() -> None:
    plain = build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1), Record(timestamp_ms=2))))[61:]
    batch = Batch(base_offset=0, codec=Codec.LZ4, last_offset_delta=1)
    whole, half = lz4.frame.compress(plain), len(plain) // 2
    for follows in (b"", b"anything", whole):
        assert read(build_batch_around(batch, whole + follows, records_count=2)).record_count == 2
    two = lz4.frame.compress(plain[:half]) + lz4.frame.compress(plain[half:])
    with pytest.raises(ArchiveError):
        read(build_batch_around(batch, two, records_count=2))


@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_old_brokers_are_refused_by_name(magic: Magic) -> None:
    with pytest.raises(ArchiveError) as caught:
        read(build_message_set(magic, 0, [Record(timestamp_ms=1, value=b"x" * 80)]))
    assert caught.value.reason is Reason.UNSUPPORTED_MAGIC
    assert caught.value.found == f"magic {magic}"


@pytest.mark.parametrize("depth", list(IndexDepth))
@pytest.mark.parametrize("codec", [None, Codec.GZIP, Codec.SNAPPY_XERIAL, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_old_brokers_are_refused_at_their_position(
    magic: Magic, codec: Codec | None, depth: IndexDepth
) -> None:
    """Alone, and after batches of a broker that was upgraded and then downgraded; a wrapper like its messages."""
    records = [Record(timestamp_ms=time, key=b"k", value=b"x" * 30) for time in range(3)]
    for before in ([], _segment()):
        good = build_segment(before)
        offset = before[-1].last_offset + 1 if before else 0
        if codec is None:
            old = build_message_set(magic, offset, records)
        else:
            old = build_compressed_message_set(magic, offset, records, codec)
        for after in (b"", LOG):
            with pytest.raises(ArchiveError) as caught:
                read(good + old + after, depth)
            assert caught.value.reason is Reason.UNSUPPORTED_MAGIC
            assert caught.value.message == (
                "messages of format v0 or v1 (brokers before 0.11) are not supported; to have their records, copy them "
                "to another topic with a Kafka consumer"
            )
            assert caught.value.position == len(good)
            assert (caught.value.expected, caught.value.found) == ("magic 2", f"magic {magic}")


@pytest.mark.parametrize(
    ("batch", "records_count", "expected", "found"),
    [
        (Batch(base_offset=-7, last_offset_delta=9), 0, "at least 0", "-7"),
        (Batch(base_offset=9, last_offset_delta=-2), 0, "at least 9", "7"),
        (Batch(base_offset=9, last_offset_delta=3), -1, "at least 0", "-1"),
        (Batch(base_offset=9, last_offset_delta=3), 5, "at most 4", "5"),
        (Batch(base_offset=4, last_offset_delta=3), 0, "at least 5", "4"),
        (
            Batch(base_offset=9, last_offset_delta=3, leader_epoch=-2),
            0,
            "epochs from -1 on that never decrease",
            "epoch -2",
        ),
        (Batch(base_offset=9, last_offset_delta=2**31 - 9), 0, f"at most {2**31 - 1}", f"{2**31}"),
    ],
)
@pytest.mark.parametrize("depth", list(IndexDepth))
def test_impossible_fields_are_reported_with_their_bounds(
    batch: Batch, records_count: int, expected: str, found: str, depth: IndexDepth
) -> None:
    """The checksum is correct: it does not cover all fields, and a broker may write wrong ones."""
    good = build_batch(Batch(base_offset=0, last_offset_delta=4, leader_epoch=-1))
    later = build_batch(Batch(base_offset=20, last_offset_delta=4))
    own, rest = (b"", later) if batch.leader_epoch < -1 else (good, b"")
    with pytest.raises(ArchiveError) as caught:
        read(own + build_batch_around(batch, b"", records_count=records_count) + rest, depth)
    assert caught.value.position == len(own)
    assert (caught.value.expected, caught.value.found) == (expected, found)


@pytest.mark.parametrize("codec", [5, 6, 7])
@pytest.mark.parametrize("depth", list(IndexDepth))
def test_unknown_codec_is_refused_at_both_depths(codec: int, depth: IndexDepth) -> None:
    log = bytearray(build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1),))))
    log[22] |= codec
    log[17:21] = crc32c(log[21:]).to_bytes(4, "big")
    with pytest.raises(ArchiveError) as caught:
        read(bytes(log), depth)
    assert caught.value.position == 0


def test_batch_has_at_most_as_many_bytes_as_the_limit() -> None:
    def read_within(max_batch_bytes: int) -> SegmentSummary:
        limits = DecodeLimits(max_batch_bytes=max_batch_bytes, max_decompressed_bytes=1 << 22)
        indexer = SegmentIndexer(
            start_offset=0, depth=IndexDepth.RECORD, counted_from_offset=0, sections=SectionReader(limits=limits)
        )
        indexer.add_window(memoryview(log), 0, is_last=True)
        return indexer.finish()

    log = build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1, value=b"v" * 500),)))
    assert read_within(len(log)).last_offset == 0
    with pytest.raises(ArchiveError) as caught:
        read_within(len(log) - 1)
    assert caught.value.reason is Reason.BATCH_LENGTH_INVALID


@pytest.mark.parametrize("length", [-1, 0, 13, 48, 2**31 - 1])
def test_wrong_lengths_never_lead_outside_the_buffer(length: int) -> None:
    log = bytearray(LOG)
    log[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(ArchiveError) as caught:
        read(bytes(log))
    assert caught.value.reason in (Reason.BATCH_LENGTH_INVALID, Reason.LOG_TRUNCATED)
    assert caught.value.position == 0


RECORD = build_batch(Batch(base_offset=0, records=(Record(timestamp_ms=1),)))[61:]
ENDLESS = b"\xff" * 11
CUT, REST = "record extends beyond its batch", "batch has bytes after its last record"
SHORT = "batch is too short for its records"
NO_END, NOT_ASCENDING = "record has a number that does not end", "record offset does not ascend or is outside its batch"


@pytest.mark.parametrize(
    ("payload", "count", "message"),
    [
        (RECORD, 2, SHORT),
        (RECORD + RECORD, 1, REST),
        (RECORD, 2**31 - 1, SHORT),
        (varint(7) + RECORD[1:], 1, CUT),
        (varint(20) + b"\0" + ENDLESS + bytes(9), 1, NO_END),
        (varint(20) + b"\0\0" + ENDLESS + bytes(9), 1, NO_END),
        (varint(-1) + RECORD, 1, CUT),
        (ENDLESS, 1, CUT),
        (RECORD + RECORD, 2, NOT_ASCENDING),
    ],
)
def test_impossible_counts_and_numbers_are_refused(payload: bytes, count: int, message: str) -> None:
    log = build_batch_around(Batch(base_offset=0, last_offset_delta=2**31 - 2), payload, records_count=count)
    with pytest.raises(ArchiveError, match=message) as caught:
        read(log)
    assert (caught.value.reason, caught.value.position) == (Reason.RECORDS_INVALID, 0)


@pytest.mark.parametrize("offsets", [(5, 5), (6, 5), (5, 7, 7), (5, 9)])
def test_record_offsets_that_do_not_ascend_or_are_outside_their_batch_are_refused(offsets: tuple[int, ...]) -> None:
    before, after = (Batch(base_offset=first, records=(Record(timestamp_ms=1),)) for first in (0, 20))
    records = tuple(Record(timestamp_ms=2 + number, offset=offset) for number, offset in enumerate(offsets))
    with pytest.raises(ArchiveError, match="record offset does not ascend or is outside its batch") as caught:
        read(build_segment([before, Batch(base_offset=5, records=records, last_offset_delta=3), after]))
    assert (caught.value.reason, caught.value.position) == (Reason.RECORDS_INVALID, len(build_batch(before)))


def test_offsets_that_descend_or_overflow_are_refused() -> None:
    one = Batch(base_offset=5, records=(Record(timestamp_ms=1),))
    with pytest.raises(ArchiveError) as caught:
        read(build_segment([one, one]))
    assert caught.value.reason is Reason.OFFSETS_NOT_ASCENDING
    with pytest.raises(ArchiveError) as caught:
        read(build_batch_around(Batch(base_offset=2**63 - 1, last_offset_delta=3), b"", records_count=0))
    assert caught.value.reason is Reason.HEADER_INVALID


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_largest_number_as_an_offset_is_refused_wherever_the_windows_end(depth: IndexDepth) -> None:
    """No checksum covers a base offset, and the offset after the largest one would overflow to the smallest."""
    begin, end = BORDERS[1:3]
    damaged = LOG[:begin] + (2**63 - 1 - 2).to_bytes(8, "big") + LOG[begin + 8 :]
    for windows in ([damaged], [damaged[:end], damaged[end:]], [damaged[:begin], damaged[begin:]]):
        with pytest.raises(ArchiveError) as refused:
            _read_windows(windows, depth)
        assert (refused.value.reason, refused.value.position) == (Reason.HEADER_INVALID, begin)


def _read_windows(windows: list[bytes], depth: IndexDepth) -> None:
    indexer = SegmentIndexer(start_offset=0, depth=depth, counted_from_offset=0, sections=SectionReader(limits=LIMITS))
    position = 0
    for window in windows:
        position += indexer.add_window(memoryview(window), position, is_last=False).consumed_bytes


@pytest.mark.timeout(60)
def test_hundreds_of_thousands_of_empty_gzip_members_take_no_longer_than_their_bytes() -> None:
    """If the rest of the input were copied for each member, it would take half a minute."""
    payload = gzip.compress(b"", mtime=0) * 250_000
    batch = Batch(base_offset=0, codec=Codec.GZIP, last_offset_delta=0)
    limits = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 20)
    indexer = SegmentIndexer(
        start_offset=0, depth=IndexDepth.RECORD, counted_from_offset=0, sections=SectionReader(limits=limits)
    )
    indexer.add_window(memoryview(build_batch_around(batch, payload, records_count=0)), 0, is_last=True)
    assert indexer.finish().record_count == 0


@pytest.mark.parametrize(
    ("codec", "head", "part", "found"),
    [
        (Codec.GZIP, b"", gzip.compress(b"", mtime=0), "more than 262144 gzip members"),
        (Codec.SNAPPY_XERIAL, XERIAL_HEAD, bytes(4), "more than 262144 snappy blocks"),
        (Codec.SNAPPY_XERIAL, XERIAL_HEAD, b"\x00\x00\x00\x01\x00", "more than 262144 snappy blocks"),
        (Codec.ZSTD, b"", zstandard.compress(b""), "more than 1048576 zstd frames and blocks"),
        (Codec.ZSTD, b"", b"\x50\x2a\x4d\x18" + bytes(4), "more than 1048576 zstd frames and blocks"),
        (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\x58", bytes(3), "more than 1048576 zstd frames and blocks"),
    ],
)
def test_more_empty_frames_than_any_producer_writes_are_refused(
    codec: Codec, head: bytes, part: bytes, found: str
) -> None:
    most = {Codec.GZIP: 1 << 18, Codec.SNAPPY_XERIAL: 1 << 18}.get(codec, 1 << 20)
    with pytest.raises(ArchiveError) as refused:
        decompress_into(codec.attribute_bits, memoryview(head + part * (most + 1)), memoryview(bytearray(8)))
    assert (refused.value.reason, refused.value.found) == (Reason.DECOMPRESSION_FAILED, found)
