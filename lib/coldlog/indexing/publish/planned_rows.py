"""Plan one topic-partition from its rows of `segments`: `index.partition_plan` for rows of tables.

The planned rows have three kinds of facts: the served columns of segments, the row of `partition_metadata`, and in it
the rows of `txn_segments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields

import pyarrow as pa
import pyarrow.compute as pc

from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.index.partition_plan import Checkpoints, CutMaxima, IncarnationPlan, ServedSegment, plan_partition
from coldlog.index.segment_facts import SegmentFacts
from coldlog.index.txn_segments import ServedEpochs, find_txn_segments
from coldlog.index.unserved_ranges import UnservedRange
from coldlog.indexing.publish.open_at_cuts import find_open_at_cuts
from coldlog.indexing.publish.settled_deletions import without_settled
from coldlog.indexing.publish.settled_runs import JOINED_COUNT, in_order, join_settled_runs
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.tables.definitions.index.txn_segments import TXN_SEGMENTS
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row

SERVED_COLUMNS = (
    "is_within_lineage",
    "served_from_offset",
    "served_to_offset",
    "served_build_number",
    "served_index_depth",
    "served_holes",
    "served_open_from_offset",
    "not_served_reason",
    "previous_running_max_timestamp_ms",
    "running_max_timestamp_ms",
    "broker_previous_running_max_timestamp_ms",
    "broker_running_max_timestamp_ms",
)
TXN_COLUMNS = tuple(name for name in TXN_SEGMENTS.column_names if name not in ("topic", "partition", "topic_id"))


def _of_txn_segments(column: str) -> pa.Field:
    return TXN_SEGMENTS.arrow_schema.field(column).with_nullable(True)


PLANNED_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("topic_id", pa.string()),
        ("start_offset", pa.int64()),
        ("segment_id", pa.string()),
        *(SEGMENTS.arrow_schema.field(name) for name in SERVED_COLUMNS),
        ("is_changed", pa.bool_()),
        ("is_cut_at_end", pa.bool_()),
        ("must_count_from", pa.int64()),
        ("superseded_segment_count", pa.int64()),
        *(
            field.with_nullable(True)
            for field in PARTITION_METADATA.arrow_schema
            if field.name not in PARTITION_METADATA.key
        ),
        ("txn_segments", pa.list_(pa.struct([_of_txn_segments(name) for name in TXN_COLUMNS]))),
    ]
)
"""Rows with a segment_id are those of segments, the others those of partitions."""
READ_COLUMNS = (
    "topic", "partition", "topic_id", "start_offset", "segment_id", "end_offset", "state", "state_source",
    "index_status", "build_number", "index_depth", "counted_from_offset", "counted_max_timestamp_ms",
    "counted_max_timestamp_offset", "metadata_max_timestamp_ms",
    "log_modified_ms", "size_bytes", "record_count", "txn_index_empty", "segment_leader_epochs", "was_copied",
    "announced_end_offset", "announced_max_timestamp_ms", "announced_leader_epochs", "copy_started_ms",
    "event_timestamp_ms", "commit_marker_count", "abort_marker_count", "open_transaction_count", "open_from_offset",
    "superseded_build_numbers", "holes", *SERVED_COLUMNS,
)  # fmt: skip


_CHECKPOINT = "leader_epoch_checkpoint"
_COPIED, _INDEXED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name, IndexStatus.INDEXED.value
_QUARANTINED = IndexStatus.QUARANTINED.value
_Rank = tuple[tuple[bool, int], tuple[bool, int], str]


def plan_all_partitions(
    segments: pa.Table, log_start_offsets: Mapping[tuple[str, int], int], cut_maxima: CutMaxima
) -> pa.Table:
    """Plan every topic-partition from `segments`, in the columns of `PLANNED_SCHEMA`.

    A checkpoint may have hundreds of leader epochs. So only the newest of each incarnation becomes Python's objects.
    """
    segments = in_order(without_settled(segments, SERVED_COLUMNS))
    joined = join_settled_runs(segments, pc.greater(pc.list_value_length(segments[_CHECKPOINT]), 0))
    planned: list[Row] = []
    for (topic, partition), members in _by_partition(joined).items():

        def plan(rows: list[Row], start: int | None = log_start_offsets.get((topic, partition))) -> list[Row]:
            return list(_planned(rows, start, _newest_checkpoints(rows), cut_maxima))

        found = plan(members)
        if _is_run_changed(members, found):
            is_of_partition = pc.and_(pc.equal(segments["topic"], topic), pc.equal(segments["partition"], partition))
            found = plan(_by_partition(segments.filter(is_of_partition))[topic, partition])
        planned += found
    return pa.Table.from_pylist(planned, schema=PLANNED_SCHEMA)


def _by_partition(segments: pa.Table) -> dict[tuple[str, int], list[Row]]:
    rows = segments.drop_columns([_CHECKPOINT]).to_pylist()
    by_partition: dict[tuple[str, int], list[Row]] = {}
    for row, checkpoint in zip(rows, segments[_CHECKPOINT], strict=True):
        row |= {_CHECKPOINT: checkpoint, "has_checkpoint": checkpoint.is_valid}
        by_partition.setdefault((row["topic"], row["partition"]), []).append(row)
    return by_partition


def _is_run_changed(members: Iterable[Row], planned: Iterable[Row]) -> bool:
    """Whether a plan changes a row that stands for several segments."""
    runs = {row["segment_id"] for row in members if row[JOINED_COUNT] > 1}
    return not runs.isdisjoint(row.get("segment_id") for row in planned)


def plan_rows(rows: pa.Table, cut_maxima: CutMaxima) -> pa.Table:
    """Plan one topic-partition from its rows of `segments`. Three columns are added to them: `log_start_offset`;
    `has_checkpoint`; and `checkpoint`, which only the segment with the newest one of its incarnation has."""

    def plan(members: list[Row]) -> list[Row]:
        checkpoints = {row["topic_id"]: _epoch_starts(row["checkpoint"]) for row in members if row["checkpoint"]}
        return list(_planned(members, members[0]["log_start_offset"], checkpoints, cut_maxima))

    rows = in_order(rows)
    joined = join_settled_runs(rows, pc.and_(rows["has_checkpoint"], pc.is_null(rows["checkpoint"]))).to_pylist()
    planned = plan(joined)
    if _is_run_changed(joined, planned):
        planned = plan(rows.to_pylist())
    return pa.Table.from_pylist(planned, schema=PLANNED_SCHEMA)


def _planned(
    members: Iterable[Row],
    log_start_offset: int | None,
    checkpoints: Checkpoints,
    cut_maxima: CutMaxima,
) -> Iterator[Row]:
    """Plan the rows of a topic-partition."""
    by_id = {row["segment_id"]: row for row in members}
    first_row = next(iter(by_id.values()))
    where = {"topic": first_row["topic"], "partition": first_row["partition"]}
    for plan in plan_partition(map(_facts, by_id.values()), log_start_offset, checkpoints, cut_maxima):
        open_at_cuts = find_open_at_cuts(plan, by_id)
        for served in plan.segments:
            row = _segment_row(served, by_id[served.segment.segment_id], open_at_cuts)
            if row["is_changed"] or row["is_cut_at_end"] or row["must_count_from"] is not None:
                yield where | row
        yield where | _partition_row(plan, by_id, open_at_cuts)


def _newest_checkpoints(members: Iterable[Row]) -> Checkpoints:
    """Return the leader epoch checkpoint of the newest segment of each incarnation (`serving_plan._rank`)."""
    newest: dict[str, tuple[_Rank, Sequence[EpochStart]]] = {}
    for row in members:
        rank = _rank(row)
        if rank is not None and (row["topic_id"] not in newest or newest[row["topic_id"]][0] < rank):
            newest[row["topic_id"]] = rank, _epoch_starts(row[_CHECKPOINT].as_py())
    return {topic_id: checkpoint for topic_id, (_, checkpoint) in newest.items()}


def _rank(row: Row) -> _Rank | None:
    entries = row[_CHECKPOINT].values
    checkpointed = entries[-1]["leader_epoch"].as_py() if entries else None
    announced = _last_epoch(row["announced_leader_epochs"])
    if checkpointed is None or row["state"] != _COPIED:
        return None
    if row["index_status"] == _INDEXED:
        return (
            _known_first(_last_epoch(row["segment_leader_epochs"])),
            _known_first(row["end_offset"]),
            row["segment_id"],
        )
    if row["index_status"] == _QUARANTINED and announced in (None, checkpointed):
        end_offset = row["start_offset"] if row["announced_end_offset"] is None else row["announced_end_offset"]
        return _known_first(checkpointed), _known_first(end_offset), row["segment_id"]
    return None


def _known_first(value: int | None) -> tuple[bool, int]:
    """Order None before every number."""
    return value is not None, value or 0


def _last_epoch(entries: Sequence[Row] | None) -> int | None:
    return entries[-1]["leader_epoch"] if entries else None


def _facts(row: Row) -> SegmentFacts:
    is_finished = _is_finished(row)
    is_usable = is_finished and row["index_status"] == _INDEXED
    listed = {name: row[name] for name in ("topic_id", "segment_id", "start_offset")}
    is_deleted = bool(row["was_copied"]) and _is_deletion(row)
    if not is_usable and not is_deleted:
        return SegmentFacts(
            is_usable=False,
            is_finished=is_finished,
            is_unread=_is_unread(row),
            hides_log_start=row["index_status"] == _QUARANTINED and not row["has_checkpoint"],
            written_ms=_written_ms(row),
            deleted_ms=_deleted_ms(row),
            end_offset=-1 if row["announced_end_offset"] is None else _count(row["announced_end_offset"]),
            metadata_max_timestamp_ms=_first_known(row["announced_max_timestamp_ms"]),
            leader_epochs=_epoch_starts(row["announced_leader_epochs"]),
            **listed,
        )
    counted = {name: row[name] for name in ("counted_from_offset", "counted_max_timestamp_ms")} if is_usable else {}
    return SegmentFacts(
        is_usable=is_usable,
        is_finished=is_finished,
        is_deleted=is_deleted,
        written_ms=_written_ms(row),
        deleted_ms=_deleted_ms(row),
        end_offset=max(_count(row["end_offset"]), _count(row["announced_end_offset"])),
        leader_epochs=_epoch_starts(row["announced_leader_epochs"] or row["segment_leader_epochs"]),
        may_be_compacted=_may_be_compacted(row),
        counted_max_timestamp_offset=row["counted_max_timestamp_offset"] if is_usable else None,
        metadata_max_timestamp_ms=_first_known(row["announced_max_timestamp_ms"], row["metadata_max_timestamp_ms"]),
        hides_log_start=is_usable and not row["has_checkpoint"],
        holes=_holes(row["holes"]) if is_usable else (),
        **listed,
        **counted,
    )


def _is_finished(row: Row) -> bool:
    """Whether the segment was copied and not deleted. An orphan is whole, but no event announced it."""
    is_copied: bool = row["state"] == _COPIED
    return is_copied and row["index_status"] != IndexStatus.ORPHAN.value


def _is_unread(row: Row) -> bool:
    """Whether the archive should have the segment, and its records are not indexed. A listed segment with missing files
    may still be uploaded, or damaged: nothing tells which."""
    is_listed_in_part = row["index_status"] == IndexStatus.INCOMPLETE.value and row["state_source"] == "listing"
    return _is_finished(row) or is_listed_in_part


def _may_be_compacted(row: Row) -> bool:
    """Whether compaction may have removed the first batches of a leader epoch: the log has fewer records than offsets,
    and no event tells where its epochs begin."""
    span = _count(row["end_offset"]) + 1 - _count(row["start_offset"])
    return not row["announced_leader_epochs"] and row["record_count"] is not None and row["record_count"] < span


def _written_ms(row: Row) -> int | None:
    """When the segment was written, as in `written_times`."""
    event_ms = None if _is_deletion(row) else row["event_timestamp_ms"]
    return _first_known(row["copy_started_ms"], event_ms, row["log_modified_ms"])


def _deleted_ms(row: Row) -> int | None:
    """When the segment was deleted, as in `written_times`."""
    return _first_known(row["event_timestamp_ms"]) if _is_deletion(row) else None


def _is_deletion(row: Row) -> bool:
    """Whether the deletion of the segment has started or finished."""
    return str(row["state"]).startswith("DELETE_SEGMENT")


def _first_known(*values: object) -> int | None:
    return next((value for value in values if isinstance(value, int)), None)


def _epoch_starts(entries: Sequence[Row] | None) -> tuple[EpochStart, ...]:
    return tuple((entry["leader_epoch"], entry["start_offset"]) for entry in entries or ())


def _holes(holes: Sequence[Row] | None) -> tuple[UnservedRange, ...]:
    """Return the holes that lost offsets."""
    names = [each.name for each in fields(UnservedRange)]
    ranges = [UnservedRange(**{name: hole[name] for name in names}) for hole in holes or ()]
    return tuple(each for each in ranges if each.to_offset is None or each.to_offset >= each.from_offset)


def _segment_row(served: ServedSegment, stored: Row, open_at_cuts: Mapping[str, int | None]) -> Row:
    wanted: Row = {
        "is_within_lineage": served.is_within_lineage,
        "served_from_offset": served.from_offset,
        "served_to_offset": served.to_offset,
        "served_build_number": None if served.from_offset is None else stored["build_number"],
        "served_index_depth": None if served.from_offset is None else stored["index_depth"],
        "served_holes": None if served.from_offset is None else stored["holes"],
        "served_open_from_offset": open_at_cuts.get(served.segment.segment_id),
        "not_served_reason": None if served.reason is None else served.reason.value,
        "previous_running_max_timestamp_ms": served.previous_running_max_timestamp_ms,
        "running_max_timestamp_ms": served.running_max_timestamp_ms,
        "broker_previous_running_max_timestamp_ms": served.broker_previous_running_max_timestamp_ms,
        "broker_running_max_timestamp_ms": served.broker_running_max_timestamp_ms,
    }
    return {
        "topic_id": served.segment.topic_id,
        "start_offset": served.segment.start_offset,
        "segment_id": served.segment.segment_id,
        **wanted,
        "is_changed": any(stored[name] != wanted[name] for name in SERVED_COLUMNS),
        "is_cut_at_end": served.is_cut_at_end,
        "must_count_from": served.must_count_from if served.reason is None else None,
    }


def _partition_row(plan: IncarnationPlan, by_id: Mapping[str, Row], open_at_cuts: Mapping[str, int | None]) -> Row:
    known = [by_id[each.segment.segment_id] for each in plan.segments]
    stored = [row for row in known if not _is_deleted(row)]
    served_segments = [(each, by_id[each.segment.segment_id]) for each in plan.segments if each.reason is None]
    served = [row for _, row in served_segments]
    status = [row["index_status"] for row in stored]
    return {
        "topic_id": plan.topic_id,
        "is_current": plan.is_current,
        "log_start_offset": None if plan.log_start is None else plan.log_start.offset,
        "log_start_source": None if plan.log_start is None else plan.log_start.source.value,
        "leader_epoch_lineage": [
            {"leader_epoch": epoch, "start_offset": offset} for epoch, offset in plan.lineage.entries
        ],
        "earliest_offset": plan.earliest_offset,
        "latest_tiered_offset": plan.latest_tiered_offset,
        "max_timestamp_ms": plan.max_timestamp_ms,
        "max_timestamp_offset": plan.max_timestamp_offset,
        "finished_max_timestamp_ms": plan.finished_max_timestamp_ms,
        "segment_count": sum(map(_segments_in, stored)),
        "served_segment_count": sum(map(_segments_in, served)),
        "unserved_segment_count": len(stored) - len(served),
        "pending_segment_count": status.count(IndexStatus.PENDING.value),
        "quarantined_segment_count": status.count(_QUARANTINED),
        "txn_index_segment_count": sum(row["txn_index_empty"] is False for row in served),
        "txn_index_empty": all(row["txn_index_empty"] for row in served) if served else None,
        "size_bytes": sum(_count(row["size_bytes"]) for row in served),
        "record_count": sum(_count(row["record_count"]) for row in served),
        "gap_count": plan.gap_count,
        "unserved_ranges": [asdict(each) for each in plan.unserved_ranges],
        "superseded_segment_count": sum(row["superseded_build_numbers"] is not None for row in known),
        "txn_segments": [asdict(each) for each in find_txn_segments(map(_served_epochs, served_segments))],
        **_stable_offset(plan, by_id, open_at_cuts),
    }


def _is_deleted(row: Row) -> bool:
    return row["index_status"] == IndexStatus.GONE.value and str(row["state"]).startswith("DELETE")


def _segments_in(row: Row) -> int:
    """For how many segments the row stands."""
    return int(row.get(JOINED_COUNT, 1))


def _served_epochs(served: tuple[ServedSegment, Row]) -> ServedEpochs:
    segment, row = served
    announced = row["announced_leader_epochs"]
    return ServedEpochs(
        segment_id=row["segment_id"],
        start_offset=row["start_offset"],
        end_offset=max(_count(row["end_offset"]), _count(row["announced_end_offset"])),
        served_from_offset=_count(segment.from_offset),
        served_to_offset=_count(segment.to_offset),
        leader_epochs=_epoch_starts(row["segment_leader_epochs"] if announced is None else announced),
        txn_index_empty=row["txn_index_empty"],
    )


def _stable_offset(plan: IncarnationPlan, by_id: Mapping[str, Row], open_at_cuts: Mapping[str, int | None]) -> Row:
    """The transactions that are open where the last served segment stops serving; a reader of committed records stops
    at the oldest. How many are open is not known if not all of them are in the segment's own row."""
    if plan.latest_tiered_offset is None:
        return {"stable_offset": None, "open_transaction_count": None}
    newest = max((each for each in plan.segments if each.reason is None), key=lambda each: each.to_offset or 0)
    row = by_id[newest.segment.segment_id]
    open_from, count = _first_known(row["open_from_offset"]), row["open_transaction_count"]
    if newest.segment.segment_id in open_at_cuts:
        open_from = open_at_cuts[newest.segment.segment_id]
        count = 0 if open_from is None else None
    end = plan.latest_tiered_offset + 1
    return {"stable_offset": end if open_from is None else min(end, open_from), "open_transaction_count": count}


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
