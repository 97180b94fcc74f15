"""broken_tables: for every expectation, tables that are broken so that it fails.

A world is one partition of the sample archive in all tables, under a topic of its own; each breakage changes one world.
All worlds stand side by side in the same tables, so the suites are run once: an expectation must name the world that
was broken for it, and never the one that was left whole.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.delta.warehouse import Warehouse

Row = dict[str, Any]
World = dict[str, list[Row]]
Breakage = Callable[[World], None]

WHOLE = "<whole>"
_TOPIC, _PARTITION = "payments", 1
_BY_PARTITION = (
    "segments", "offset_index", "time_index", "txn_index", "partition_metadata", "txn_segments", "segment_events",
)  # fmt: skip


def world_of(warehouse: Warehouse) -> World:
    """The partition's rows of every table, and a row in each table that a sound archive leaves empty."""
    tables = {table.name: table for table in ALL_TABLES}
    condition = f"topic = '{_TOPIC}' AND partition = {_PARTITION}"
    world: World = {
        name: warehouse.read(tables[name]).where(condition).orderBy(*_order(name)).toArrow().to_pylist()
        for name in _BY_PARTITION
    }
    served = [row for row in world["segments"] if row["served_from_offset"] is not None]
    world["segments"] = served + [row for row in world["segments"] if row["served_from_offset"] is None]
    for number, event in enumerate(world["segment_events"]):
        event["metadata_offset"] = number
    one = {"topic": _TOPIC, "partition": _PARTITION, "topic_id": served[0]["topic_id"]}
    place = {**one, "start_offset": served[0]["start_offset"], "segment_id": served[0]["segment_id"]}
    seen = {"first_seen_ms": 5, "last_seen_ms": 6, "attempt_count": 1}
    bad = {"reason": "crc_mismatch", "message": "bad", "object_name": "o", "position": 1, "expected": "", "found": ""}
    told = {"expected": "2 bytes", "found": "1 byte", "advice": "restore it", "first_seen_ms": 5}
    log_start = world["partition_metadata"][0]["log_start_offset"]
    world |= {
        "interval_index": [],
        "quarantine": [{**place, "topic": "__remote_log_metadata", "segment_id": "", **bad, **seen}],
        "discrepancies": [{**place, "kind": "size_differs", "severity": "error", **told}],
        "log_start_offsets": [{**one, "log_start_offset": log_start}],
        "unrecognized_objects": [{"name": "", "size_bytes": 0, "why": "no segment"}],
        "job_runs": [
            {"run_id": "", "job": "scan_segments", "started_ms": 1, "finished_ms": 2, "outcome": "succeeded",
             "error": None, "summary": "{}"}
        ],
        "list_offsets_expirations": [
            {**one, "run_id": "", "expired_ms": 1, "request_count": 1, "timeout_ms": 1}
        ],
        "validation_results": [
            {"run_id": "", "table_name": "segments", "expectation_id": "x", "validated_ms": 1, "severity": "critical",
             "success": True, "description": "", "view_name": "", "row_count": 1, "element_count": 1,
             "unexpected_count": 0, "sample": None, "problem": None, "table_version": 1, "read_versions": "{}",
             "after_build_number": -1, "build_number": 1, "suite_digest": ""}
        ],
    }  # fmt: skip
    return world


def _order(table: str) -> tuple[str, ...]:
    by_position = {"segments": ("start_offset",), "offset_index": ("base_offset",), "time_index": ("offset",)}
    others = {"txn_index": ("last_offset",), "txn_segments": ("to_offset",), "partition_metadata": ("topic_id",)}
    return (by_position | others).get(table, ("metadata_partition", "metadata_offset"))


def place_worlds(whole: World, breakages: dict[str, Breakage]) -> World:
    """All worlds in one: `WHOLE`, and one under the name `<expectation>` of each breakage."""
    everything: World = {name: [] for name in whole}
    for number, (name, breakage) in enumerate([(WHOLE, _leave), *sorted(breakages.items())]):
        world = copy.deepcopy(whole)
        breakage(world)
        _name(world, name if name == WHOLE else f"<{name}>", number)
        for table, rows in world.items():
            everything[table] += rows
    return everything


def _leave(world: World) -> None:
    """Breaks nothing."""


