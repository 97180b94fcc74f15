"""Test that a transaction index may be an empty file, and that other side files that are empty are reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment, SegmentFileKind
from coldlog.archive.open_archive import open_archive
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.limits import DecodeLimits
from coldlog.index.segment_summary import SegmentSummary
from coldlog.indexing.builds.side_files import SideFiles, read_side_files
from coldlog.model.states import IndexDepth
from contents.walked_logs import walk_log
from worlds.kafka_sample import TIERED_STORAGE, true_segments

LIMITS = DecodeLimits(max_batch_bytes=64 << 20, max_decompressed_bytes=64 << 20)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The stem of a segment of the sample that has commits and no abort, copied to its own archive."""
    segment = next(
        each for each in true_segments("COPY_SEGMENT_FINISHED") if each["topic"] == "payments" and not each["aborted"]
    )
    stem = TIERED_STORAGE / segment["path"]
    folder = tmp_path / "kafka-tiered-storage" / stem.parent.name
    folder.mkdir(parents=True)
    for file in stem.parent.glob(stem.name + ".*"):
        shutil.copy(file, folder / file.name)
    return folder / stem.name


def listed(stem: Path) -> tuple[ArchiveLayout, ListedSegment]:
    layout = open_archive(str(stem.parent.parent), "local_tiered_storage")
    (directory,) = layout.list_partition_directories().directories
    (segment,) = layout.list_segments(directory).segments
    return layout, segment


def read_and_walk(stem: Path) -> tuple[SideFiles, SegmentSummary]:
    layout, segment = listed(stem)
    files = read_side_files(layout, segment)
    log = layout.read_log_range(segment, 0, layout.log_size_bytes(segment))
    summary = walk_log(
        bytes(log), start_offset=segment.start_offset, depth=IndexDepth.BATCH, add=files.offset_index_check.add
    )
    return files, summary


def read_and_agree(stem: Path) -> None:
    files, summary = read_and_walk(stem)
    files.require_agreement(summary)


def test_an_empty_transaction_index_counts_like_a_missing_one(copied: Path) -> None:
    without, summary = read_and_walk(copied)
    assert without.find_txn_index_empty(summary, has_holes=False) is True
    copied.with_name(copied.name + ".txnindex").touch()
    layout, segment = listed(copied)
    assert layout.has_file(segment, SegmentFileKind.TXN_INDEX)
    files, summary = read_and_walk(copied)
    files.require_agreement(summary)
    assert files.find_txn_index_empty(summary, has_holes=False) is True


@pytest.mark.parametrize(
    ("suffix", "reason"),
    [
        (".timeindex", Reason.TIME_INDEX_INVALID),
        (".leader_epoch_checkpoint", Reason.LEADER_EPOCH_CHECKPOINT_INVALID),
        (".snapshot", Reason.PRODUCER_SNAPSHOT_INVALID),
    ],
)
def test_an_emptied_file_is_reported_with_its_name(copied: Path, suffix: str, reason: Reason) -> None:
    copied.with_name(copied.name + suffix).write_bytes(b"")
    with pytest.raises(ArchiveError) as caught:
        read_and_agree(copied)
    assert caught.value.reason is reason
    assert caught.value.object_name.endswith(suffix)
