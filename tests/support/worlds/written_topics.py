"""Topics of one written archive, indexed once: overlaps, gaps, compaction, transactions across segments, damage.

A test that damages or removes a log writes the archive anew, in the same bytes, and copies the warehouse.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Record, Segment, abort_marker, commit_marker
from builders.side_files import build_leader_epoch_checkpoint
from coldlog.archive.open_archive import open_archive
from coldlog.indexing.builds.build import build_indexes
from coldlog.indexing.scan.scan import scan_segments
from coldlog.model.states import IndexDepth
from coldlog.tables.delta.warehouse import Warehouse
from planning import planned_for_small_tables
from worlds.golden_warehouse import build_settings, run_pipeline

START_MS = 1_700_000_000_000
LARGE_BATCHES, LARGE_BATCH_RECORDS = 400, 5
Written = dict[str, list[WrittenSegment]]
"""The segments of each topic's partition 0."""


def _batches(first: int, last: int, *, epoch: int = 0, value: bytes = b"v") -> tuple[Batch, ...]:
    """Batches of five records; a record's time is START_MS plus its offset."""
    return tuple(
        Batch(
            base_offset=base,
            records=tuple(Record(timestamp_ms=START_MS + base + at, value=value * 40) for at in range(5)),
            leader_epoch=epoch,
        )
        for base in range(first, last, 5)
    )


def _transactional(first: int, count: int, producer_id: int) -> Batch:
    return Batch(
        base_offset=first,
        records=tuple(Record(timestamp_ms=START_MS, value=b"%d" % producer_id) for _ in range(count)),
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=first,
    )


def _commit(offset: int, producer_id: int) -> Batch:
    return commit_marker(
        offset=offset, timestamp_ms=START_MS, producer_id=producer_id, producer_epoch=0, leader_epoch=0
    )


def _abort(offset: int, producer_id: int) -> Batch:
    return abort_marker(offset=offset, timestamp_ms=START_MS, producer_id=producer_id, producer_epoch=0, leader_epoch=0)


_COMMON = _batches(0, 50)
_THREE = [Segment(batches=_batches(first, first + 50)) for first in (0, 50, 100)]
_OVERLAP = [
    Segment(batches=(*_COMMON, *_batches(50, 100, value=b"d"))),
    Segment(batches=(*_COMMON[8:], *_batches(50, 120, epoch=1, value=b"n"))),
]
_HOLES = [
    Segment(
        batches=(
            Batch(
                base_offset=3,
                records=tuple(Record(timestamp_ms=START_MS, value=b"c", offset=offset) for offset in (4, 7, 12)),
                last_offset_delta=12,
                codec=Codec.ZSTD,
            ),
            Batch(base_offset=20, last_offset_delta=9, stored_max_timestamp_ms=START_MS),
            Batch(
                base_offset=40, records=(Record(timestamp_ms=START_MS + 9, value=b"e"),), log_append_time_ms=START_MS
            ),
        ),
        stored_start_offset=0,
    )
]
_NAMES = [
    Segment(
        batches=(
            Batch(
                base_offset=0,
                records=(
                    Record(timestamp_ms=-1, key=b"", headers=((b"\xff\xfe-a", None), ("ключ".encode(), b""))),
                    Record(timestamp_ms=-5_000_000_000_000, value=b""),
                ),
                codec=Codec.LZ4,
            ),
        )
    )
]
_TRANSACTIONS = [
    Segment(batches=(_transactional(0, 3, 7), _transactional(3, 2, 8), _transactional(5, 2, 7))),
    Segment(batches=(_transactional(7, 2, 8), _commit(9, 8), _transactional(10, 1, 8))),
    Segment(
        batches=(
            _abort(11, 7),
            _transactional(12, 2, 7),
            _commit(14, 7),
            _abort(15, 8),
            Batch(base_offset=16, records=(Record(timestamp_ms=START_MS, value=b"plain"),)),
            _transactional(17, 1, 9),
        )
    ),
]
COMMITTED_OFFSETS = [3, 4, 7, 8, 12, 13, 16]
"""Of `transactions`: of producer 7 the second transaction, of 8 the first; 9's is open where the archive ends."""
_UNDECIDED = [
    Segment(batches=(*_batches(0, 5), _transactional(5, 3, 7), *_batches(8, 13))),
    Segment(batches=(_abort(13, 7), *_batches(14, 19))),
    Segment(batches=(_transactional(19, 1, 7), _commit(20, 7))),
]
_TWICE_DAMAGED = [
    Segment(batches=_batches(0, 50)),
    Segment(batches=(*_batches(50, 90), _transactional(90, 3, 7), _abort(93, 7), *_batches(94, 99))),
    Segment(batches=_batches(99, 149)),
]
_TOPICS = {
    "overlap": _OVERLAP, "gap": _THREE, "bad": _THREE, "bad-end": _THREE, "hurt": _THREE, "short": _THREE,
    "gone": _THREE, "torn": _THREE, "holes": _HOLES, "names": _NAMES, "transactions": _TRANSACTIONS,
    "undecided": _UNDECIDED, "log-and-snapshot": _TWICE_DAMAGED, "log-and-txn-index": _TWICE_DAMAGED,
    "start-unknown": _THREE,
}  # fmt: skip
_SHALLOW = [
    Segment(batches=(Batch(base_offset=offset, records=(Record(timestamp_ms=timestamp_ms),)),))
    for offset, timestamp_ms in ((0, 100), (10, 200), (20, 150), (30, 300))
]
_SHALLOW_COUNT = 2
"""Of topic `shallow` the first segments are indexed at batch depth."""


