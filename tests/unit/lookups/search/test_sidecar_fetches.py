"""Test fetches from segments whose logs the build did not read: exact, windowed, and strict about what they read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from builders.segment_builder import Segment, build_batch
from builders.strategies import partitions
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest
from coldlog.model.states import IndexDepth
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.tables.definitions.quarantine import QUARANTINE
from drawn_examples import examples
from stores.noting_store import count_requests, take_notes
from tables.scattered_tables import write
from worlds.sidecar_world import EPOCH_MS, LIMITS, SidecarWorld, batch, rising, sidecar_world


@contextmanager
def source_of(world: SidecarWorld) -> Iterator[RecordSource]:
    write(world.warehouse, QUARANTINE, [])
    source = RecordSource(str(world.warehouse), lambda: world.layout, LIMITS)
    try:
        yield source
    finally:
        source.close()


def fetch(source: RecordSource, offset: int, max_bytes: int = 1 << 20) -> FetchedRecords | FetchFailure:
    planned = source.plan(FetchRequest(topic="orders", partition=0, offset=offset, max_bytes=max_bytes))
    return source.read(planned) if isinstance(planned, LogSlice) else planned


def fetch_all(source: RecordSource, max_bytes: int) -> list[tuple[int, int]]:
    """Offsets and timestamps of all records."""
    found: list[tuple[int, int]] = []
    ends = source.partition_ends("orders", 0)
    assert ends is not None
    offset = ends.log_start_offset
    while True:
        answer = fetch(source, offset, max_bytes)
        assert isinstance(answer, FetchedRecords), str(answer)
        if answer.next_offset == offset:
            assert offset == ends.end_offset
            return found
        found += [(each.offset, each.timestamp_ms) for each in answer.records]
        offset = answer.next_offset


@examples(10)
@given(segments=partitions(max_segments=2, max_batches=6), data=st.data())
def test_every_fetch_equals_that_at_batch_depth(segments: Sequence[Segment], data: st.DataObject) -> None:
    """Records, next offset and ends, from every offset. Compaction removed batches of these archives and their ends."""
    stride_bytes = data.draw(st.sampled_from((0, 500, 1 << 16)))
    max_bytes = data.draw(st.sampled_from((1, 300, 1 << 20)))
    with tempfile.TemporaryDirectory() as folder:
        sidecar = sidecar_world(Path(folder) / "sidecar", segments, stride_bytes=stride_bytes)
        decoded = sidecar_world(Path(folder) / "batch", segments, depths=[IndexDepth.BATCH] * len(segments))
        with source_of(sidecar) as found, source_of(decoded) as expected:
            assert fetch_all(found, max_bytes) == fetch_all(expected, max_bytes)
            for offset in range(segments[0].start_offset, segments[-1].end_offset + 2):
                left, right = (fetch(source, offset, max_bytes) for source in (found, expected))
                assert type(left) is type(right), offset
                if isinstance(left, FetchedRecords) and isinstance(right, FetchedRecords) and max_bytes == 1:
                    assert left.records == right.records, offset


def test_a_fetch_reads_one_interval_with_one_request(tmp_path: Path) -> None:
    world = sidecar_world(tmp_path, [rising(400)], stride_bytes=4096)
    with source_of(world) as source:
        fetch(source, 0, 1)
        for offset in (1, 57, 200, 401, 799):
            take_notes(world.notes)
            answer = fetch(source, offset, 1)
            assert isinstance(answer, FetchedRecords)
            assert [each.offset for each in answer.records] == list(range(offset, offset // 2 * 2 + 2))
            assert count_requests(world.notes) == (1, 0)
            assert answer.read_bytes < 4096 + 3 * 1000


def test_a_large_interval_is_read_in_windows_up_to_the_offset(tmp_path: Path) -> None:
    """The offset index has no entry: a follower may have fetched all at once."""
    batches = tuple(batch(at, EPOCH_MS + at, value=b"x" * 400_000) for at in range(30))
    world = sidecar_world(tmp_path, [Segment(batches=batches, index_interval_bytes=1 << 30)])
    with source_of(world) as source:
        assert [offset for offset, _ in fetch_all(source, 1 << 20)] == list(range(30))
        world.notes.write_bytes(b"")
        answer = fetch(source, 29)
        assert isinstance(answer, FetchedRecords)
        assert [each.offset for each in answer.records] == [29]
        assert count_requests(world.notes) == (4, 0)
        world.notes.write_bytes(b"")
        answer = fetch(source, 1)
        assert isinstance(answer, FetchedRecords)
        assert [each.offset for each in answer.records] == [1, 2]
        assert count_requests(world.notes) == (1, 0)


def test_a_segment_whose_last_batches_compaction_removed_is_followed_by_the_next_one(tmp_path: Path) -> None:
    """The endpoint answers with batches: an answer without any would make a client ask for the same offset for ever."""
    first = Segment(batches=(batch(0, EPOCH_MS), batch(2, EPOCH_MS + 10)), stored_end_offset=19)
    second = Segment(batches=(batch(20, EPOCH_MS + 40),))
    world = sidecar_world(tmp_path, [first, second])
    with source_of(world) as source:
        for offset in range(3, 20):
            planned = source.plan(FetchRequest(topic="orders", partition=0, offset=offset, max_bytes=1000))
            assert isinstance(planned, LogSlice)
            found = source.read_batches(planned)
            assert isinstance(found, FetchedBatches)
            assert found.log_slice.batches.base_offset.tolist() == [20]


def test_damage_costs_its_interval_and_what_is_before_it_is_answered(tmp_path: Path) -> None:
    segment = rising(400)
    world = sidecar_world(tmp_path, [segment], stride_bytes=4096)
    _flip(world, segment, 200, at=100)
    with source_of(world) as source:
        answer = fetch(source, 0)
        assert isinstance(answer, FetchedRecords)
        assert 380 < answer.next_offset <= 400
        failure = fetch(source, 400)
        assert isinstance(failure, FetchFailure)
        assert failure.error is FetchErrorCode.CORRUPT_MESSAGE
        assert "at sidecar depth this costs offsets" in failure.message
        assert failure.resume_offset is not None
        assert 401 < failure.resume_offset < 440
        rest = fetch(source, failure.resume_offset + 40)
        assert isinstance(rest, FetchedRecords)
        assert rest.records[0].offset == failure.resume_offset + 40


def test_no_damaged_base_offset_gives_a_wrong_record(tmp_path: Path) -> None:
    """A batch's base offset is outside its checksum: its neighbours and the intervals' ends show every change."""
    segment = rising(400)
    true = {each.offset: each.timestamp_ms for each in segment.placed_records}
    world = sidecar_world(tmp_path, [segment], stride_bytes=4096)
    log, refused = world.written[0].log, 0
    sound = log.read_bytes()
    with source_of(world) as source:
        for number, bit in product((*range(25), 398, 399), (0, 1, 2, 5, 9, 20, 63)):
            _flip(world, segment, number, at=7 - bit // 8, mask=1 << bit % 8)
            for max_bytes, offset in product((1, 1 << 20), (2 * number, max(0, 2 * number - 2))):
                answer = fetch(source, offset, max_bytes)
                refused += isinstance(answer, FetchFailure)
                if isinstance(answer, FetchedRecords):
                    found = {each.offset: each.timestamp_ms for each in answer.records}
                    wanted = {each: true[each] for each in range(offset, answer.next_offset)}
                    assert found == wanted, (number, bit, offset, max_bytes)
            log.write_bytes(sound)
    assert refused > 300


def _flip(world: SidecarWorld, segment: Segment, number: int, *, at: int, mask: int = 1) -> None:
    """Change one byte of a batch."""
    position = sum(len(build_batch(each)) for each in segment.batches[:number])
    log = world.written[0].log
    content = bytearray(log.read_bytes())
    content[position + at] ^= mask
    log.write_bytes(content)
