"""Test a broker's log directory: the files of a partition, and the end of a log that is still written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.log_directory_writer import HIGH_WATERMARKS, write_offset_checkpoint, write_partition
from builders.segment_builder import Batch, Record, Segment, batch_positions, build_segment
from builders.strategies import partitions
from coldlog.archive.layouts.layout import SegmentFileKind
from coldlog.archive.layouts.log_directory import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    find_offset_index,
    find_partition,
    find_time_index,
    list_partitions,
    read_checkpoint,
    read_directory_name,
    read_lineage,
    read_snapshot,
)
from coldlog.archive.layouts.log_windows import LogFile, iter_log_windows
from coldlog.archive.stores.local_store import LocalStore
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.limits import DecodeLimits

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
BATCHES = tuple(
    # No batch ends in a zero, because it could not be distinguished from the zeros after it.
    Batch(base_offset=4 * number, records=(Record(timestamp_ms=number, value=b"v" * 40, headers=((b"h", b"x"),)),) * 4)
    for number in range(6)
)
LOG = build_segment(BATCHES)
POSITIONS = batch_positions(BATCHES)


def _store(directory: Path) -> LocalStore:
    return LocalStore(root=str(directory), uri=str(directory))


def _segments() -> list[Segment]:
    return [Segment(batches=BATCHES[at : at + 2], index_interval_bytes=0) for at in (0, 2, 4)]


def _read_offsets(directory: Path, content: bytes, *, is_active: bool, window_bytes: int = 4 << 20) -> list[int]:
    """The base offsets of the batches that were read."""
    (directory / "log").write_bytes(content)
    log = LogFile(name="log", size_bytes=len(content), base_offset=0, is_active=is_active)
    windows = iter_log_windows(_store(directory), log, from_position=0, limits=LIMITS, window_bytes=window_bytes)
    return [offset for window in windows for offset in window.headers.base_offset.tolist()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b.c-1-12", ("a-b.c-1", 12)),
        ("-1-7", ("-1", 7)),
        ("__remote_log_metadata-49", ("__remote_log_metadata", 49)),
        ("orders-01", None),
        ("orders", None),
        ("orders-2147483648", None),
        ("orders-0.3c0e9a6fd8ce4dd6b2a7b2f3d8b8b0a1-delete", None),
        ("orders-0.3c0e9a6fd8ce4dd6b2a7b2f3d8b8b0a1-stray", None),
        ("orders-0.3c0e9a6fd8ce4dd6b2a7b2f3d8b8b0a1-future", None),
        ("or ders-0", None),
        ("-0", None),
    ],
)
def test_partition_number_is_after_the_last_dash(name: str, expected: tuple[str, int] | None) -> None:
    assert read_directory_name(name) == expected


def test_partitions_that_are_being_deleted_or_moved_are_not_listed(tmp_path: Path) -> None:
    names = ["b-10", "b-9", "a-b-0", "b-9.3c0e9a6fd8ce4dd6b2a7b2f3d8b8b0a1-delete", "plain"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "meta.properties").write_text("version=1\n")
    assert list_partitions(_store(tmp_path)) == [("a-b", 0), ("b", 9), ("b", 10)]


def test_segment_ends_at_the_next_base_offset_and_has_the_snapshot_of_that_offset(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "a-b", 3, _segments())
    for leftover in (
        "00000000000000000000.log.deleted",
        "00000000000000000016.log.swap",
        "00000000000000000008.index.cleaned",
        "00000000000000000099.index",
        "0.log",
        "99999999999999999999.log",
    ):
        (folder / leftover).write_bytes(b"no data")
    found = find_partition(_store(tmp_path), "a-b", 3)
    assert found is not None
    assert [(each.base_offset, each.end_offset) for each in found.segments] == [(0, 8), (8, 16), (16, None)]
    kinds = [[listed.kind for listed in each.objects] for each in found.segments]
    indexes = [SegmentFileKind.LOG, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX]
    assert kinds == [[*indexes, SegmentFileKind.PRODUCER_SNAPSHOT]] * 2 + [indexes]
    of_first = found.segments[0].find_object(SegmentFileKind.PRODUCER_SNAPSHOT)
    assert of_first is not None
    assert of_first.name == "a-b-3/00000000000000000008.snapshot"
    assert [offset for offset, _ in found.snapshots] == [8, 16]


def test_missing_partition_and_invalid_topic_name_are_none(tmp_path: Path) -> None:
    write_partition(tmp_path, "orders", 0, _segments())
    assert find_partition(_store(tmp_path), "orders", 1) is None
    assert find_partition(_store(tmp_path), "../orders", 0) is None
    assert find_partition(_store(tmp_path), "", 0) is None


def test_preallocated_zeros_of_indexes_are_not_read(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "orders", 0, _segments())
    found = find_partition(_store(tmp_path), "orders", 0)
    assert found is not None
    for segment in found.segments:
        offset_index, time_index = (
            find_offset_index(_store(tmp_path), segment),
            find_time_index(_store(tmp_path), segment),
        )
        assert offset_index is not None
        assert time_index is not None
        assert offset_index.offsets.tolist() == [segment.base_offset + 7]
        assert bool(offset_index.padding_bytes) == segment.is_active == bool(time_index.padding_bytes)
    many = b"".join(int(at).to_bytes(8, "big") + int(at).to_bytes(4, "big") for at in range(1, 8_000))
    (folder / "00000000000000000016.timeindex").write_bytes(many.ljust(12 * 100_000, b"\0"))
    found = find_partition(_store(tmp_path), "orders", 0)
    assert found is not None
    time_index = find_time_index(_store(tmp_path), found.segments[2])
    assert time_index is not None
    assert time_index.entry_count == 7_999


def test_damaged_or_missing_index_is_none(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "orders", 0, _segments())
    (folder / "00000000000000000000.timeindex").write_bytes(b"x" * 13)
    (folder / "00000000000000000008.index").unlink()
    found = find_partition(_store(tmp_path), "orders", 0)
    assert found is not None
    assert find_time_index(_store(tmp_path), found.segments[0]) is None
    assert find_offset_index(_store(tmp_path), found.segments[1]) is None


def test_missing_checkpoint_is_empty_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    write_offset_checkpoint(tmp_path / HIGH_WATERMARKS, {("a-b", 1): 5})
    assert read_checkpoint(_store(tmp_path), HIGH_WATERMARK_CHECKPOINT) == {("a-b", 1): 5}
    assert read_checkpoint(_store(tmp_path), LOG_START_OFFSET_CHECKPOINT) == {}
    (tmp_path / HIGH_WATERMARKS).write_bytes(b"0\n1\n")
    with pytest.raises(ArchiveError, match="wrong count in replication-offset-checkpoint") as refused:
        read_checkpoint(_store(tmp_path), HIGH_WATERMARK_CHECKPOINT)
    assert refused.value.object_name == "replication-offset-checkpoint"


def test_errors_of_checkpoint_and_snapshot_name_the_file(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "orders", 0, _segments())
    (folder / "leader-epoch-checkpoint").write_bytes(b"0\n9\n")
    (folder / "00000000000000000008.snapshot").write_bytes(b"torn")
    found = find_partition(_store(tmp_path), "orders", 0)
    assert found is not None
    with pytest.raises(ArchiveError, match="in orders-0/leader-epoch-checkpoint"):
        read_lineage(_store(tmp_path), found)
    with pytest.raises(ArchiveError, match="in orders-0/00000000000000000008.snapshot"):
        read_snapshot(_store(tmp_path), found.snapshots[0][1])


@given(cut=st.integers(0, len(LOG)), zeros=st.sampled_from((0, 0, 1, 5, 61, 300)))
def test_log_that_is_still_written_ends_with_its_last_whole_batch(
    tmp_path_factory: pytest.TempPathFactory, cut: int, zeros: int
) -> None:
    whole = [4 * at for at, end in enumerate([*POSITIONS[1:], len(LOG)]) if end <= cut]
    content = LOG[:cut] + b"\0" * zeros
    is_whole = cut in (*POSITIONS, len(LOG)) and not zeros
    directory = tmp_path_factory.mktemp("log")
    assert _read_offsets(directory, content, is_active=True) == whole
    assert _read_offsets(directory, content, is_active=True, window_bytes=100) == whole
    if not is_whole:
        with pytest.raises(ArchiveError):
            _read_offsets(directory, content, is_active=False)


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("place", [8, 16, 17, 40, 80])
def test_bad_batch_before_good_ones_is_raised_after_the_batches_before_it(
    tmp_path: Path, place: int, is_active: bool
) -> None:
    content = bytearray(LOG)
    content[POSITIONS[2] + place] ^= 0x55
    read = []
    (tmp_path / "log").write_bytes(content)
    log = LogFile(name="log", size_bytes=len(content), base_offset=0, is_active=is_active)
    with pytest.raises(ArchiveError) as refused:  # noqa: PT012  # what is read before counts too
        for window in iter_log_windows(_store(tmp_path), log, from_position=0, limits=LIMITS, window_bytes=1 << 20):
            read += window.headers.base_offset.tolist()
    assert read == [0, 4]
    assert (refused.value.object_name, refused.value.position) == ("log", POSITIONS[2])


def test_complete_log_that_is_shorter_than_listed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(LOG[: POSITIONS[3]])
    log = LogFile(name="log", size_bytes=len(LOG), base_offset=0, is_active=False)
    with pytest.raises(ArchiveError, match="shorter than when it was listed") as refused:
        list(iter_log_windows(_store(tmp_path), log, from_position=0, limits=LIMITS, window_bytes=1 << 20))
    assert refused.value.reason is Reason.LOG_SIZE_DIFFERS


@given(segments=partitions(max_segments=1), window_bytes=st.sampled_from((61, 200, 1 << 20)))
def test_windows_of_any_size_give_every_batch_once(
    tmp_path_factory: pytest.TempPathFactory, segments: list[Segment], window_bytes: int
) -> None:
    batches = segments[0].batches
    directory = tmp_path_factory.mktemp("log")
    read = _read_offsets(directory, build_segment(batches), is_active=False, window_bytes=window_bytes)
    assert read == [batch.base_offset for batch in batches]
