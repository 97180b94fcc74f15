"""Test how segments of a mirror are read: cut or growing logs, side files that are missing or from another moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from builders.log_directory_writer import write_partition
from builders.mirror_writer import SIDE_FILES, write_mirror
from builders.segment_builder import Batch, Record, Segment
from builders.side_files import build_leader_epoch_checkpoint
from coldlog.archive.layouts.layout import SegmentFileKind
from coldlog.archive.open_archive import open_archive
from coldlog.formats.kafka.txn_index import TxnIndex
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.index_files import outcome_rows
from coldlog.indexing.builds.index_rows import iter_rows
from coldlog.indexing.builds.segment_build import BuildOptions, Outcome, build_segments
from coldlog.model.states import IndexDepth
from tables.work_rows import mirrored_works
from worlds.kafka_sample import true_segments

OPTIONS = BuildOptions(
    depth=IndexDepth.RECORD,
    limits=DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26),
    window_bytes=1 << 20,
)
TRANSACTIONAL = frozenset({"payments", "payments.live", "from-librdkafka"})
Rows = list[dict[str, object]]


def build(mirror: Path) -> tuple[Rows, Rows]:
    """Outcomes and rows of `txn_index` of every segment, in order."""
    layout = open_archive(str(mirror), "log_directories")
    outcomes, aborted = Rows(), Rows()
    for directory in layout.list_partition_directories().directories:
        works = mirrored_works(layout.list_segments(directory).segments)
        for part in build_segments(layout, works, OPTIONS):
            if isinstance(part, Outcome):
                outcomes += outcome_rows([part.row]).to_pylist()
            elif isinstance(part, TxnIndex):
                ((_, _, rows),) = iter_rows([part])
                where = {"topic": directory.topic, "partition": directory.partition}
                aborted += [where | entry for entry in rows.to_pylist()]
    return outcomes, aborted


def batches(first: int, count: int, *, epoch: int = 0) -> tuple[Batch, ...]:
    """Batches of two records each."""
    record = Record(timestamp_ms=first + 1, value=b"v" * 40, headers=((b"h", b"x"),))
    return tuple(
        Batch(base_offset=first + 2 * number, records=(record, record), leader_epoch=epoch) for number in range(count)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition of two segments, offsets 0 to 7 and 8 to 15."""
    segments = [Segment(batches=batches(first, 4, epoch=first // 8), index_interval_bytes=0) for first in (0, 8)]
    return write_partition(tmp_path / "mirror", "orders", 0, segments)


def outcomes_of(folder: Path) -> Rows:
    return build(folder.parent)[0]


LAST = "00000000000000000008"


@pytest.mark.parametrize(
    ("kept", "added", "end_offset"),
    [
        (None, b"", 15),
        (None, bytes(5_000), 15),
        (-1, b"", 13),
        (-40, bytes(100), 13),
        (61, b"", None),
    ],
)
def test_last_log_counts_up_to_its_last_whole_batch(
    folder: Path, kept: int | None, added: bytes, end_offset: int | None
) -> None:
    """Its indexes may be from another moment, so they are not compared with it."""
    log = folder / f"{LAST}.log"
    log.write_bytes(log.read_bytes()[:kept] + added)
    first, last = outcomes_of(folder)
    assert (first["outcome"], first["end_offset"]) == ("indexed", 7)
    if end_offset is None:
        assert (last["outcome"], last["reason"]) == ("quarantined", "log_empty")
    else:
        assert (last["outcome"], last["end_offset"]) == ("indexed", end_offset)


def test_damage_in_the_last_log_before_good_batches_is_reported(folder: Path) -> None:
    log = folder / f"{LAST}.log"
    content = bytearray(log.read_bytes())
    content[70] ^= 1
    log.write_bytes(content)
    assert [outcome["outcome"] for outcome in outcomes_of(folder)] == ["indexed", "quarantined"]


def test_earlier_log_must_be_complete(folder: Path) -> None:
    log = folder / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1])
    assert [outcome["outcome"] for outcome in outcomes_of(folder)] == ["quarantined", "indexed"]


def test_lineage_ends_with_the_segment_and_has_the_epochs_of_the_log(folder: Path) -> None:
    """The checkpoint was copied at another time than the logs: later than the first one, earlier than the last."""
    entries = [{"leader_epoch": 0, "start_offset": 0}, {"leader_epoch": 1, "start_offset": 8}]
    checkpoint = folder / "leader-epoch-checkpoint"
    for lineage in ([(0, 0), (1, 8), (2, 16)], [(0, 0)]):
        checkpoint.write_bytes(build_leader_epoch_checkpoint(lineage))
        first, last = outcomes_of(folder)
        assert (first["leader_epoch_checkpoint"], last["leader_epoch_checkpoint"]) == (entries[:1], entries)
    for says_nothing in (build_leader_epoch_checkpoint([]), build_leader_epoch_checkpoint([(2, 16)])):
        checkpoint.write_bytes(says_nothing)
        assert [outcome["leader_epoch_checkpoint"] for outcome in outcomes_of(folder)] == [[], []]
    checkpoint.unlink()
    assert [outcome["leader_epoch_checkpoint"] for outcome in outcomes_of(folder)] == [[], []]


def test_only_the_log_is_needed(folder: Path) -> None:
    wanted = ("end_offset", "max_timestamp_ms", "record_count", "segment_leader_epochs", "txn_index_empty")
    whole = [[outcome[name] for name in wanted] for outcome in outcomes_of(folder)]
    for path in folder.iterdir():
        if path.suffix != ".log":
            path.unlink()
    outcomes = outcomes_of(folder)
    assert [outcome["outcome"] for outcome in outcomes] == ["indexed", "indexed"]
    assert [[outcome[name] for name in wanted] for outcome in outcomes] == whole


@pytest.mark.parametrize("kinds", [SIDE_FILES, frozenset[SegmentFileKind]()])
def test_aborts_and_open_transactions_are_as_in_the_broker_with_or_without_its_files(
    tmp_path: Path, kinds: Collection[SegmentFileKind]
) -> None:
    """Compare with the broker's own transaction indexes; 17 of these transactions began in an earlier segment."""
    write_mirror(tmp_path, topics=TRANSACTIONAL, kinds=kinds)
    outcomes, aborted = build(tmp_path)
    true = [
        (segment["topic"], segment["partition"], entry["pid"], entry["first"], entry["last"])
        for segment in true_segments("COPY_SEGMENT_FINISHED")
        for entry in segment["aborted"]
    ]
    assert len(true) == 108
    assert sorted(map(_abort, aborted)) == sorted(true)
    assert {outcome["outcome"] for outcome in outcomes} == {"indexed"}
    unknown = [outcome for outcome in outcomes if outcome["txn_index_empty"] is None]
    assert all(outcome["abort_marker_count"] for outcome in unknown)


def _abort(row: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("topic", "partition", "producer_id", "first_offset", "last_offset"))


def test_damaged_segment_does_not_affect_the_next_segment(tmp_path: Path) -> None:
    segments = write_mirror(tmp_path, topics={"payments"}, kinds=())
    victim, behind = (segment for segment in segments[3:5])
    log = tmp_path / "payments-0" / f"{victim['start_offset']:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    outcome = {row["start_offset"]: row["outcome"] for row in build(tmp_path)[0] if row["partition"] == 0}
    assert (outcome[victim["start_offset"]], outcome[behind["start_offset"]]) == ("quarantined", "indexed")