def _name(world: World, name: str, number: int) -> None:
    for table, rows in world.items():
        for row in rows:
            if row.get("topic") == _TOPIC:
                row["topic"] = name
            if table == "segment_events":
                row["metadata_partition"] = number
            if table == "quarantine" and row["topic"] == "__remote_log_metadata":
                row["segment_id"] = f"{name}{row['segment_id']}"
            for key in ("run_id", "name"):
                if key in row:
                    row[key] = f"{name}{row[key]}"


def change(table: str, at: int | Callable[[Row], bool] = 1, **values: object) -> Breakage:
    """Sets columns of one row: that of a number, or the first for which something is true. A value may be a function of
    the row; the second row is one that has another before it."""

    def breakage(world: World) -> None:
        rows = world[table]
        row = rows[at] if isinstance(at, int) else next(each for each in rows if at(each))
        row |= {name: value(row) if callable(value) else value for name, value in values.items()}

    return breakage


def repeat(table: str) -> Breakage:
    """The first row a second time."""
    return lambda world: world[table].append(dict(world[table][0]))


def remove(table: str, at: int | Callable[[Row], bool] = 0) -> Breakage:
    """One row less."""

    def breakage(world: World) -> None:
        rows = world[table]
        rows.pop(at if isinstance(at, int) else next(i for i, each in enumerate(rows) if at(each)))

    return breakage


def more(column: str, by: int = 1) -> Callable[[Row], int]:
    """The value of a column, and `by`."""
    return lambda row: row[column] + by


def _twice_the_last(column: str) -> Callable[[Row], object]:
    return lambda row: [*row[column], row[column][-1]]


def _has_aborts(row: Row) -> bool:
    return row["txn_index_empty"] is False


def _follows_with_records(row: Row) -> bool:
    return bool(row["last_offset"] > row["base_offset"] and row["previous_running_max_timestamp_ms"] is not None)


def _raises(row: Row) -> bool:
    before, after = row["previous_running_max_timestamp_ms"], row["running_max_timestamp_ms"]
    return before is not None and after > before


def _remove_lone_stair(world: World) -> None:
    batches = [row["batch_base_offset"] for row in world["time_index"]]
    remove("time_index", lambda row: batches.count(row["batch_base_offset"]) == 1)(world)


def _meet_within_epoch(column: str) -> Breakage:
    def breakage(world: World) -> None:
        rows = world["txn_segments"]
        before, row = next((a, b) for a, b in itertools.pairwise(rows) if a["leader_epoch"] == b["leader_epoch"])
        row[column] = before["to_offset"]

    return breakage


def _end_before_served(world: World) -> None:
    row = world["txn_segments"][-1]
    segment = next(each for each in world["segments"] if each["segment_id"] == row["segment_id"])
    row["to_offset"] = segment["served_from_offset"] - 1


def _end_behind_served(world: World) -> None:
    row = world["txn_segments"][-1]
    segment = next(each for each in world["segments"] if each["segment_id"] == row["segment_id"])
    row["to_offset"] = segment["served_to_offset"] + 1


def _leave_segment(column_of_segment: str, by: int) -> Breakage:
    """An aborted transaction that ends outside its segment."""

    def breakage(world: World) -> None:
        row = world["txn_index"][-1]
        segment = next(each for each in world["segments"] if each["segment_id"] == row["segment_id"])
        row["last_offset"] = segment[column_of_segment] + by

    return breakage


def _quarantine_one_unseen(world: World) -> None:
    world["segments"][0]["index_status"] = "quarantined"


def _quarantine_one_indexed(world: World) -> None:
    segment = world["segments"][0]
    place = {name: segment[name] for name in ("topic", "partition", "topic_id", "start_offset", "segment_id")}
    world["quarantine"].append({**world["quarantine"][0], **place})


def _at_sidecar_depth(breakage: Breakage) -> Breakage:
    """A segment of two intervals instead of batches, then broken."""

    def broken(world: World) -> None:
        segment = world["segments"][1]
        segment |= {"index_depth": "sidecar", "served_index_depth": "sidecar"}
        names = ("topic", "partition", "topic_id", "segment_id", "build_number")
        middle, bytes_, latest = segment["start_offset"] + 5, segment["size_bytes"], segment["counted_max_timestamp_ms"]
        first = {
            **{name: segment[name] for name in names},
            "after_offset": segment["start_offset"] - 1,
            "last_offset": middle,
            "position": 0,
            "size_bytes": bytes_ // 2,
            "previous_running_max_timestamp_ms": None,
            "running_max_timestamp_ms": latest - 1,
        }
        second = {
            **first,
            "after_offset": middle,
            "last_offset": segment["end_offset"],
            "position": bytes_ // 4,
            "size_bytes": bytes_ - bytes_ // 4,
            "previous_running_max_timestamp_ms": latest - 1,
            "running_max_timestamp_ms": latest,
        }
        world["interval_index"] = [first, second]
        breakage(world)

    return broken


