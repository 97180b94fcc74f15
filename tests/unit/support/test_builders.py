"""Test that the builders write what a real broker wrote, byte for byte.

The golden segments are decoded with kafka-python, put into the model, and written again. For compressed batches, the
records before compression and the header around the golden payload are compared, because compressors differ.
"""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, write_archive
from builders.brute_force import FoundOffset, find_first_offset, find_first_offset_as_broker, list_stairs
from builders.golden_batches import decompress, model_of, split_batches
from builders.message_sets import build_compressed_message_set, build_message_set
from builders.payload_codecs import Codec, compress
from builders.segment_builder import (
    BATCH_HEADER_BYTES,
    Batch,
    Record,
    Segment,
    abort_marker,
    build_batch,
    build_batch_around,
    build_records,
    build_segment,
    varint,
)
from builders.side_files import (
    ProducerStates,
    build_indexes,
    build_leader_epoch_checkpoint,
    build_snapshot,
    build_txn_index,
    extend_lineage,
)
from builders.strategies import partitions

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas through a deprecated call of importlib when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords
    from kafka.record.default_records import DefaultRecordBatch

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-sample" / "archive" / ARCHIVE_FOLDER
GOLDEN_LOGS = sorted(GOLDEN.glob("*/*.log"))
ALWAYS_WRITTEN = (".log", ".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint")


def golden_topics() -> list[str]:
    return sorted({log.parent.name[:-23] for log in GOLDEN_LOGS})


@pytest.mark.parametrize("topic", golden_topics())
def test_batches_of_a_real_broker_are_rebuilt_byte_for_byte(topic: str) -> None:
    rebuilt_count = 0
    for log in GOLDEN_LOGS:
        if log.parent.name[:-23] != topic:
            continue
        for raw in split_batches(log.read_bytes()):
            batch, records_bytes = model_of(raw)
            assert b"".join(build_records(batch)) == records_bytes
            assert build_batch_around(batch, raw[BATCH_HEADER_BYTES:]) == raw
            if batch.codec is Codec.NONE:
                assert build_batch(batch) == raw
            rebuilt_count += 1
    assert rebuilt_count > 0


def index_interval_bytes(topic: str) -> int:
    """The topic's setting, or the broker's default if it has none."""
    lines = (GOLDEN.parent.parent / "truth" / "topics.jsonl").read_text().splitlines()
    settings = {each["topic"]: each["config"] for each in map(json.loads, lines)}
    return int(settings[topic].get("index.interval.bytes", 4096))


def golden_segments(topic: str) -> Iterator[tuple[Path, Segment, list[int]]]:
    """Each complete log of a topic, its model, and the sizes of its batches."""
    interval_bytes = index_interval_bytes(topic)
    for log in GOLDEN_LOGS:
        if log.parent.name[:-25] == topic and log.with_suffix(".index").exists():
            raw_batches = list(split_batches(log.read_bytes()))
            batches = tuple(model_of(raw)[0] for raw in raw_batches)
            yield log, Segment(batches=batches, index_interval_bytes=interval_bytes), [len(raw) for raw in raw_batches]


@pytest.mark.parametrize("topic", ["orders", "clock-switch", "late.events", "edge-times", "payments", "mixed-codecs"])
def test_indexes_of_a_real_broker_are_rebuilt_byte_for_byte(topic: str) -> None:
    compared_count = 0
    for log, segment, batch_sizes in golden_segments(topic):
        if len({batch.leader_epoch for batch in segment.batches}) > 1:
            continue  # A broker that starts anew forgets how many bytes it wrote since the last entry.
        offset_index, time_index = build_indexes(segment, batch_sizes)
        assert offset_index == log.with_suffix(".index").read_bytes()
        assert time_index == log.with_suffix(".timeindex").read_bytes()
        compared_count += 1
    assert compared_count > 1


@pytest.mark.parametrize("partition", ["payments-0", "payments-1", "payments-2", "payments.live-0"])
def test_transactions_epochs_and_producers_of_a_real_broker_are_rebuilt(partition: str) -> None:
    states, lineage = ProducerStates(), list[tuple[int, int]]()
    logs = [log for log in GOLDEN_LOGS if log.parent.name[:-23] == partition]
    assert logs
    for log in logs:
        batches = [model_of(raw)[0] for raw in split_batches(log.read_bytes())]
        aborted = [one for batch in batches if (one := states.add(batch)) is not None]
        lineage = extend_lineage(lineage, batches)
        txn_index = log.with_suffix(".txnindex")
        assert build_txn_index(aborted) == (txn_index.read_bytes() if txn_index.exists() else b"")
        assert build_leader_epoch_checkpoint(lineage) == log.with_suffix(".leader_epoch_checkpoint").read_bytes()
        assert build_snapshot(states) == log.with_suffix(".snapshot").read_bytes()