def write_topics(archive: Path) -> Written:
    """Write all but `large` and `shallow`; segments of `gap` and `undecided` are missing, those of `bad` damaged,
    and `torn` has lost the offsets 0 to 4, 60 to 69, 80 to 84 and 145 to 149. `log-and-snapshot` and
    `log-and-txn-index` have one segment in which two files are damaged, `start-unknown` has lost its newest leader
    epoch checkpoint."""
    places = {TopicPartition(topic=name, partition=0): segments for name, segments in _TOPICS.items()}
    found: Written = {}
    for each in write_archive(archive, places):
        found.setdefault(each.topic_partition.topic, []).append(each)
    successor = found["overlap"][1].stem
    lineage = successor.with_name(f"{successor.name}.leader_epoch_checkpoint")
    lineage.write_bytes(build_leader_epoch_checkpoint([(0, 0), (1, 50)]))
    remove_segment(found["gap"][1])
    remove_segment(found["undecided"][1])
    damage_segment(found["bad"][1], batches=range(10))
    damage_segment(found["bad-end"][2], batches=range(10))
    damage_segment(found["torn"][0], batches=[0])
    damage_segment(found["torn"][1], batches=[2, 3, 6])
    damage_segment(found["torn"][2])
    for topic, side_file in (("log-and-snapshot", ".snapshot"), ("log-and-txn-index", ".txnindex")):
        damage_segment(found[topic][1], batches=[0])
        _cut(found[topic][1], side_file)
    _cut(found["start-unknown"][2], ".leader_epoch_checkpoint")
    return found


def _cut(segment: WrittenSegment, suffix: str) -> None:
    path = segment.stem.with_name(segment.stem.name + suffix)
    path.write_bytes(path.read_bytes()[:-2])


def remove_segment(segment: WrittenSegment) -> None:
    """Remove its log and all files beside it."""
    for path in segment.stem.parent.glob(f"{segment.stem.name}*"):
        path.unlink()


def damage_segment(segment: WrittenSegment, *, batches: Iterable[int] = (9,)) -> int:
    """Damage one byte of the value in some of its ten batches; return where the last of these begins."""
    content, begin = bytearray(segment.log.read_bytes()), 0
    for batch in batches:
        begin = len(content) // 10 * batch
        content[content.index(b"v" * 40, begin)] ^= 1
    segment.log.write_bytes(content)
    return begin


def build_written(spark: SparkSession, folder: Path) -> None:
    """Archive and index all topics, into `archive` and `warehouse`."""
    archive, warehouse = folder / "archive", Warehouse(spark=spark, uri=str(folder / "warehouse"))
    shallow = TopicPartition(topic="shallow", partition=0)
    write_archive(archive, {shallow: _SHALLOW[:_SHALLOW_COUNT]})
    layout = open_archive(str(archive), "local_tiered_storage")
    with planned_for_small_tables(spark):
        warehouse.create_missing()
        scan_segments(warehouse, layout)
        build_indexes(warehouse, layout, build_settings(IndexDepth.BATCH))
    write_archive(archive, {shallow: _SHALLOW, TopicPartition(topic="large", partition=0): [_large()]})
    write_topics(archive)
    run_pipeline(spark, archive, folder / "warehouse")


def _large() -> Segment:
    """A log of 27 MB with batches of many sizes; a record's time is START_MS plus the number of its batch."""
    chance = random.Random(8)
    return Segment(
        batches=tuple(
            Batch(
                base_offset=number * LARGE_BATCH_RECORDS,
                records=tuple(
                    Record(timestamp_ms=START_MS + number, value=chance.randbytes(chance.randint(7_000, 20_000)))
                    for _ in range(LARGE_BATCH_RECORDS)
                ),
            )
            for number in range(LARGE_BATCHES)
        )
    )


def copy_written(written_uri: str, folder: Path) -> tuple[Path, Path, Written]:
    """Return a copy that may be changed: its archive, its warehouse, and its segments."""
    shutil.copytree(written_uri, folder / "warehouse")
    return folder / "archive", folder / "warehouse", write_topics(folder / "archive")