def _interval(**values: object) -> Breakage:
    return _at_sidecar_depth(change("interval_index", 1, **values))


def _partition(**values: object) -> Breakage:
    return change("partition_metadata", 0, **values)


def _one_more(*columns: str) -> dict[str, Breakage]:
    return {f"partition_metadata.{column}_is_counted": _partition(**{column: more(column)}) for column in columns}


BREAKAGES: dict[str, Breakage] = {
    "segments.key_is_unique": repeat("segments"),
    "segments.state_is_kafkas": change("segments", state="LOST"),
    "segments.state_source_is_known": change("segments", state_source="rumour"),
    "segments.index_status_is_known": change("segments", index_status="lost"),
    "segments.index_depth_is_known": change("segments", index_depth="deep"),
    "segments.not_served_reason_is_known": change("segments", not_served_reason="idle"),
    "segments.status_agrees_with_objects": change("segments", is_listed=False),
    "segments.indexed_is_complete": change("segments", codecs=None),
    "segments.offsets_do_not_end_before_start": change("segments", end_offset=more("start_offset", -1)),
    "segments.offsets_lie_inside": change("segments", max_timestamp_offset=more("end_offset")),
    "segments.counted_from_start_on": change("segments", counted_from_offset=more("start_offset", -1)),
    "segments.timestamps_span_forward": change("segments", min_timestamp_ms=more("max_timestamp_ms")),
    "segments.counted_max_is_within_max": change("segments", counted_max_timestamp_ms=more("max_timestamp_ms")),
    "segments.batches_are_there": change("segments", batch_count=0),
    "segments.record_count_is_not_negative": change("segments", record_count=-1),
    "segments.control_batches_are_batches": change("segments", control_batch_count=more("batch_count")),
    "segments.markers_are_in_control_batches": change("segments", commit_marker_count=more("control_batch_count")),
    "segments.aborts_agree_with_markers": change("segments", _has_aborts, txn_index_empty=True),
    "segments.open_transactions_have_an_offset": change("segments", open_transaction_count=3, open_from_offset=None),
    "segments.leader_epochs_rise": change("segments", segment_leader_epochs=_twice_the_last("segment_leader_epochs")),
    "segments.checkpoint_rises": change("segments", leader_epoch_checkpoint=_twice_the_last("leader_epoch_checkpoint")),
    "segments.build_number_is_positive": change("segments", build_number=0),
    "segments.superseded_build_is_older": change(
        "segments", superseded_build_numbers=lambda row: [row["build_number"]]
    ),
    "segments.objects_have_name_and_size": change(
        "segments", objects=[{"kind": "log", "name": "", "size_bytes": 1}]
    ),
    "segments.served_or_not": change("segments", served_to_offset=None),
    "segments.served_build_is_kept": change("segments", served_build_number=more("build_number", -1)),
    "segments.served_range_is_not_empty": change("segments", served_to_offset=more("served_from_offset", -1)),
    "segments.served_from_within": change("segments", served_from_offset=more("start_offset", -1)),
    "segments.served_to_within": change("segments", served_to_offset=more("announced_end_offset")),
    "segments.materialized": change("segments", index_status="gone"),
    "segments.served_ranges_do_not_overlap": change("segments", served_from_offset=more("served_from_offset", -1)),
    "segments.served_ranges_touch": change("segments", served_from_offset=more("served_from_offset")),
    "segments.running_max_is_linked": change(
        "segments", previous_running_max_timestamp_ms=more("previous_running_max_timestamp_ms")
    ),
    "segments.running_max_never_falls": change(
        "segments", running_max_timestamp_ms=more("previous_running_max_timestamp_ms", -1)
    ),
    "segments.running_max_is_that_of_data": change(
        "segments", running_max_timestamp_ms=more("running_max_timestamp_ms")
    ),
    "segments.broker_running_max_is_linked": change(
        "segments", broker_previous_running_max_timestamp_ms=more("broker_previous_running_max_timestamp_ms")
    ),
    "segments.broker_running_max_never_falls": change(
        "segments", broker_running_max_timestamp_ms=more("broker_previous_running_max_timestamp_ms", -1)
    ),
    "segments.broker_running_max_is_that_of_metadata": change(
        "segments", broker_running_max_timestamp_ms=more("broker_running_max_timestamp_ms")
    ),
    "segments.state_was_announced": change("segments", state="DELETE_SEGMENT_STARTED"),
    "segments.end_offset_was_announced": change("segments", announced_end_offset=more("announced_end_offset", 7)),
    "segments.no_event_was_dropped": change("segments", dropped_event_count=1),
    "segments.dropped_events_are_events": change("segments", dropped_event_count=99),
    "offset_index.key_is_unique": repeat("offset_index"),
    "offset_index.offsets_ascend": change("offset_index", base_offset=more("base_offset", -1)),
    "offset_index.offsets_touch": change("offset_index", _follows_with_records, base_offset=more("last_offset")),
    "offset_index.offsets_do_not_end_before_start": change("offset_index", last_offset=more("base_offset", -1)),
    "offset_index.positions_touch": change("offset_index", position=more("position")),
    "offset_index.running_max_never_falls": change(
        "offset_index", running_max_timestamp_ms=more("previous_running_max_timestamp_ms", -1)
    ),
    "offset_index.running_max_is_linked": change(
        "offset_index", previous_running_max_timestamp_ms=more("previous_running_max_timestamp_ms")
    ),
    "offset_index.running_max_is_within_headers": change("offset_index", _raises, max_timestamp_ms=0),
    "offset_index.leader_epoch_never_falls": change("offset_index", leader_epoch=-1),
    "offset_index.batch_has_a_header": change("offset_index", size_bytes=60),
    "offset_index.records_fit_offsets": change("offset_index", record_count=1_000_000),
    "offset_index.codec_is_known": change("offset_index", codec="zip"),
    "offset_index.timestamp_type_is_known": change("offset_index", timestamp_type="Sundial"),
    "offset_index.transactional_batch_has_a_producer": change("offset_index", is_transactional=True, producer_id=-1),
    "offset_index.rows_belong_to_a_segment": change("offset_index", build_number=0),
    "offset_index.topic_id_is_the_segments": change("offset_index", topic_id="another"),
    "offset_index.batch_count_is_the_segments": remove("offset_index", -1),
    "offset_index.record_count_is_the_segments": change("offset_index", record_count=0),
    "offset_index.control_batch_count_is_the_segments": change("segments", control_batch_count=1_000),
    "offset_index.end_offset_is_the_segments": change("segments", end_offset=more("end_offset")),
    "offset_index.size_is_the_segments": change("segments", size_bytes=more("size_bytes")),
    "offset_index.batches_lie_in_the_log": change("segments", size_bytes=1),
    "offset_index.counted_max_timestamp_is_the_segments": change(
        "segments", counted_max_timestamp_ms=more("counted_max_timestamp_ms")
    ),
    "offset_index.max_timestamp_is_the_segments": change("segments", max_timestamp_ms=more("max_timestamp_ms")),
    "offset_index.metadata_max_timestamp_is_the_segments": change(
        "segments", metadata_max_timestamp_ms=more("metadata_max_timestamp_ms")
    ),
    "offset_index.codecs_are_the_segments": change("segments", codecs=["zip"]),
    "offset_index.leader_epochs_are_the_segments": change(
        "segments", segment_leader_epochs=[{"leader_epoch": 77, "start_offset": 0}]
    ),
    "offset_index.start_offset_is_within": change("offset_index", 0, base_offset=-1),
    "time_index.key_is_unique": repeat("time_index"),
    "time_index.stairs_rise": change("time_index", timestamp_ms=0),
    "time_index.stairs_are_linked": change("time_index", previous_timestamp_ms=more("previous_timestamp_ms")),
    "time_index.stairs_lie_in_their_batch": change("time_index", batch_base_offset=-7),
    "time_index.stairs_lie_in_the_interval_of_their_batch": change("time_index", timestamp_ms=10**15),
    "time_index.leader_epoch_is_that_of_the_batch": change("time_index", leader_epoch=77),
    "time_index.rows_belong_to_a_segment": change("time_index", build_number=0),
    "time_index.no_stairs_at_batch_depth": change("segments", index_depth="batch"),
    "time_index.topic_id_is_the_segments": change("time_index", topic_id="another"),
    "time_index.first_stair_is_counted": change("segments", counted_from_offset=more("end_offset")),
    "time_index.counted_max_timestamp_is_the_segments": change("time_index", -1, timestamp_ms=more("timestamp_ms")),
    "time_index.counted_max_offset_is_the_segments": change(
        "segments", counted_max_timestamp_offset=more("counted_max_timestamp_offset")
    ),
    "time_index.every_rising_batch_has_a_stair": _remove_lone_stair,
    "interval_index.intervals_touch": _interval(after_offset=more("after_offset")),
    "interval_index.positions_ascend": _interval(position=0),
    "interval_index.running_max_never_falls": _interval(previous_running_max_timestamp_ms=None),
    "interval_index.rows_belong_to_a_segment": _interval(build_number=0),
    "interval_index.topic_id_is_the_segments": _interval(topic_id="another"),
    "interval_index.start_offset_is_the_segments": _at_sidecar_depth(
        change("interval_index", 0, after_offset=more("after_offset"))
    ),
    "interval_index.end_offset_is_the_segments": _interval(last_offset=more("last_offset")),
    "interval_index.size_is_the_segments": _interval(size_bytes=more("size_bytes")),
    "interval_index.counted_max_timestamp_is_the_segments": _interval(
        running_max_timestamp_ms=more("running_max_timestamp_ms")
    ),
    "txn_index.key_is_unique": repeat("txn_index"),
    "txn_index.producer_id_is_not_negative": change("txn_index", producer_id=-1),
    "txn_index.ends_behind_its_start": change("txn_index", first_offset=more("last_offset")),
    "txn_index.ends_within_its_segment": _leave_segment("start_offset", -1),
    "txn_index.ends_before_the_segments_end": _leave_segment("end_offset", 1),
    "txn_index.stable_offset_is_not_behind": change("txn_index", last_stable_offset=more("last_offset", 2)),
    "txn_index.marker_is_in_offset_index": change("txn_index", producer_id=more("producer_id", 1_000)),
    "txn_index.rows_belong_to_a_segment": change("txn_index", build_number=0),
    "txn_index.topic_id_is_the_segments": change("txn_index", topic_id="another"),
    "txn_index.aborts_are_where_segments_tells": change("segments", _has_aborts, txn_index_empty=True),
    "txn_index.aborts_have_markers": change("segments", _has_aborts, abort_marker_count=0),
    "partition_metadata.key_is_unique": repeat("partition_metadata"),
    "partition_metadata.one_incarnation_is_current": _partition(is_current=False),
    "partition_metadata.every_partition_has_a_row_and_segments": remove("partition_metadata"),
    **_one_more(
        "segment_count", "served_segment_count", "unserved_segment_count", "pending_segment_count",
        "quarantined_segment_count", "txn_index_segment_count", "gap_count",
    ),
    "partition_metadata.txn_index_empty_is_the_segments": _partition(txn_index_empty=True),
    "partition_metadata.size_is_the_segments": _partition(size_bytes=0),
    "partition_metadata.record_count_is_the_segments": _partition(record_count=0),
    "partition_metadata.earliest_offset_is_the_segments": _partition(earliest_offset=more("earliest_offset")),
    "partition_metadata.latest_offset_is_the_segments": _partition(latest_tiered_offset=more("latest_tiered_offset")),
    "partition_metadata.max_timestamp_is_the_segments": _partition(max_timestamp_ms=more("max_timestamp_ms")),
    "partition_metadata.finished_max_timestamp_is_the_segments": _partition(
        finished_max_timestamp_ms=more("finished_max_timestamp_ms")
    ),
    "partition_metadata.max_timestamp_offset_is_served": _partition(max_timestamp_offset=more("earliest_offset", -1)),
    "partition_metadata.max_timestamp_offset_is_not_behind": _partition(
        max_timestamp_offset=more("latest_tiered_offset")
    ),
    "partition_metadata.stable_offset_is_the_segments": _partition(stable_offset=more("stable_offset")),
    "partition_metadata.open_transactions_are_the_segments": _partition(open_transaction_count=99),
    "partition_metadata.lineage_rises": _partition(leader_epoch_lineage=_twice_the_last("leader_epoch_lineage")),
    "partition_metadata.log_start_source_is_known": _partition(log_start_source="rumour"),
    "partition_metadata.log_start_is_not_behind_what_is_served": _partition(log_start_offset=more("earliest_offset")),
    "partition_metadata.log_start_is_not_below_what_was_supplied": change(
        "log_start_offsets", 0, log_start_offset=more("log_start_offset")
    ),
    "txn_segments.key_is_unique": repeat("txn_segments"),
    "txn_segments.every_segment_with_aborts_has_a_row": remove("txn_segments"),
    "txn_segments.epoch_interval_is_not_empty": change("txn_segments", epoch_from_offset=more("to_offset")),
    "txn_segments.log_interval_holds_the_epochs": change("txn_segments", log_from_offset=more("epoch_from_offset")),
    "txn_segments.epoch_intervals_do_not_overlap": _meet_within_epoch("epoch_from_offset"),
    "txn_segments.log_intervals_do_not_overlap": _meet_within_epoch("log_from_offset"),
    "txn_segments.ends_within_what_is_served": _end_behind_served,
    "txn_segments.ends_behind_the_beginning_of_what_is_served": _end_before_served,
    "txn_segments.start_offset_is_the_segments": change("txn_segments", start_offset=more("start_offset")),
    "txn_segments.end_offset_is_the_segments": change("txn_segments", end_offset=more("end_offset")),
    "txn_segments.certainty_is_the_segments": change("txn_segments", is_certain=False),
    "segment_events.key_is_unique": repeat("segment_events"),
    "segment_events.event_kind_is_known": change("segment_events", event_kind="segment_song"),
    "segment_events.state_is_kafkas": change("segment_events", state="LOST"),
    "segment_events.names_what_it_is_about": change("segment_events", topic_id=None),
    "segment_events.offsets_do_not_end_before_start": change(
        "segment_events", lambda row: row["event_kind"] == "segment", end_offset=more("start_offset", -1)
    ),
    "segment_events.transition_is_valid": change("segment_events", state="DELETE_SEGMENT_FINISHED"),
    "segment_events.no_offset_lacks": remove("segment_events", 1),
    "quarantine.key_is_unique": repeat("quarantine"),
    "quarantine.every_quarantined_segment_has_a_row": _quarantine_one_unseen,
    "quarantine.reason_is_known": change("quarantine", 0, reason="bad_mood"),
    "quarantine.is_told": change("quarantine", 0, message=""),
    "quarantine.last_seen_is_not_before_first": change("quarantine", 0, last_seen_ms=4),
    "quarantine.was_tried": change("quarantine", 0, attempt_count=0),
    "quarantine.segment_is_not_indexed": _quarantine_one_indexed,
    "discrepancies.key_is_unique": repeat("discrepancies"),
    "discrepancies.kind_is_as_grave_as_told": change("discrepancies", 0, severity="info"),
    "discrepancies.segment_is_known": change("discrepancies", 0, segment_id="another"),
    "discrepancies.advice_is_given": change("discrepancies", 0, advice=""),
    "discrepancies.first_seen_is_a_time": change("discrepancies", 0, first_seen_ms=0),
    "log_start_offsets.key_is_unique": repeat("log_start_offsets"),
    "log_start_offsets.partition_is_not_negative": change("log_start_offsets", 0, partition=-1),
    "log_start_offsets.log_start_is_not_negative": change("log_start_offsets", 0, log_start_offset=-1),
    "unrecognized_objects.key_is_unique": repeat("unrecognized_objects"),
    "unrecognized_objects.size_is_not_negative": change("unrecognized_objects", 0, size_bytes=-1),
    "unrecognized_objects.reason_is_told": change("unrecognized_objects", 0, why=""),
    "job_runs.key_is_unique": repeat("job_runs"),
    "job_runs.outcome_is_known": change("job_runs", 0, outcome="forgotten"),
    "job_runs.outcome_agrees_with_end": change("job_runs", 0, finished_ms=None),
    "job_runs.ends_behind_its_start": change("job_runs", 0, finished_ms=0),
    "job_runs.summary_is_json": change("job_runs", 0, summary="{"),
    "list_offsets_expirations.key_is_unique": repeat("list_offsets_expirations"),
    "list_offsets_expirations.requests_timed_out": change("list_offsets_expirations", 0, request_count=0),
    "list_offsets_expirations.timeout_is_positive": change("list_offsets_expirations", 0, timeout_ms=0),
    "list_offsets_expirations.expired_is_a_time": change("list_offsets_expirations", 0, expired_ms=0),
    "validation_results.key_is_unique": repeat("validation_results"),
    "validation_results.severity_is_known": change("validation_results", 0, severity="grave"),
    "validation_results.success_agrees_with_count": change("validation_results", 0, unexpected_count=1),
    "validation_results.rows_are_counted": change("validation_results", 0, row_count=-1),
    "validation_results.builds_go_forward": change("validation_results", 0, after_build_number=2),
}  # fmt: skip
"""By `<table>.<expectation>`."""
