"""Test that applied events give the segments that a real broker knows, and that invalid events are dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders.metadata_events import SEGMENT, SNAPSHOT, UPDATE
from coldlog.archive.metadata_log import list_metadata_partitions
from coldlog.archive.metadata_log_reader import iter_metadata_records
from coldlog.archive.stores.local_store import LocalStore
from coldlog.formats.kafka.remote_log.remote_log_events import Event, PartitionDeleteEvent
from coldlog.formats.kafka.remote_log.remote_log_metadata import decode_event
from coldlog.formats.limits import DecodeLimits
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState
from coldlog.tiering.rules.remote_segments import RemoteSegments
from worlds.kafka_sample import KAFKA_SAMPLE, true_segments

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
MARKED, PARTITION_STARTED, PARTITION_FINISHED = RemotePartitionDeleteState
PARTITION = SEGMENT.remote_log_segment_id.topic_id_partition


def partition_delete(state: RemotePartitionDeleteState) -> PartitionDeleteEvent:
    return PartitionDeleteEvent(topic_id_partition=PARTITION, broker_id=1, event_timestamp_ms=0, state=state)


def states_of(events: list[Event]) -> tuple[list[RemoteLogSegmentState], int]:
    """Return the segment's state after each event, and how many events were dropped."""
    known, states = RemoteSegments(), []
    for event in events:
        known.apply(event)
        states += [each.state for each in known.of(PARTITION)]
    return states, known.dropped_count


def test_every_segment_of_the_golden_topic_is_as_the_broker_says() -> None:
    known, store = RemoteSegments(), LocalStore(root=str(KAFKA_SAMPLE / "rlmm"), uri="rlmm")
    limits = DecodeLimits(max_batch_bytes=1 << 26, max_decompressed_bytes=1 << 26)
    for partition in list_metadata_partitions(store):
        for record in iter_metadata_records(store, partition, 0, limits):
            known.apply(decode_event(record.value or b""))
    found = {
        (each.segment_id.segment_id, each.start_offset, each.end_offset, each.size_bytes, each.state.name)
        for partition in known.partitions()
        for each in known.of(partition)
    }
    true = {(s["segment_id"], s["start_offset"], s["end_offset"], s["size"], s["state"]) for s in true_segments()}
    assert found == true
    assert len({state for *_, state in true}) == 3


def test_update_keeps_all_but_state_broker_time_and_custom_metadata() -> None:
    known = RemoteSegments()
    known.apply(SEGMENT)
    known.apply(replace(UPDATE, broker_id=9))
    (segment,) = known.of(PARTITION)
    assert (segment.state, segment.broker_id, segment.custom_metadata) == (FINISHED, 9, None)
    assert (segment.txn_index_empty, segment.size_bytes, segment.was_copied) == (True, SEGMENT.size_bytes, True)


@pytest.mark.parametrize("state", RemoteLogSegmentState)
def test_first_event_must_announce_a_copy(state: RemoteLogSegmentState) -> None:
    assert states_of([replace(SEGMENT, state=state)]) == (([STARTED], 0) if state is STARTED else ([], 1))
    assert states_of([replace(UPDATE, state=state)]) == ([], 1)


def test_transitions_that_kafka_does_not_allow_are_dropped() -> None:
    def update(state: RemoteLogSegmentState) -> Event:
        return replace(UPDATE, state=state)

    assert states_of([SEGMENT, update(DELETED)]) == ([STARTED, STARTED], 1)
    assert states_of([SEGMENT, update(STARTED)]) == ([STARTED, STARTED], 1)
    assert states_of([SEGMENT, UPDATE, SEGMENT]) == ([STARTED, FINISHED, FINISHED], 1)
    deleted = [SEGMENT, update(DELETING), update(DELETED)]
    assert states_of([*deleted, UPDATE]) == ([STARTED, DELETING, DELETED, DELETED], 1)
    assert states_of([*deleted, SEGMENT]) == ([STARTED, DELETING, DELETED, STARTED], 0)


def test_deleted_segment_counts_as_copied_only_if_its_copy_was_finished() -> None:
    for first, was_copied in ((UPDATE, True), (replace(UPDATE, state=DELETING), False)):
        known = RemoteSegments()
        for event in (SEGMENT, first, replace(UPDATE, state=DELETING), replace(UPDATE, state=DELETED)):
            known.apply(event)
        assert [(each.was_copied, each.is_deleted) for each in known.of(PARTITION)] == [(was_copied, True)]


def test_deletion_of_a_partition_forgets_its_earlier_segments() -> None:
    ends = [partition_delete(state) for state in (MARKED, PARTITION_STARTED, PARTITION_FINISHED)]
    assert states_of([SEGMENT, *ends[:2]]) == ([STARTED] * 3, 0)
    assert states_of([SEGMENT, *ends]) == ([STARTED] * 3, 0)
    assert states_of([SEGMENT, ends[1], ends[2]]) == ([STARTED] * 3, 2)
    assert states_of([SEGMENT, *ends, SEGMENT]) == ([STARTED] * 4, 0)


def test_snapshot_event_changes_nothing() -> None:
    assert states_of([SEGMENT, SNAPSHOT]) == ([STARTED, STARTED], 1)