RECORDS = (
    Record(timestamp_ms=1_000, key=b"k", value=b"v" * 5_000, headers=((b"h", None), (b"i", b"x"))),
    Record(timestamp_ms=-1, key=None, value=b""),
    Record(timestamp_ms=(1 << 63) - 1, key=b"", value=None, offset=17),
)


@pytest.mark.parametrize("codec", list(Codec))
def test_another_library_reads_built_segments_of_every_codec(codec: Codec) -> None:
    batch = Batch(base_offset=10, records=RECORDS, codec=codec, leader_epoch=3, last_offset_delta=9)
    raw = build_batch(batch)
    assert DefaultRecordBatch(raw).validate_crc()
    model, records_bytes = model_of(raw)
    assert records_bytes == b"".join(build_records(batch))
    assert model.placed_records == batch.placed_records
    assert [record.offset for record in batch.placed_records] == [10, 11, 17]
    assert DefaultRecordBatch(raw).last_offset == batch.last_offset == 19


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_payload_of_several_blocks_round_trips(codec: Codec) -> None:
    payload = b"".join(struct.pack(">i", number * number) for number in range(40_000))
    assert decompress(codec, compress(codec, payload)) == payload


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "00"),
        (-1, "01"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (300, "d804"),
        ((1 << 63) - 1, "feffffffffffffffff01"),
        (-(1 << 63), "ffffffffffffffffff01"),
        (1 << 63, "ffffffffffffffffff01"),
    ],
)
def test_varints_are_zig_zag_and_wrap_at_64_bits(value: int, expected: str) -> None:
    assert varint(value).hex() == expected


@pytest.mark.parametrize("magic", [0, 1])
def test_another_library_reads_message_sets_of_both_old_magics(magic: Literal[0, 1]) -> None:
    records = [Record(timestamp_ms=5 + number, key=b"key", value=b"value %d" % number) for number in range(4)]
    plain = MemoryRecords(build_message_set(magic, 7, records))
    packed = MemoryRecords(build_compressed_message_set(magic, 7, records, Codec.GZIP))
    for message_set in (plain, packed):
        found = [
            (record.offset, record.timestamp, record.key, record.value)
            for message in iter(message_set.next_batch, None)
            if message.validate_crc()
            for record in message
        ]
        timestamps = [5, 6, 7, 8] if magic == 1 else [None] * 4
        expected = [(7 + at, timestamps[at], b"key", b"value %d" % at) for at in range(4)]
        assert found == expected


def test_archive_is_written_in_the_layout_of_local_tiered_storage(tmp_path: Path) -> None:
    aborted = Batch(
        base_offset=3, records=(Record(timestamp_ms=9),), is_transactional=True, producer_id=4, producer_epoch=0
    )
    marker = abort_marker(offset=4, timestamp_ms=11, producer_id=4, producer_epoch=0, leader_epoch=1)
    first = Segment(batches=(Batch(base_offset=0, records=(Record(timestamp_ms=-1),) * 3),), modified_ms=1_234_567)
    second = Segment(batches=(aborted, marker), segment_id="AAAAAAAAAAAAAAAAAAAAAA")
    topic_partition = TopicPartition(topic="a-b", partition=12, topic_id="-_-_-_-_-_-_-_-_-_-_-_")
    written = write_archive(tmp_path, {topic_partition: [first, second]})
    folder = tmp_path / "kafka-tiered-storage" / "a-b-12--_-_-_-_-_-_-_-_-_-_-_"
    assert [one.log.parent for one in written] == [folder, folder]
    assert written[1].log.name == "00000000000000000003-AAAAAAAAAAAAAAAAAAAAAA.log"
    assert written[0].log.stat().st_mtime_ns == 1_234_567_000_000
    assert {path.suffix for path in folder.glob(f"{written[0].stem.name}.*")} == set(ALWAYS_WRITTEN)
    assert {path.suffix for path in folder.glob(f"{written[1].stem.name}.*")} == {*ALWAYS_WRITTEN, ".txnindex"}
    assert written[0].log.with_suffix(".timeindex").read_bytes() == b""
    assert written[1].log.with_suffix(".txnindex").read_bytes() == struct.pack(">hqqqq", 0, 4, 3, 4, 5)
    assert written[1].log.with_suffix(".leader_epoch_checkpoint").read_bytes() == b"0\n2\n0 0\n1 4\n"


