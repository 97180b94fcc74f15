"""Test what a real broker's metadata topic says about the sample archive, and the answers that use it."""

from __future__ import annotations

import json

import pytest

from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.warehouse import Warehouse
from contents.table_contents import rows_in
from worlds.golden_warehouse import golden_partitions, golden_queries, is_true_answer
from worlds.kafka_sample import KAFKA_SAMPLE, true_segments


def _epochs(entries: list[dict[str, int]] | None) -> dict[str, int]:
    return {str(entry["leader_epoch"]): entry["start_offset"] for entry in entries or ()}


def test_every_segment_has_the_state_and_the_metadata_that_the_broker_announced(golden_with_events: Warehouse) -> None:
    rows = {row["segment_id"]: row for row in rows_in(golden_with_events, SEGMENTS)}
    truth = {segment["segment_id"]: segment for segment in map(dict, true_segments())}
    assert len(truth) == 324
    assert rows.keys() == truth.keys()
    for segment_id, row in rows.items():
        found = {
            "topic": row["topic"],
            "topic_id": row["topic_id"],
            "partition": row["partition"],
            "state": row["state"],
            "start_offset": row["announced_start_offset"],
            "end_offset": row["announced_end_offset"],
            "max_ts": row["announced_max_timestamp_ms"],
            "size": row["announced_size_bytes"],
            "leader_epochs": _epochs(row["announced_leader_epochs"]),
            "txn_idx_empty": bool(row["announced_txn_index_empty"]),
            "log_file_present": "log" in {each["kind"] for each in row["objects"]},
        }
        assert found == {name: truth[segment_id][name] for name in found}
        assert row["start_offset"] == row["announced_start_offset"]
        # One segment was deleted twice; its second deletion is of a segment that is forgotten already.
        repeated = str(truth[segment_id]["states"]).count("DELETE_SEGMENT_STARTED") - 1
        assert (row["state_source"], row["dropped_event_count"]) == ("events", 2 * max(0, repeated))
        assert row["was_copied"] == ("COPY_SEGMENT_FINISHED" in str(truth[segment_id]["states"]))


def test_only_finished_segments_are_indexed_and_they_are_as_announced(golden_with_events: Warehouse) -> None:
    moved = 0
    for row in rows_in(golden_with_events, SEGMENTS):
        is_finished = row["state"] == "COPY_SEGMENT_FINISHED"
        assert (row["index_status"] == "indexed") == is_finished
        if is_finished:
            assert row["size_bytes"] == row["announced_size_bytes"]
            assert row["txn_index_empty"] == bool(row["announced_txn_index_empty"])
            found, announced = (row[name] for name in ("segment_leader_epochs", "announced_leader_epochs"))
            assert [each["leader_epoch"] for each in found] == [each["leader_epoch"] for each in announced]
            assert found[1:] == announced[1:]
            # DeleteRecords had moved the first epoch along with the log start when one was uploaded.
            moved += found[0] != announced[0]
            assert found[0]["start_offset"] <= announced[0]["start_offset"]
            assert row["is_within_lineage"] is not None
    assert moved == 1
    assert len(rows_in(golden_with_events, QUARANTINE)) == 0


def test_events_are_the_rows_that_kafka_decodes(golden_with_events: Warehouse) -> None:
    with (KAFKA_SAMPLE / "truth" / "rlmm-events.jsonl").open(encoding="utf-8") as lines:
        truth = [json.loads(line) for line in lines]
    assert len(truth) == 731
    ordered = golden_with_events.read(SEGMENT_EVENTS).orderBy("metadata_partition", "metadata_offset")
    rows = ordered.toArrow().to_pylist()
    for row, event in zip(rows, sorted(truth, key=lambda each: (each["mp"], each["mo"])), strict=True):
        found = {
            "mp": row["metadata_partition"],
            "mo": row["metadata_offset"],
            "event_ts": row["event_timestamp_ms"],
            "broker": row["broker_id"],
            "topic": row["topic"],
            "topic_id": row["topic_id"],
            "partition": row["partition"],
            "type": row["event_kind"],
            "state": row["state"],
            "segment_id": row["segment_id"],
            "custom": row["custom_metadata"],
        }
        if row["event_kind"] == "segment":
            found |= {"start_offset": row["start_offset"], "end_offset": row["end_offset"], "size": row["size_bytes"]}
            found |= {"max_ts": row["max_timestamp_ms"], "leader_epochs": _epochs(row["segment_leader_epochs"])}
            found |= {"txn_idx_empty": bool(row["txn_index_empty"])}
        assert found == event
        assert row["problem"] is None


def test_log_start_offsets_are_found_without_being_supplied(golden_with_events: Warehouse) -> None:
    tiered = {(each["topic"], each["partition"], each["topic_id"]) for each in map(dict, true_segments())}
    rows = rows_in(golden_with_events, PARTITION_METADATA)
    found = {(row["topic"], row["partition"], row["topic_id"]): row["log_start_offset"] or 0 for row in rows}
    assert found.keys() == tiered
    truth = {(each["topic"], each["partition"], each["topic_id"]): each["log_start"] for each in golden_partitions()}
    wanted = {key: offset for key, offset in truth.items() if key in tiered}
    assert {key: found[key] for key in wanted} == wanted
    assert sum(offset != 0 for offset in wanted.values()) >= 5


@pytest.mark.parametrize("broker_compatible", [True, False])
def test_answers_with_the_metadata_topic_equal_those_of_the_broker(
    golden_with_events: Warehouse, broker_compatible: bool
) -> None:
    queries = golden_queries()
    requests = requests_from_rows([(q["topic"], q["partition"], q["ts"]) for q in queries])
    answers = find_offsets_for_timestamps(
        golden_with_events, requests, LookupOptions(broker_compatible=broker_compatible)
    )
    wrong = [
        (query, answer)
        for query, answer in zip(queries, answers.to_pylist(), strict=True)
        if not is_true_answer(query, answer, broker_compatible=broker_compatible)
    ]
    assert wrong == []
    assert answers.num_rows == 9264
