"""A segment that several threads decode has the rows, and the errors, that one thread finds."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.formats.kafka.offset_index import read_offset_index, write_offset_index
from coldlog.formats.kafka.sections import SectionReader
from coldlog.index.segment_index import SegmentIndexer
from coldlog.indexing.builds.log_chunks import LogReader
from coldlog.indexing.builds.segment_build import BuildOptions
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from damage.damaged_archives import LIMITS, LOG, Partition, Row, build_works, list_works
from drawn_examples import sampled
from stores.memory_store import MemoryStore

WINDOW_BYTES = 700
MIXED = (Codec.LZ4, Codec.ZSTD, Codec.NONE, Codec.GZIP, Codec.SNAPPY_RAW)
INDEX = ".index"
FIRST = 1_000
MIDDLE = FIRST + 250
"""In the middle of a batch."""


@cache
def partition_of(codecs: tuple[Codec, ...] = MIXED, *, index_interval_bytes: int = 0) -> Partition:
    """A segment of 126 batches. Times climb and fall, a leader changes, and offsets have gaps. Six transactions of one
    batch are aborted or committed."""
    draw, offset, batches = random.Random(7), FIRST, list[Batch]()
    for number in range(120):
        epoch, is_in_transaction = number // 50, number % 20 == 10
        if number % 20 == 11:
            end = abort_marker if number % 40 == 11 else commit_marker
            batches.append(
                end(offset=offset, timestamp_ms=10 * number, producer_id=7, producer_epoch=0, leader_epoch=epoch)
            )
            offset += 1
        times = [number // 5 * 50 + draw.randint(-6, 6) * 50 for _ in range(draw.randint(1, 9))]
        batch = Batch(
            base_offset=offset,
            records=tuple(Record(timestamp_ms=each, value=draw.randbytes(draw.randint(0, 40))) for each in times),
            codec=codecs[number % len(codecs)],
            leader_epoch=epoch,
            log_append_time_ms=max(times) if number % 17 == 5 else None,
        )
        if is_in_transaction:
            batch = replace(batch, is_transactional=True, producer_id=7, producer_epoch=0, base_sequence=number)
        batches.append(batch)
        offset = batch.last_offset + 1 + (number % 30 == 29)
    return Partition.of(Segment(batches=tuple(batches), index_interval_bytes=index_interval_bytes))


def built_by(
    threads: int,
    partition: Partition,
    *,
    depth: IndexDepth = IndexDepth.RECORD,
    counted_from: int = FIRST,
    is_salvaging: bool = True,
) -> tuple[list[Row], list[Row], Row]:
    """Batches, stairs and outcome."""
    return _built_of(MemoryStore(partition.objects), threads, depth, counted_from, is_salvaging=is_salvaging)


def _built_of(
    store: MemoryStore, threads: int, depth: IndexDepth, counted_from: int, *, is_salvaging: bool = True
) -> tuple[list[Row], list[Row], Row]:
    layout = LocalTieredStorageLayout(store=store)
    (work,) = list_works(layout)
    options = BuildOptions(
        depth=depth,
        limits=LIMITS,
        window_bytes=WINDOW_BYTES,
        is_salvaging=is_salvaging,
        bytes_per_thread=WINDOW_BYTES,
        most_threads=threads,
    )
    (built,) = build_works(layout, [replace(work, count_from_offset=counted_from)], options)
    return built.rows(OFFSET_INDEX), built.rows(TIME_INDEX), built.outcome


def log_reads_of(threads: int, partition: Partition, depth: IndexDepth = IndexDepth.RECORD) -> list[tuple[int, int]]:
    """Position and length of the reads of the log."""
    store = MemoryStore(partition.objects)
    _built_of(store, threads, depth, FIRST)
    return [(read.position, read.length) for read in store.reads if read.name.endswith(LOG)]


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("counted_from", [FIRST, MIDDLE])
@pytest.mark.parametrize("codecs", [MIXED, (Codec.LZ4,)], ids=["mixed", "lz4"])
@pytest.mark.parametrize("index_interval_bytes", [0, 300, 1_500])
def test_threads_find_what_one_finds(
    threads: int, counted_from: int, codecs: tuple[Codec, ...], index_interval_bytes: int
) -> None:
    partition = partition_of(codecs, index_interval_bytes=index_interval_bytes)
    batches, stairs, outcome = built_by(1, partition, counted_from=counted_from)
    assert outcome["outcome"] == "indexed"
    assert len(batches) == 126
    assert len(stairs) > 10
    assert built_by(threads, partition, counted_from=counted_from) == (batches, stairs, outcome)


def test_threads_read_nothing_twice() -> None:
    partition = partition_of((Codec.LZ4,))
    size_bytes = len(partition.content(LOG, segment=0))
    alone, shared = log_reads_of(1, partition), log_reads_of(3, partition)
    assert sum(length for _, length in shared) == size_bytes < sum(length for _, length in alone)


def test_each_thread_has_a_window_to_decode() -> None:
    """And one more is read, so that none waits for the store."""
    partition = partition_of((Codec.LZ4,))
    layout = LocalTieredStorageLayout(store=(store := MemoryStore(partition.objects)))
    (work,) = list_works(layout)
    index = read_offset_index(memoryview(partition.content(INDEX, segment=0)), base_offset=FIRST)
    indexer = SegmentIndexer(
        start_offset=FIRST,
        depth=IndexDepth.RECORD,
        counted_from_offset=FIRST,
        sections=SectionReader(limits=LIMITS),
    )
    reader = LogReader(layout=layout, segment=work.segment, indexer=indexer, window_bytes=WINDOW_BYTES)
    chunks = reader.iter_chunks_by_threads(layout.log_size_bytes(work.segment), index.positions, 3)
    next(chunks)
    # The first one shows whether the records are compressed.
    assert len(store.reads) == 1
    next(chunks)
    assert len(store.reads) == 1 + 4
    next(chunks)
    assert len(store.reads) == 1 + 5


@pytest.mark.parametrize(
    ("codec", "depth"),
    [(Codec.NONE, IndexDepth.RECORD), (Codec.LZ4, IndexDepth.BATCH)],
    ids=["not compressed", "records are not read"],
)
def test_where_nothing_is_decompressed_one_thread_reads(codec: Codec, depth: IndexDepth) -> None:
    partition = partition_of((codec,))
    assert built_by(3, partition, depth=depth) == built_by(1, partition, depth=depth)
    # After the first, its windows do not end where batches end.
    assert {length for _, length in log_reads_of(3, partition, depth)[1:-1]} == {WINDOW_BYTES}


@pytest.mark.parametrize(("is_salvaging", "step"), [(True, 1_009), (False, 211)])
@pytest.mark.parametrize("pattern", [0x01, 0xC0])
def test_threads_refuse_what_one_refuses(pattern: int, step: int, *, is_salvaging: bool) -> None:
    partition = partition_of()
    log = partition.content(LOG, segment=0)
    reasons = set[object]()
    for at in sampled(range(0, len(log), step)):
        damaged = partition.with_content(LOG, log[:at] + bytes([log[at] ^ pattern]) + log[at + 1 :], segment=0)
        expected = built_by(1, damaged, is_salvaging=is_salvaging)
        assert built_by(3, damaged, is_salvaging=is_salvaging) == expected, at
        reasons.add(expected[2]["reason"])
    assert is_salvaging or len(reasons) > 1


@pytest.mark.parametrize(("first", "shift"), [(0, 1), (0, -1), (20, 61), (-1, 600)])
def test_an_index_that_names_no_batches_changes_nothing(first: int, shift: int) -> None:
    partition = partition_of(index_interval_bytes=300)
    index = read_offset_index(memoryview(partition.content(INDEX, segment=0)), base_offset=FIRST)
    positions = index.positions.copy()
    positions[first:] += shift
    wrong = write_offset_index(replace(index, positions=positions))
    damaged = partition.with_content(INDEX, wrong, segment=0)
    expected = built_by(1, damaged)
    assert expected[2]["damaged_files"] or expected[2]["reason"]
    assert built_by(3, damaged) == expected


def test_where_the_index_has_no_entry_for_long_one_thread_reads() -> None:
    """Otherwise a window would have no bound."""
    partition = partition_of(index_interval_bytes=5 * WINDOW_BYTES)
    assert max(length for _, length in log_reads_of(3, partition)) <= 2 * WINDOW_BYTES
    assert built_by(3, partition) == built_by(1, partition)


def test_a_log_that_became_shorter_is_refused() -> None:
    """Its size was listed before."""

    class Shrunk(MemoryStore):
        def read_range(self, name: str, position: int, length: int, until: int | None = None) -> memoryview:
            read = super().read_range(name, position, length, until)
            return read[: max(0, 4_000 - position)] if name.endswith(LOG) else read

    partition = partition_of((Codec.LZ4,))
    outcomes = [
        _built_of(Shrunk(partition.objects), threads, IndexDepth.RECORD, FIRST, is_salvaging=False)
        for threads in (1, 3)
    ]
    assert outcomes[0][2]["reason"] == "log_truncated"
    assert outcomes[0] == outcomes[1]
