"""Test appending to coldlog's own metadata log: order, cuts at any byte, several processes."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coldlog.archive.metadata_log import list_metadata_partitions
from coldlog.archive.metadata_log_reader import iter_metadata_records
from coldlog.archive.metadata_log_writer import MARKER, holding_jobs_lock, writing_metadata_log
from coldlog.archive.stores.local_store import LocalStore
from coldlog.errors import ArchiveError, RetriableError, UsageError
from coldlog.formats.limits import DecodeLimits

LIMITS = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
Read = dict[int, list[tuple[int, int, bytes | None]]]
"""Offset, timestamp and value by partition."""


def read(directory: Path) -> Read:
    """The records, read as the jobs read a metadata topic."""
    store = LocalStore(root=str(directory), uri=str(directory))
    return {
        each.partition: [(r.offset, r.timestamp_ms, r.value) for r in iter_metadata_records(store, each, 0, LIMITS)]
        for each in list_metadata_partitions(store)
    }


def log_of(directory: Path, partition: int = 0) -> Path:
    """The last log file."""
    return max((directory / f"__remote_log_metadata-{partition}").glob("*.log"))


def append(directory: Path, *values: bytes, partition: int = 0, segment_bytes: int = 1 << 20) -> list[int]:
    with writing_metadata_log(str(directory), partition_count=3, segment_bytes=segment_bytes) as writer:
        return [writer.append(partition, [value], 1_000 + number) for number, value in enumerate(values)]


def test_appended_records_are_read_in_order_and_more_can_be_appended(tmp_path: Path) -> None:
    assert append(tmp_path / "log", b"a", b"b") == [0, 1]
    assert append(tmp_path / "log", b"c", partition=2) == [0]
    assert append(tmp_path / "log", b"d") == [2]
    assert read(tmp_path / "log") == {
        0: [(0, 1_000, b"a"), (1, 1_001, b"b"), (2, 1_000, b"d")],
        1: [],
        2: [(0, 1_000, b"c")],
    }


def test_records_appended_together_have_consecutive_offsets(tmp_path: Path) -> None:
    with writing_metadata_log(str(tmp_path), partition_count=1) as writer:
        assert [writer.append(0, [b"a", b"b"], 5), writer.append(0, [b"c"], 6)] == [0, 2]
    assert read(tmp_path)[0] == [(0, 5, b"a"), (1, 5, b"b"), (2, 6, b"c")]


def test_new_log_file_is_created_when_one_is_full(tmp_path: Path) -> None:
    values = [b"%03d" % number * 20 for number in range(20)]
    append(tmp_path, *values[:11], segment_bytes=500)
    append(tmp_path, *values[11:], segment_bytes=500)
    assert [value for _, _, value in read(tmp_path)[0]] == values
    files = sorted((tmp_path / "__remote_log_metadata-0").glob("*.log"))
    assert len(files) == 7
    assert all(each.stat().st_size <= 500 for each in files)


@given(cut=st.integers(0, 400), tail=st.binary(max_size=100), zeros=st.integers(0, 200))
@example(cut=400, tail=bytes(14), zeros=3)
@example(cut=400, tail=bytes(16), zeros=200)
@example(cut=267, tail=bytes(1), zeros=0)
@example(cut=400, tail=bytes(50), zeros=100)
def test_incomplete_tail_is_never_read_and_is_truncated_by_the_next_append(
    tmp_path_factory: pytest.TempPathFactory, cut: int, tail: bytes, zeros: int
) -> None:
    """The file is cut at any byte, or ends in a part of a batch or in blocks that were never written."""
    directory = tmp_path_factory.mktemp("cut")
    values = [b"first", b"second" * 9, b"third"]
    append(directory, *values)
    log = log_of(directory)
    content = log.read_bytes()
    whole = [value for _, _, value in read(directory)[0]]
    log.write_bytes(content[: min(cut, len(content))])
    kept = [value for _, _, value in read(directory)[0]]
    assert kept == whole[: len(kept)]
    torn = log.read_bytes() + content[: min(len(content) - 1, len(tail))] + bytes(zeros)
    log.write_bytes(torn)
    # The bytes after a cut may be the removed ones.
    seen = whole if torn.startswith(content) else kept
    assert append(directory, b"after") == [len(seen)]
    assert [(offset, value) for offset, _, value in read(directory)[0]] == list(enumerate([*seen, b"after"]))


@given(at=st.integers(0, 10_000), flipped=st.integers(1, 255))
def test_damage_before_good_batches_is_refused_and_nothing_is_truncated(
    tmp_path_factory: pytest.TempPathFactory, at: int, flipped: int
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    append(directory, b"first", b"second", b"third")
    log = log_of(directory)
    content = bytearray(log.read_bytes())
    first_bytes = int.from_bytes(content[8:12], "big") + 12
    # After the leader epoch, which no checksum covers.
    content[16 + at % (first_bytes - 16)] ^= flipped
    log.write_bytes(content)
    with pytest.raises(ArchiveError):
        append(directory, b"after")
    assert log.read_bytes() == content


def test_failed_append_leaves_the_log_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with writing_metadata_log(str(tmp_path), partition_count=1) as writer:
        writer.append(0, [b"before"], 1)
        size_bytes = log_of(tmp_path).stat().st_size
        monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]) and _full())
        with pytest.raises(RetriableError, match="No space left"):
            writer.append(0, [b"lost"], 2)
        monkeypatch.setattr(os, "write", write)
        assert log_of(tmp_path).stat().st_size == size_bytes
        assert writer.append(0, [b"after"], 3) == 1
    assert [value for _, _, value in read(tmp_path)[0]] == [b"before", b"after"]


def test_nothing_is_appended_to_a_log_that_could_not_be_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing_metadata_log(str(tmp_path), partition_count=1) as writer:
        writer.append(0, [b"before"], 1)
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", lambda _: _full())
            broken.setattr(os, "ftruncate", lambda *_: _full())
            with pytest.raises(RetriableError):
                writer.append(0, [b"lost"], 2)
        with pytest.raises(RetriableError, match="could not be undone"):
            writer.append(0, [b"after"], 3)


def _full() -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_two_writers_append_after_each_other_and_after_full_files(tmp_path: Path) -> None:
    values = [b"%03d" % number * 20 for number in range(40)]
    with (
        writing_metadata_log(str(tmp_path), partition_count=1, segment_bytes=500) as one,
        writing_metadata_log(str(tmp_path), partition_count=1, segment_bytes=500) as other,
    ):
        writers = [one, one, other, other, other, other, one, other, other, other]
        appended = [writers[number % 10].append(0, [value], 1) for number, value in enumerate(values)]
    assert appended == list(range(40))
    assert [(offset, value) for offset, _, value in read(tmp_path)[0]] == list(enumerate(values))


@given(cut=st.integers(1, 60))
def test_tail_of_another_killed_process_is_truncated_before_the_next_append(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    directory = tmp_path_factory.mktemp("killed")
    with writing_metadata_log(str(directory), partition_count=1) as writer:
        writer.append(0, [b"before"], 1)
        append(directory, b"by another", b"killed in this")
        log = log_of(directory)
        log.write_bytes(log.read_bytes()[:-cut])
        assert writer.append(0, [b"after"], 2) == 2
    assert [value for _, _, value in read(directory)[0]] == [b"before", b"by another", b"after"]


def test_damage_after_own_appends_is_refused_and_not_truncated(tmp_path: Path) -> None:
    with writing_metadata_log(str(tmp_path), partition_count=1) as writer:
        writer.append(0, [b"before"], 1)
        end = log_of(tmp_path).stat().st_size
        append(tmp_path, b"damaged", b"good")
        content = bytearray(log_of(tmp_path).read_bytes())
        content[end + 30] ^= 1
        log_of(tmp_path).write_bytes(content)
        with pytest.raises(ArchiveError):
            writer.append(0, [b"after"], 2)
        assert log_of(tmp_path).read_bytes() == content
        log_of(tmp_path).write_bytes(content[:10])
        with pytest.raises(ArchiveError, match="is shorter than"):
            writer.append(0, [b"after"], 2)


def test_wait_for_the_lock_of_another_process_is_limited(tmp_path: Path) -> None:
    with writing_metadata_log(str(tmp_path), partition_count=1, lock_wait_s=0) as writer:
        with (tmp_path / MARKER).open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(RetriableError, match="for 0 s"):
                writer.append(0, [b"a"], 1)
        assert writer.append(0, [b"a"], 1) == 0


def test_exclusive_job_runs_alone_and_shared_jobs_run_together(tmp_path: Path) -> None:
    log = str(tmp_path)
    with holding_jobs_lock(log, is_shared=False), pytest.raises(UsageError, match="run one job at a time"):
        holding_jobs_lock(log, is_shared=True).__enter__()
    shared = holding_jobs_lock(log, is_shared=True)
    with shared, holding_jobs_lock(log, is_shared=True), pytest.raises(UsageError, match="run one job at a time"):
        holding_jobs_lock(log, is_shared=False).__enter__()


def test_number_of_partitions_never_changes(tmp_path: Path) -> None:
    append(tmp_path, b"a")
    with writing_metadata_log(str(tmp_path), partition_count=50) as writer:
        assert writer.partition_count == 3
        with pytest.raises(UsageError, match="has no partition 3"):
            writer.append(3, [b"b"], 1)


def test_log_of_a_broker_is_never_written(tmp_path: Path) -> None:
    (tmp_path / "__remote_log_metadata-7").mkdir()
    with pytest.raises(UsageError, match="coldlog did not write"):
        append(tmp_path, b"a")
    assert list(tmp_path.rglob("*")) == [tmp_path / "__remote_log_metadata-7"]


def test_empty_marker_is_refused_if_partitions_exist(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_bytes(b"")
    append(tmp_path, b"a")
    (tmp_path / MARKER).write_bytes(b"")
    with pytest.raises(UsageError, match="does not say how many partitions"):
        append(tmp_path, b"b")
