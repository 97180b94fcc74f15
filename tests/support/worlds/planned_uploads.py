"""planned_uploads: write what replicas have uploaded, and index, plan and publish it in this process, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from builders.archive_writer import ARCHIVE_FOLDER, TopicPartition, write_archive
from builders.segment_builder import Segment, uuid_text_of
from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment
from coldlog.archive.open_archive import open_archive
from coldlog.formats.limits import DecodeLimits
from coldlog.index.partition_plan import CutMaxima
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.index_files import outcome_rows
from coldlog.indexing.builds.index_rows import IndexPart, iter_rows
from coldlog.indexing.builds.segment_build import BuildOptions, Outcome, build_segments
from coldlog.indexing.publish.planned_rows import SERVED_COLUMNS, plan_all_partitions
from coldlog.model.states import IndexDepth, IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.catalog import INDEX_TABLES
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from tables.scattered_tables import write_file
from worlds.replicas import Upload

LIMITS = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)
ORDERS = TopicPartition(topic="orders", partition=0)
_OF_CUT = {
    IndexDepth.RECORD: ("time_index", "timestamp_ms", "offset"),
    IndexDepth.BATCH: ("offset_index", "running_max_timestamp_ms", "last_offset"),
    IndexDepth.SIDECAR: ("interval_index", "running_max_timestamp_ms", "after_offset"),
}
"""Table, time and offset that tell the largest timestamp before a cut."""


def write_uploads(folder: Path, uploads: Sequence[Upload]) -> ArchiveLayout:
    """Write the uploads as segments of orders-0, with the snapshots and checkpoints of their own leaders."""
    target = folder / "archive" / ARCHIVE_FOLDER / ORDERS.folder
    target.mkdir(parents=True)
    for at, upload in enumerate(uploads):
        before = [Segment(batches=each, segment_id=uuid_text_of(f"{at} {n}")) for n, each in enumerate(upload.before)]
        own = Segment(
            batches=upload.batches, segment_id=_segment_id(at), stored_end_offset=upload.end, index_interval_bytes=1
        )
        written = write_archive(folder / "leader", {ORDERS: [*before, own]})[-1]
        for file in written.stem.parent.glob(f"{written.stem.name}*"):
            shutil.copy2(file, target)
        shutil.rmtree(folder / "leader")
    return open_archive(str(folder / "archive"), "local_tiered_storage")


def _segment_id(at: int) -> str:
    return uuid_text_of(f"upload {at}")


@dataclass(slots=True)
class PlannedUploads:
    """The archive of the uploads, at one depth; with or without the events that announced them."""

    uploads: Sequence[Upload]
    layout: ArchiveLayout
    depth: IndexDepth
    has_events: bool

    def publish(self, warehouse: Path, log_start_offset: int | None = None) -> None:
        """Write the tables, as scan, build and materialize do."""
        (directory,) = self.layout.list_partition_directories().directories
        listed = {each.segment_id: each for each in self.layout.list_segments(directory).segments}
        index: dict[str, list[Row]] = {table.name: [] for table in INDEX_TABLES}
        segments = {key: self._built(each, each.start_offset, 1, index) for key, each in listed.items()}
        log_starts = {} if log_start_offset is None else {(ORDERS.topic, ORDERS.partition): log_start_offset}
        planned = _plan(segments, log_starts, {})
        for row in [row for row in planned if row["must_count_from"] is not None]:
            key = str(row["segment_id"])
            for rows in index.values():
                rows[:] = [each for each in rows if each["segment_id"] != key]
            segments[key] = self._built(listed[key], row["must_count_from"], 2, index)
        planned = _plan(segments, log_starts, {})
        cut = {str(row["segment_id"]): row["served_to_offset"] for row in planned if row["is_cut_at_end"]}
        maxima = {key: found for key, to in cut.items() if (found := _maximum(index, segments[key], to)) is not None}
        planned = _plan(segments, log_starts, maxima)
        for row in planned:
            if row["segment_id"] is not None and row["is_changed"]:
                segments[row["segment_id"]] |= {name: row[name] for name in SERVED_COLUMNS}
        (partition,) = [row for row in planned if row["segment_id"] is None]
        place = {"topic": ORDERS.topic, "partition": ORDERS.partition, "topic_id": partition["topic_id"]}
        write_file(warehouse, SEGMENTS, list(segments.values()))
        write_file(warehouse, PARTITION_METADATA, [{name: partition[name] for name in PARTITION_METADATA.column_names}])
        write_file(warehouse, TXN_SEGMENTS, [{**place, **each} for each in partition["txn_segments"]])
        write_file(warehouse, QUARANTINE, [])
        for table in INDEX_TABLES:
            write_file(warehouse, table, index[table.name])

    def _built(self, listed: ListedSegment, count_from: int, number: int, index: dict[str, list[Row]]) -> Row:
        facts = self._announced(listed) if self.has_events else {}
        work = SegmentWork(
            segment=listed,
            log_modified_ms=1,
            count_from_offset=count_from,
            replaces_build_numbers=(),
            **facts,
        )
        options = BuildOptions(depth=self.depth, limits=LIMITS, window_bytes=1 << 20, stride_bytes=1 << 10)
        *parts, ended = build_segments(self.layout, [work], options)
        assert isinstance(ended, Outcome)
        of_segment = {"topic": ORDERS.topic, "partition": ORDERS.partition, "topic_id": listed.topic_id}
        key: Row = {**of_segment, "segment_id": listed.segment_id, "build_number": number}
        for table, _, rows in iter_rows([each for each in parts if isinstance(each, IndexPart)]):
            index[table.name] += [{**row, **key} for row in rows.to_pylist()]
        (outcome,) = outcome_rows([ended.row]).to_pylist()
        assert outcome["outcome"] == "indexed", outcome
        epochs = facts.get("announced_leader_epochs")
        row: Row = {
            **outcome,
            **facts,
            "announced_leader_epochs": epochs and [{"leader_epoch": each, "start_offset": at} for each, at in epochs],
            "objects": [
                {"kind": each.kind.value, "name": each.name, "size_bytes": each.size_bytes} for each in listed.objects
            ],
            "state": RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name,
            "state_source": "events" if facts else "listing",
            "index_status": IndexStatus.INDEXED.value,
            "build_number": number,
            "is_listed": True,
            "missing_kinds": [],
            "log_modified_ms": 1,
            "was_copied": True if facts else None,
        }
        return {name: row.get(name) for name in SEGMENTS.column_names}

    def _announced(self, listed: ListedSegment) -> Row:
        """The facts of the segment's first event."""
        (upload,) = [each for at, each in enumerate(self.uploads) if _segment_id(at) == listed.segment_id]
        return {
            "announced_size_bytes": self.layout.log_size_bytes(listed),
            "announced_end_offset": upload.end,
            "announced_max_timestamp_ms": max(batch.max_timestamp_ms for batch in upload.batches),
            "announced_leader_epochs": tuple(upload.epochs),
        }


def _plan(segments: dict[str, Row], log_starts: Mapping[tuple[str, int], int], maxima: CutMaxima) -> list[Row]:
    table = pa.Table.from_pylist(list(segments.values()), schema=SEGMENTS.arrow_schema)
    rows: list[Row] = plan_all_partitions(table, log_starts, maxima).to_pylist()
    return rows


def _maximum(index: Mapping[str, Sequence[Row]], segment: Row, to_offset: int) -> tuple[int, int | None] | None:
    """The largest timestamp of the segment up to a cut, and its offset if the depth tells it."""
    depth = IndexDepth(segment["index_depth"])
    table, time, offset = _OF_CUT[depth]
    found = [
        (row[time], row[offset] if depth is IndexDepth.RECORD else None)
        for row in index[table]
        if row["segment_id"] == segment["segment_id"]
        and row[time] is not None
        and row[offset] + (depth is IndexDepth.SIDECAR) <= to_offset
    ]
    return max(found, key=lambda each: each[0], default=None)
