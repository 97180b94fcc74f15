"""One partition, indexed at sidecar depth without Spark, over a store that notes what is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.segment_builder import Batch, Record, Segment
from builders.side_files import extend_lineage
from coldlog.archive.layouts.local_tiered_storage import LocalTieredStorageLayout
from coldlog.formats.limits import DecodeLimits
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.index_files import outcome_rows
from coldlog.indexing.builds.index_rows import IndexPart, iter_rows
from coldlog.indexing.builds.segment_build import BuildOptions, Outcome, build_segments
from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.questions import Answers, Questions
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.lookups.served_index import ServedIndex, list_warehouse_files
from coldlog.model.list_offsets import NEWEST_VERSION
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from stores.noting_store import NotingStore
from tables.scattered_tables import Row, write

LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)
EPOCH_MS = 1_767_607_200_000
ORDERS = TopicPartition(topic="orders", partition=0)


def batch(base_offset: int, *timestamps_ms: int, value: bytes = b"v" * 200) -> Batch:
    return Batch(
        base_offset=base_offset, records=tuple(Record(timestamp_ms=each, value=value) for each in timestamps_ms)
    )


def rising(count: int, base_offset: int = 0) -> Segment:
    """Batches of two records, whose timestamps mostly rise: 100 ms forward, and one record 30 ms back."""
    batches = tuple(
        batch(base_offset + 2 * at, EPOCH_MS + 100 * at + base_offset, EPOCH_MS + 100 * at + base_offset - 30)
        for at in range(count)
    )
    return Segment(batches=batches, index_interval_bytes=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarWorld:
    """The archive, its tables, and the file with the notes."""

    written: list[WrittenSegment]
    layout: LocalTieredStorageLayout
    warehouse: Path
    notes: Path
    outcomes: list[Row]
    rows: dict[str, list[Row]]

    def ask(self, timestamps_ms: Sequence[int], *, broker_compatible: bool = False) -> Answers:
        """The answers to these times, with reads of the archive."""
        index = ServedIndex(list_warehouse_files(str(self.warehouse)), broker_compatible=broker_compatible)
        count = len(timestamps_ms)
        questions = Questions(
            topics=pa.array([ORDERS.topic] * count),
            partitions=np.zeros(count, dtype=np.int64),
            timestamps_ms=np.array(timestamps_ms, dtype=np.int64),
            leader_epochs=np.full(count, -1),
            is_committed=np.zeros(count, dtype=np.bool_),
            versions=np.full(count, NEWEST_VERSION),
            is_invalid=np.zeros(count, dtype=np.bool_),
        )
        try:
            reader = BatchReader(open_layout=lambda: self.layout, limits=LIMITS)
            return ListOffsets(index, batches=reader).answer(questions)
        finally:
            index.close()


def sidecar_world(
    folder: Path,
    segments: Sequence[Segment],
    *,
    stride_bytes: int = 1 << 16,
    depths: Sequence[IndexDepth] = (),
    count_from: Sequence[int] = (),
    announced: Sequence[Row] = (),
    time_index: bytes | None = None,
    offset_index: bytes | None = None,
    served_to: Sequence[int] = (),
) -> SidecarWorld:
    """Write and index the segments of a partition, each at sidecar depth, or at those `depths`. `announced` changes
    what was announced of each, `time_index` and `offset_index` are the contents of the first one's indexes. `served_to`
    are the last offsets that they answer for."""
    written = write_archive(folder / "archive", {ORDERS: segments})
    if time_index is not None:
        written[0].log.with_suffix(".timeindex").write_bytes(time_index)
    if offset_index is not None:
        written[0].log.with_suffix(".index").write_bytes(offset_index)
    notes = folder / "notes"
    root = str(folder / "archive" / "kafka-tiered-storage")
    layout = LocalTieredStorageLayout(store=NotingStore(root=root, uri=root, notes=str(notes)))
    (directory,) = layout.list_partition_directories().directories
    listed = layout.list_segments(directory).segments
    rows: dict[str, list[Row]] = {table.name: [] for table in INDEX_TABLES}
    outcomes: list[Row] = []
    notes.unlink()
    for at, (one, segment) in enumerate(zip(listed, segments, strict=True)):
        options = BuildOptions(
            depth=depths[at] if depths else IndexDepth.SIDECAR,
            limits=LIMITS,
            window_bytes=1 << 20,
            stride_bytes=stride_bytes,
        )
        values: Row = {
            "announced_size_bytes": layout.log_size_bytes(one),
            "announced_end_offset": segment.end_offset,
            "announced_max_timestamp_ms": segment.metadata_max_timestamp_ms,
            "announced_leader_epochs": tuple(extend_lineage((), segment.batches)),
        }
        work = SegmentWork(
            segment=one,
            log_modified_ms=segment.modified_ms,
            count_from_offset=count_from[at] if count_from else one.start_offset,
            replaces_build_numbers=(),
            **(values | (announced[at] if announced else {})),  # type: ignore[arg-type]  # as above
        )
        *parts, ended = build_segments(layout, [work], options)
        assert isinstance(ended, Outcome)
        for table, _, of_table in iter_rows([each for each in parts if isinstance(each, IndexPart)]):
            key: Row = {"topic": ORDERS.topic, "partition": ORDERS.partition}
            key |= {"segment_id": one.segment_id, "build_number": 1}
            rows[table.name] += [{**row, **key} for row in of_table.to_pylist()]
        (outcome,) = outcome_rows([ended.row]).to_pylist()
        objects = [{"kind": each.kind.value, "name": each.name, "size_bytes": each.size_bytes} for each in one.objects]
        outcomes.append({**outcome, "objects": objects})
    ends = served_to or [segment.end_offset for segment in segments]
    _write_tables(folder / "warehouse", ends, segments, outcomes, rows)
    return SidecarWorld(
        written=written, layout=layout, warehouse=folder / "warehouse", notes=notes, outcomes=outcomes, rows=rows
    )


def _write_tables(
    warehouse: Path, ends: Sequence[int], segments: Sequence[Segment], outcomes: list[Row], rows: dict[str, list[Row]]
) -> None:
    """Publish all segments, as materialize does for a log without overlaps."""
    lowest = -(1 << 63)
    largest = [row["counted_max_timestamp_ms"] for row in outcomes]
    running = list(accumulate((each if isinstance(each, int) else lowest for each in largest), max))
    broker = list(accumulate((segment.metadata_max_timestamp_ms for segment in segments), max))
    published = [
        {
            **row,
            "served_build_number": 1,
            "served_index_depth": row["index_depth"],
            "served_from_offset": row["counted_from_offset"],
            "served_to_offset": ends[at],
            "running_max_timestamp_ms": None if reached == lowest else reached,
            "broker_running_max_timestamp_ms": broker[at],
        }
        for at, (row, reached) in enumerate(zip(outcomes, running, strict=True))
    ]
    write(warehouse, SEGMENTS, list(published))
    for table in INDEX_TABLES:
        write(warehouse, table, list(rows[table.name]))
    facts: Row = {
        "topic": ORDERS.topic,
        "partition": ORDERS.partition,
        "topic_id": outcomes[0]["topic_id"],
        "earliest_offset": published[0]["served_from_offset"],
        "latest_tiered_offset": segments[-1].end_offset,
        "max_timestamp_ms": None if running[-1] == lowest else running[-1],
        "unserved_ranges": [],
    }
    write(warehouse, PARTITION_METADATA, [facts])
