"""generated_logs: which archive are the benchmarks run on?

One topic a codec, as LocalTieredStorage lays it out, with all side files. Two kinds of records, in batches of 16-64 KB
as they lie in the log (a producer's batch.size is about compressed bytes): a shop's orders, a key and a JSON value of
0.5-1.5 KB that zstd makes 3-5 times smaller, and its clicks, a key and a JSON value of 100-180 bytes. Four producers
take turns batch by batch, each with a clock of its own: a few milliseconds pass from order to order, and some clicks
come in each millisecond; batches of two producers overlap in time, and one record in ten is late.

A template of distinct batches is written by the tests' builder and then repeated: base offsets and timestamps move on,
the checksum is computed anew (the base offset lies outside it, the timestamps inside). Finished archives are kept in
build/bench, named by everything that went into them.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from crc32c import crc32c

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, build_batch, uuid_text_of
from builders.side_files import ProducerStates, build_indexes, build_leader_epoch_checkpoint, build_snapshot

CACHE = Path(__file__).resolve().parents[2] / "build" / "bench"
FIRST_TIMESTAMP_MS = 1_767_607_200_000
MIB = 1 << 20
_PRODUCERS = 4
_STORED_BYTES = (16 << 10, 64 << 10)
_STAIRS_A_BATCH, _STAIR_MS = 2_000, 8
_CITIES = ("Amsterdam", "Berlin", "Copenhagen", "Dublin", "Edinburgh", "Florence", "Geneva", "Helsinki", "Istanbul")


class RecordKind(StrEnum):
    """What the records are like; of `STAIRS` each has a few bytes and a later timestamp than the one before."""

    ORDERS = "orders"
    CLICKS = "clicks"
    STAIRS = "stairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShape:
    """Everything that decides the bytes of an archive.

    `log_bytes` are shared evenly by the codecs, and by the partitions of each codec's topic.
    """

    log_bytes: int
    codecs: tuple[Codec, ...] = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
    segment_bytes: int = 256 * MIB
    template_bytes: int = 64 * MIB
    partition_count: int = 2
    records: RecordKind = RecordKind.ORDERS

    @property
    def name(self) -> str:
        """A directory name for it."""
        sizes = f"{self.log_bytes // MIB}m-{self.segment_bytes // MIB}m-{self.template_bytes // MIB}m"
        return f"{self.records}-{_STORED_BYTES[0] >> 10}-{_STORED_BYTES[1] >> 10}k-{sizes}-{self.partition_count}p"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedArchive:
    """A finished archive and its logs in the order of their names."""

    shape: LogShape
    directory: Path

    def list_logs(self, codec: Codec | None = None) -> list[Path]:
        """The `.log` files, of one codec or all."""
        pattern = "*" if codec is None else f"{topic_of(codec)}-*"
        return sorted((self.directory / ARCHIVE_FOLDER).glob(f"{pattern}/*.log"))

    @property
    def log_bytes(self) -> int:
        """The bytes of the logs alone."""
        return sum(log.stat().st_size for log in self.list_logs())


def topic_of(codec: Codec) -> str:
    """The topic whose batches have this codec."""
    return f"bench-{codec.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Batches to repeat: their bytes, their models without records, and how far offsets and time go in them."""

    raw_batches: list[bytes]
    headers: list[Batch]
    offset_span: int
    time_span_ms: int


