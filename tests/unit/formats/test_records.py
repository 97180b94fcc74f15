"""Test that records are decoded as a real consumer read them and as a builder wrote them."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Segment, build_batch_around, build_segment, varint
from builders.segment_builder import Record as WrittenRecord
from builders.strategies import partitions
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.record_batch import read_batch_headers
from coldlog.formats.kafka.records import Record, iter_records
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from drawn_examples import is_sampled, sampled
from worlds.kafka_sample import KAFKA_SAMPLE, TIERED_STORAGE, true_segments

LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)


def read(log: bytes) -> list[Record]:
    window = memoryview(log)
    found = read_batch_headers(window, position=0, next_offset=0, is_last=True, max_batch_bytes=1 << 26)
    return list(iter_records(window, found.headers, 0, SectionReader(limits=LIMITS)))


def test_every_record_is_decoded_as_a_consumer_read_it() -> None:
    decoded: dict[tuple[str, int], dict[int, Record]] = {}
    segments = list(true_segments("COPY_SEGMENT_FINISHED"))
    chosen = set(sampled(sorted({(segment["topic"], segment["partition"]) for segment in segments})))
    for segment in segments:
        if (segment["topic"], segment["partition"]) not in chosen:
            continue
        log = (TIERED_STORAGE / f"{segment['path']}.log").read_bytes()
        records = decoded.setdefault((segment["topic"], segment["partition"]), {})
        records.update({record.offset: record for record in read(log)})
    compared = 0
    for path in sorted((KAFKA_SAMPLE / "truth" / "records").glob("*.jsonl.gz")):
        topic, _, partition = path.name.removesuffix(".jsonl.gz").rpartition("-")
        if (topic, int(partition)) not in chosen:
            continue
        for line in gzip.decompress(path.read_bytes()).splitlines():
            truth = json.loads(line)
            if truth["arch"]:
                record = decoded[topic, int(partition)][truth["o"]]
                expected = {name: truth.get(name) for name in ("o", "ts", "tt", "le", "k", "v")} | {
                    "h": truth.get("h", [])
                }
                assert _as_truth(record, truth) == expected
                compared += 1
    assert compared > (5_000 if is_sampled() else 70_000)


def _as_truth(record: Record, truth: dict[str, object]) -> dict[str, object]:
    return {
        "o": record.offset,
        "ts": record.timestamp_ms,
        "tt": "LogAppendTime" if record.is_log_append_time else "CreateTime",
        "le": record.leader_epoch,
        "k": _bytes_as_truth(record.key, is_text=not isinstance(truth["k"], dict)),
        "v": _bytes_as_truth(record.value, is_text=False),
        "h": [
            [name.decode(), None if value is None else base64.b64encode(value).decode()]
            for name, value in record.headers
        ],
    }


def _bytes_as_truth(value: bytes | None, *, is_text: bool) -> object:
    if value is None:
        return None
    return base64.b64encode(value).decode() if is_text else {"len": len(value), "crc32": zlib.crc32(value)}


@given(partitions())
def test_built_records_are_decoded(segments: list[Segment]) -> None:
    for segment in segments:
        found = [
            (each.offset, each.timestamp_ms, each.leader_epoch, each.key, each.value, each.headers)
            for each in read(build_segment(segment.batches))
            if not each.is_control
        ]
        control = {record.offset for batch in segment.batches if batch.is_control for record in batch.placed_records}
        assert found == [
            (each.offset, each.timestamp_ms, each.leader_epoch, each.key, each.value, tuple(each.headers))
            for each in segment.placed_records
            if each.offset not in control
        ]


@pytest.mark.parametrize("codec", list(Codec))
def test_concurrent_threads_decode_correct_records(codec: Codec) -> None:
    logs = [_log_of_large_batches(codec, seed) for seed in range(4)]
    alone = [read(log) for log in logs]
    with ThreadPoolExecutor(len(logs)) as threads:
        for _ in range(20):
            assert list(threads.map(read, logs)) == alone


def _log_of_large_batches(codec: Codec, seed: int) -> bytes:
    draw = random.Random(seed)
    return build_segment(
        Batch(
            base_offset=base_offset,
            codec=codec,
            records=tuple(
                WrittenRecord(timestamp_ms=each, value=draw.randbytes(8_192).hex().encode()) for each in range(8)
            ),
        )
        for base_offset in range(0, 64, 8)
    )


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY_XERIAL, Codec.LZ4, Codec.ZSTD])
def test_batches_of_megabytes_are_decompressed(codec: Codec) -> None:
    values = [bytes([at]) * size for at, size in enumerate((5, 3_000_000, 5_000_000, 7))]
    log = build_segment(
        Batch(base_offset=at, codec=codec, records=(WrittenRecord(timestamp_ms=1, value=value),))
        for at, value in enumerate(values)
    )
    assert [each.value for each in read(log)] == values


def test_record_that_is_longer_than_its_batch_is_refused() -> None:
    body = b"\x00" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(0)
    log = build_batch_around(Batch(base_offset=0, last_offset_delta=0), varint(len(body) + 1) + body, records_count=1)
    with pytest.raises(ArchiveError, match="record extends beyond its batch"):
        read(log)


def test_key_that_is_longer_than_its_record_is_refused_as_such() -> None:
    body = b"\x00" + varint(0) + varint(0) + varint(9) + b"abc" + varint(-1) + varint(0)
    log = build_batch_around(Batch(base_offset=0, last_offset_delta=0), varint(len(body)) + body, records_count=1)
    with pytest.raises(ArchiveError, match="key, value or header extends beyond its record"):
        read(log)


@pytest.mark.parametrize(
    "fields",
    [
        varint(50) + b"abc" + varint(-1) + varint(0),
        varint(-1) + varint(50) + b"abc" + varint(0),
        varint(-1) + varint(-1) + varint(1),
        varint(-1) + varint(-1) + varint(-1),
        varint(-1) + varint(-1) + varint(1) + varint(-1) + varint(-1),
        varint(-1) + varint(-1) + varint(0) + b"rest",
        varint(-1) + varint(-1) + varint(2**31 - 1) + bytes(9),
    ],
)
def test_fields_beyond_their_record_are_refused(fields: bytes) -> None:
    body = b"\x00" + varint(0) + varint(0) + fields
    log = build_batch_around(Batch(base_offset=0, last_offset_delta=0), varint(len(body)) + body, records_count=1)
    with pytest.raises(ArchiveError) as caught:
        read(log)
    assert caught.value.reason is Reason.RECORDS_INVALID
    assert caught.value.position == 0
