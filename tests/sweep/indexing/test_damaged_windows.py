"""Test that the same damage is reported for every size of window, that reads are bounded, and that limits are those of
the settings."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.message_sets import Magic, build_compressed_message_set, build_message_set
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment
from coldlog.errors import Reason
from coldlog.formats.kafka.record_batch import HEADER_BYTES
from coldlog.indexing.builds.segment_build import BuildOptions
from coldlog.model.states import IndexDepth
from coldlog.runtime.open_layout import decode_limits
from coldlog.runtime.settings_sources import load_settings
from damage.damaged_archives import LOG, Partition, Row, build, build_store, options, small_partition, small_segment
from stores.memory_store import MemoryStore

PARTITION = small_partition(index_interval_bytes=4096)
WHOLE_LOG = PARTITION.content(LOG)


def _flipped(seed: int) -> bytes:
    chance, log = random.Random(seed), bytearray(WHOLE_LOG)
    log[chance.randrange(len(log))] ^= 1 << chance.randrange(8)
    return bytes(log)


def _cut(seed: int) -> bytes:
    return WHOLE_LOG[: random.Random(seed).randrange(1, len(WHOLE_LOG))]


def _random(seed: int) -> bytes:
    chance = random.Random(seed)
    return chance.randbytes(chance.randrange(1, 6_000))


def _overwritten(seed: int) -> bytes:
    """A good beginning, then random bytes."""
    chance = random.Random(seed)
    at = chance.randrange(len(WHOLE_LOG))
    return WHOLE_LOG[:at] + chance.randbytes(chance.randrange(1, 3_000))


def _read_in_windows(log: bytes, depth: IndexDepth, window_bytes: int) -> tuple[Row, int]:
    """The outcome, and the number of reads of the log."""
    store = MemoryStore(PARTITION.with_content(LOG, log).objects)
    outcome = build_store(store, options(depth, window_bytes=window_bytes))[1].outcome
    return outcome, sum(read.name == PARTITION.name_of(LOG) for read in store.reads)


@given(
    damage=st.sampled_from([_flipped, _cut, _random, _overwritten]),
    seed=st.integers(0, 2**32),
    window_bytes=st.one_of(st.integers(1, 200), st.integers(1, 5_000)),
    depth=st.sampled_from(IndexDepth),
)
def test_windows_of_any_size_report_the_same_damage_in_bounded_steps(
    damage: object, seed: int, window_bytes: int, depth: IndexDepth
) -> None:
    assert callable(damage)
    log = damage(seed)
    in_one, reads_of_one = _read_in_windows(log, depth, 1 << 20)
    outcome, read_count = _read_in_windows(log, depth, window_bytes)
    assert outcome == in_one
    assert reads_of_one <= 1
    # A batch takes three reads at the most: one that is too short for its header, one that tells its length, its own.
    assert read_count <= 3 * (len(log) // HEADER_BYTES + 1)


@pytest.mark.parametrize("window_bytes", [1, 61, 97, 98, 5_000])
@pytest.mark.parametrize("codec", [None, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_set_after_good_batches_is_reported_at_its_start(
    magic: Magic, codec: Codec | None, window_bytes: int
) -> None:
    records = [Record(timestamp_ms=5, value=b"v" * 40)] * 3
    old = (
        build_message_set(magic, 16, records)
        if codec is None
        else build_compressed_message_set(magic, 16, records, codec)
    )
    for depth in IndexDepth:
        outcome, _ = _read_in_windows(WHOLE_LOG + old, depth, window_bytes)
        assert (outcome["reason"], outcome["position"]) == (Reason.UNSUPPORTED_MAGIC, len(WHOLE_LOG))
        assert outcome["object_name"] == PARTITION.name_of(LOG)
        assert (outcome["expected"], outcome["found"]) == ("magic 2", f"magic {magic}")


KIB = 1024


def _with_large_batch(codec: Codec, value_bytes: int) -> Partition:
    """The second batch of the middle segment has one record of this size, which compresses well."""
    middle = Segment(
        batches=(
            Batch(base_offset=8, records=(Record(timestamp_ms=100),), leader_epoch=1),
            Batch(
                base_offset=9,
                records=(Record(timestamp_ms=101, value=b"v" * value_bytes),),
                leader_epoch=1,
                codec=codec,
            ),
        )
    )
    return Partition.of(small_segment(0, epoch=0), middle, small_segment(10, epoch=1))


def _options_of_settings(*changes: str) -> BuildOptions:
    """The build options that a job makes of its settings."""
    settings = load_settings("local", list(changes))
    return BuildOptions(
        depth=settings.index.depth,
        limits=decode_limits(settings),
        window_bytes=settings.index.window_bytes,
        is_salvaging=settings.index.salvage,
    )


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_batch_larger_than_max_decompressed_bytes_is_reported_and_other_segments_are_indexed(codec: Codec) -> None:
    partition = _with_large_batch(codec, 3 * KIB)
    roomy = build(partition, _options_of_settings("index.max_decompressed_bytes=4KiB"))
    assert [each.outcome["outcome"] for each in roomy] == ["indexed"] * 3
    first, middle, last = build(partition, _options_of_settings("index.max_decompressed_bytes=2KiB"))
    assert (first, last) == (roomy[0], roomy[2])
    outcome = middle.outcome
    assert (outcome["outcome"], outcome["reason"]) == ("quarantined", Reason.DECOMPRESSION_LIMIT)
    assert (outcome["object_name"], outcome["position"]) == (partition.name_of(LOG), partition.borders[1])
    assert outcome["message"] == f"{codec.kafka_name} records decompress to more than the limit"
    assert outcome["expected"] == f"at most {2 * KIB} bytes"
    # Where the records are not looked at, nothing is decompressed.
    shallow = build(partition, _options_of_settings("index.max_decompressed_bytes=2KiB", "index.depth=batch"))
    assert [each.outcome["outcome"] for each in shallow] == ["indexed"] * 3


@pytest.mark.parametrize("depth", list(IndexDepth))
def test_a_batch_larger_than_max_batch_bytes_is_reported_and_other_segments_are_indexed(depth: IndexDepth) -> None:
    partition = _with_large_batch(Codec.NONE, 2 * KIB)
    roomy = build(partition, _options_of_settings("index.max_batch_bytes=3KiB", f"index.depth={depth}"))
    assert [each.outcome["outcome"] for each in roomy] == ["indexed"] * 3
    tight = _options_of_settings("index.max_batch_bytes=2KiB", f"index.depth={depth}", "index.salvage=false")
    first, middle, last = build(partition, tight)
    assert (first, last) == (roomy[0], roomy[2])
    outcome = middle.outcome
    assert (outcome["outcome"], outcome["reason"]) == ("quarantined", Reason.BATCH_LENGTH_INVALID)
    assert (outcome["object_name"], outcome["position"]) == (partition.name_of(LOG), partition.borders[1])
    size_bytes = partition.borders[2] - partition.borders[1]
    assert (outcome["expected"], outcome["found"]) == (f"49 to {2 * KIB - 12}", str(size_bytes - 12))