def get_archive(shape: LogShape) -> GeneratedArchive:
    """The archive of this shape, generated if the cache does not hold it."""
    directory = CACHE / shape.name
    if not directory.exists():
        partial = directory.with_name(directory.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        for codec in shape.codecs:
            template = write_template(shape, codec)
            for partition in range(shape.partition_count):
                folder = partial / ARCHIVE_FOLDER / TopicPartition(topic=topic_of(codec), partition=partition).folder
                folder.mkdir(parents=True)
                _write_partition(folder, shape, template)
        partial.rename(directory)
    return GeneratedArchive(shape=shape, directory=directory)


def write_template(shape: LogShape, codec: Codec) -> Template:
    """Distinct batches of `template_bytes` in all, the same every time."""
    randomness = random.Random(17)
    clocks = [FIRST_TIMESTAMP_MS + producer for producer in range(_PRODUCERS)]
    raw_batches, headers = list[bytes](), list[Batch]()
    offset, written_bytes, number, ratio = 0, 0, 0, 1.0
    while written_bytes < shape.template_bytes:
        if shape.records is RecordKind.STAIRS:
            batch = _tiny_batch(offset)
        else:
            batch = _shop_batch(shape.records, randomness, clocks, number, offset, ratio)
        batch = replace(batch, codec=codec)
        raw_batches.append(build_batch(batch))
        headers.append(_without_records(batch))
        written_bytes += len(raw_batches[-1])
        ratio = max(1.0, sum(len(record.value or b"") for record in batch.records) / len(raw_batches[-1]))
        offset, number = batch.last_offset + 1, number + 1
    last_ms = max(header.max_timestamp_ms for header in headers)
    time_span_ms = offset * _STAIR_MS if shape.records is RecordKind.STAIRS else last_ms - FIRST_TIMESTAMP_MS + 1
    return Template(raw_batches=raw_batches, headers=headers, offset_span=offset, time_span_ms=time_span_ms)


def _without_records(batch: Batch) -> Batch:
    return replace(
        batch,
        records=(),
        last_offset_delta=batch.last_offset - batch.base_offset,
        stored_max_timestamp_ms=batch.max_timestamp_ms,
        delete_horizon_ms=batch.base_timestamp_ms,  # keeps the base timestamp, which moves on with the others
    )


def _shop_batch(
    kind: RecordKind, randomness: random.Random, clocks: list[int], number: int, offset: int, ratio: float
) -> Batch:
    """`ratio`: how many times smaller the batch before became."""
    producer = number % _PRODUCERS
    records, value_bytes, wanted_bytes = list[Record](), 0, randomness.randrange(*_STORED_BYTES) * ratio
    while value_bytes < wanted_bytes:
        late_ms = randomness.randrange(1, 500) if randomness.random() < 0.1 else 0
        if kind is RecordKind.ORDERS:
            clocks[producer] += randomness.randrange(1, 8 * _PRODUCERS)
            value = order_json(randomness, offset + len(records), clocks[producer])
        else:
            clocks[producer] += randomness.random() < 0.1 * _PRODUCERS
            value = click_json(randomness, clocks[producer])
        key = b"customer-%d" % randomness.randrange(200_000)
        records.append(Record(timestamp_ms=clocks[producer] - late_ms, key=key, value=value))
        value_bytes += len(value)
    return Batch(
        base_offset=offset,
        records=tuple(records),
        producer_id=1_000 + producer,
        producer_epoch=0,
        base_sequence=offset % (1 << 31),
    )


def _tiny_batch(offset: int) -> Batch:
    offsets = range(offset, offset + _STAIRS_A_BATCH)
    return Batch(base_offset=offset, records=tuple(Record(timestamp_ms=stair_timestamp_ms(each)) for each in offsets))


def stair_timestamp_ms(offset: int) -> int:
    """The timestamp of a tiny record: always later than the one before, by steps that look like chance."""
    return FIRST_TIMESTAMP_MS + offset * _STAIR_MS + (offset % _STAIRS_A_BATCH * 2_654_435_761 >> 7) % _STAIR_MS


def stair_offset_at_or_after(timestamp_ms: int) -> int:
    """The offset that a lookup in tiny records must find."""
    offset = (timestamp_ms - FIRST_TIMESTAMP_MS) // _STAIR_MS
    return offset if stair_timestamp_ms(offset) >= timestamp_ms else offset + 1


_WORDS = ["".join(random.Random(word).choices("abcdefghijklmnopqrstuvwxyz", k=3 + word % 8)) for word in range(2_000)]


def order_json(randomness: random.Random, number: int, timestamp_ms: int) -> bytes:
    """One order of 0.5-1.5 KB: fixed field names, some numbers, a signature that nothing compresses, some text."""
    items = ",".join(
        f'{{"sku":"SKU-{randomness.randrange(50_000):05d}","quantity":{randomness.randrange(1, 10)},"currency":"EUR",'
        f'"price":{randomness.randrange(100, 99_999) / 100},"warehouse":"{randomness.choice(_CITIES)}"}}'
        for _ in range(randomness.randrange(2, 9))
    )
    note = " ".join(randomness.choices(_WORDS, k=randomness.randrange(10, 50)))
    return (
        f'{{"order_id":{1_000_000_000 + number},"customer_id":{randomness.randrange(200_000)},'
        f'"created_at_ms":{timestamp_ms},"city":"{randomness.choice(_CITIES)}",'
        f'"status":"{randomness.choice(("placed", "paid", "packed", "sent"))}",'
        f'"signature":"{randomness.getrandbits(128):032x}","items":[{items}],"note":"{note}"}}'
    ).encode()


def click_json(randomness: random.Random, timestamp_ms: int) -> bytes:
    """One click of 100-180 bytes."""
    page = "/".join(randomness.choices(_WORDS, k=randomness.randrange(1, 4)))
    return (
        f'{{"session":"{randomness.getrandbits(64):016x}","at_ms":{timestamp_ms},"page":"/{page}",'
        f'"city":"{randomness.choice(_CITIES)}","button":{randomness.randrange(20)}}}'
    ).encode()


def _write_partition(folder: Path, shape: LogShape, template: Template) -> None:
    states, wanted_bytes = ProducerStates(), shape.log_bytes // shape.partition_count // len(shape.codecs)
    written_bytes, headers, sizes, log = 0, list[Batch](), list[int](), bytearray()
    for header, raw in _repeat(template):
        states.add(header)
        headers.append(header)
        sizes.append(len(raw))
        log += raw
        if len(log) >= min(shape.segment_bytes, wanted_bytes - written_bytes):
            _write_segment(folder, headers, sizes, log, states)
            written_bytes += len(log)
            headers, sizes, log = [], [], bytearray()
            if written_bytes >= wanted_bytes:
                return


def _repeat(template: Template) -> Iterator[tuple[Batch, bytes]]:
    repetition = 0
    while True:
        offset_shift, time_shift = repetition * template.offset_span, repetition * template.time_span_ms
        for header, raw in zip(template.headers, template.raw_batches, strict=True):
            base_ms, max_ms = header.base_timestamp_ms + time_shift, header.max_timestamp_ms + time_shift
            moved = bytearray(raw)
            struct.pack_into(">q", moved, 0, header.base_offset + offset_shift)
            struct.pack_into(">qq", moved, 27, base_ms, max_ms)
            struct.pack_into(">I", moved, 17, crc32c(memoryview(moved)[21:]))
            yield (
                replace(
                    header,
                    base_offset=header.base_offset + offset_shift,
                    delete_horizon_ms=base_ms,
                    stored_max_timestamp_ms=max_ms,
                ),
                bytes(moved),
            )
        repetition += 1


def _write_segment(
    folder: Path, headers: list[Batch], sizes: list[int], log: bytearray, states: ProducerStates
) -> None:
    start_offset = headers[0].base_offset
    stem = f"{start_offset:020d}-{uuid_text_of(f'{folder.name}/{start_offset}')}"
    offset_index, time_index = build_indexes(Segment(batches=tuple(headers)), sizes)
    files: dict[str, bytes | bytearray] = {
        "log": log,
        "index": offset_index,
        "timeindex": time_index,
        "snapshot": build_snapshot(states),
        "leader_epoch_checkpoint": build_leader_epoch_checkpoint([(0, 0)]),
    }
    for suffix, content in files.items():
        (folder / f"{stem}.{suffix}").write_bytes(content)
