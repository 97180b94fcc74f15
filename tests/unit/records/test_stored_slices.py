"""Test which slices are sent from their file, and that no damaged batch is."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from builders.segment_builder import Segment, build_batch
from coldlog.archive.stores import stored_file
from coldlog.archive.stores.stored_file import FileState
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest
from coldlog.model.states import IndexDepth
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.fetch.stored_slices import CheckedRanges
from coldlog.tables.definitions.quarantine import QUARANTINE
from tables.scattered_tables import write
from worlds.sidecar_world import EPOCH_MS, LIMITS, SidecarWorld, batch, sidecar_world

COUNT, VALUE_BYTES = 12, 60_000
_SEGMENT = Segment(batches=tuple(batch(at, EPOCH_MS + at, value=bytes([at]) * VALUE_BYTES) for at in range(COUNT)))
_BATCHES = [build_batch(each) for each in _SEGMENT.batches]
_Found = FetchedBatches | FetchedRecords | FetchFailure
_PLACE = FileState(device=1, inode=2, size_bytes=3, changed_ns=4), 5


@pytest.fixture
def world(tmp_path: Path) -> SidecarWorld:
    """A segment of batches of 60 KB on a file system."""
    found = sidecar_world(tmp_path, [_SEGMENT], depths=[IndexDepth.BATCH])
    write(found.warehouse, QUARANTINE, [])
    return found


@pytest.fixture
def source(world: SidecarWorld) -> Iterator[RecordSource]:
    with closing(_open(world)) as opened:
        yield opened


def _open(world: SidecarWorld) -> RecordSource:
    return RecordSource(str(world.warehouse), lambda: world.layout, LIMITS)


def _read(
    source: RecordSource, offset: int, max_bytes: int = 1 << 20
) -> FetchedBatches | FetchedRecords | FetchFailure:
    planned = source.plan(FetchRequest(topic="orders", partition=0, offset=offset, max_bytes=max_bytes))
    assert isinstance(planned, LogSlice)
    return source.read_batches(planned, as_files=True)


def _sent(found: _Found) -> bytes:
    """The bytes that are sent from a file."""
    assert isinstance(found, FetchedBatches)
    assert found.stored is not None
    content = bytearray(len(found.stored))
    assert found.stored.file.read_into(memoryview(content), found.stored.position) == len(content) == found.size_bytes
    return bytes(content)


def _damage(log: Path, number: int) -> None:
    """Change a byte of a batch, so that the file's time of change is another one."""
    before = log.stat().st_ctime_ns
    with log.open("r+b") as file:
        file.seek(sum(map(len, _BATCHES[:number])) + 1000)
        file.write(b"\xff")
    while log.stat().st_ctime_ns == before:
        os.utime(log)


def test_whole_batches_are_sent_from_the_file_of_the_log(source: RecordSource) -> None:
    assert _sent(_read(source, 0)) == b"".join(_BATCHES)
    assert _sent(_read(source, 3, 4 * VALUE_BYTES)) == b"".join(_BATCHES[3:6])
    assert _sent(_read(source, COUNT - 1)) == _BATCHES[-1]
    assert _sent(_read(source, 5, sys.maxsize)) == b"".join(_BATCHES[5:])


def test_damage_is_found_before_anything_is_sent_and_what_is_before_it_is_read(
    world: SidecarWorld, source: RecordSource
) -> None:
    _damage(world.written[0].log, 10)
    found, failure = _read(source, 8), _read(source, 10)
    assert isinstance(found, FetchedBatches)
    assert (found.stored, b"".join(found.pieces)) == (None, b"".join(_BATCHES[8:10]))
    assert isinstance(failure, FetchFailure)
    assert failure.error is FetchErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("leader_epoch", [0, 2, 1 << 24])
def test_a_batch_with_another_leader_epoch_than_its_segment_is_damage(tmp_path: Path, leader_epoch: int) -> None:
    """No checksum covers it. A consumer commits it, and takes no metadata of older epochs from then on."""
    segment = Segment(batches=tuple(replace(each, leader_epoch=each.base_offset // 6) for each in _SEGMENT.batches))
    number, before = 8, b"".join(map(build_batch, segment.batches[:8]))
    for depth in (IndexDepth.BATCH, IndexDepth.SIDECAR):
        world = sidecar_world(tmp_path / depth.value, [segment], depths=[depth])
        write(world.warehouse, QUARANTINE, [])
        with world.written[0].log.open("r+b") as file:
            file.seek(len(before) + 12)
            file.write(struct.pack(">i", leader_epoch))
        with closing(_open(world)) as source:
            found, failure = _read(source, 0), _read(source, number)
            assert isinstance(found, FetchedBatches)
            assert (found.stored, b"".join(found.pieces)) == (None, before)
            assert isinstance(failure, FetchFailure)
            assert failure.error is FetchErrorCode.CORRUPT_MESSAGE
            assert f"expected leader epoch 1 at offset {number}" in failure.message
            planned = source.plan(FetchRequest(topic="orders", partition=0, offset=0, max_bytes=1 << 20))
            assert isinstance(planned, LogSlice)
            records = source.read(planned)
            assert isinstance(records, FetchedRecords)
            assert [each.leader_epoch for each in records.records] == [0] * 6 + [1] * 2


def test_a_log_that_was_checked_is_checked_again_if_it_was_changed(
    world: SidecarWorld, source: RecordSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_file, "_SETTLED_NS", 0)  # The file has the age of this test.
    assert _sent(_read(source, 0)) == _sent(_read(source, 0)) == b"".join(_BATCHES)
    _damage(world.written[0].log, 0)
    failure = _read(source, 0)
    assert isinstance(failure, FetchFailure)
    assert failure.error is FetchErrorCode.CORRUPT_MESSAGE


def test_a_log_that_ends_early_is_not_sent(world: SidecarWorld, source: RecordSource) -> None:
    os.truncate(world.written[0].log, sum(map(len, _BATCHES[:4])) + 100)
    found = _read(source, 0)
    assert isinstance(found, FetchedBatches)
    assert (found.stored, b"".join(found.pieces)) == (None, b"".join(_BATCHES[:4]))


def test_ranges_that_touch_or_overlap_are_one_and_others_stay_apart() -> None:
    checked = CheckedRanges()
    for begin, end in ((0, 10), (20, 30), (10, 15), (28, 40)):
        checked.add(_PLACE, begin, end)
    assert checked.have(_PLACE, 0, 15)
    assert checked.have(_PLACE, 21, 40)
    assert not checked.have(_PLACE, 14, 21)
    assert not checked.have((_PLACE[0], _PLACE[1] + 1), 0, 1), "another build has other batches"
    checked.add(_PLACE, 15, 20)
    assert checked.have(_PLACE, 0, 40)
    assert not checked.have(_PLACE, 0, 41)