def segment_of(base_offset: int, timestamps_ms: Sequence[int], *, modified_ms: int = 0) -> Segment:
    batch = Batch(base_offset=base_offset, records=tuple(Record(timestamp_ms=each) for each in timestamps_ms))
    return Segment(batches=(batch,), modified_ms=modified_ms)


def test_first_offset_belongs_to_the_first_record_not_to_the_smallest_timestamp() -> None:
    segments = [segment_of(0, [5, 30, 20]), segment_of(3, [10, 40])]
    assert find_first_offset(segments, 15) == FoundOffset(offset=1, timestamp_ms=30, leader_epoch=0)
    assert find_first_offset(segments, 15, log_start_offset=2) == FoundOffset(offset=2, timestamp_ms=20, leader_epoch=0)
    assert find_first_offset(segments, 41) is None


def test_broker_searches_only_the_first_segment_with_a_large_enough_maximum() -> None:
    segments = [segment_of(0, [5, 30, 20]), segment_of(3, [10, 40])]
    assert find_first_offset_as_broker(segments, 25) == find_first_offset(segments, 25)
    assert find_first_offset_as_broker(segments, 25, log_start_offset=2) is None
    assert find_first_offset(segments, 25, log_start_offset=2) == FoundOffset(offset=4, timestamp_ms=40, leader_epoch=0)


def test_broker_uses_the_file_time_as_maximum_of_a_segment_without_timestamps() -> None:
    segments = [segment_of(0, [-1, -1], modified_ms=100), segment_of(2, [50])]
    assert find_first_offset_as_broker(segments, 50) is None
    assert find_first_offset(segments, 50) == FoundOffset(offset=2, timestamp_ms=50, leader_epoch=0)


def test_log_append_time_counts_for_every_record_of_its_batch() -> None:
    batch = Batch(base_offset=4, records=(Record(timestamp_ms=1), Record(timestamp_ms=90)), log_append_time_ms=7)
    segments = [Segment(batches=(batch,))]
    assert find_first_offset(segments, 7) == FoundOffset(offset=4, timestamp_ms=7, leader_epoch=0)
    assert find_first_offset(segments, 8) is None


def test_stairs_are_strict_prefix_maxima_from_the_given_offset() -> None:
    records = segment_of(0, [4, 4, 7, 3, 7, 9]).placed_records
    assert [stair.offset for stair in list_stairs(records)] == [0, 2, 5]
    assert [stair.offset for stair in list_stairs(records, from_offset=3)] == [3, 4, 5]


@given(partitions())
def test_another_library_reads_drawn_partitions(segments: list[Segment]) -> None:
    next_offset = segments[0].start_offset
    for segment in segments:
        assert segment.start_offset >= next_offset
        raw_batches = list(split_batches(build_segment(segment.batches)))
        for batch, raw in zip(segment.batches, raw_batches, strict=True):
            assert batch.base_offset >= next_offset
            assert DefaultRecordBatch(raw).validate_crc()
            next_offset = batch.last_offset + 1
        assert segment.end_offset >= next_offset - 1
        next_offset = segment.end_offset + 1


@given(st.data())
def test_broker_and_exact_rule_agree_if_every_maximum_is_correct(data: st.DataObject) -> None:
    segments = [each for each in data.draw(partitions()) if keeps_its_promise(each)]
    for timestamp_ms in {record.timestamp_ms for segment in segments for record in segment.placed_records}:
        found = find_first_offset(segments, timestamp_ms)
        assert found is not None
        assert found == find_first_offset_as_broker(segments, timestamp_ms)
        stairs = list_stairs(record for segment in segments for record in segment.placed_records)
        assert found.offset == min(stair.offset for stair in stairs if stair.timestamp_ms >= timestamp_ms)


def keeps_its_promise(segment: Segment) -> bool:
    """The maximum in the metadata is that of a record, and no emptied batch has a larger one."""
    largest = max((record.timestamp_ms for record in segment.placed_records), default=None)
    return segment.metadata_max_timestamp_ms == largest
