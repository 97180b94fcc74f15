"""Test that a process that appends next to others knows all events, once, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.stores.local_store import LocalStore
from coldlog.brokers.kafka_client import Cluster, LiveRecord, OffsetSpec
from coldlog.errors import ArchiveError
from coldlog.formats.kafka.remote_log.remote_log_events import SegmentMetadataEvent, SegmentUpdateEvent
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tiering.copying.copy_segments import random_uuid
from coldlog.tiering.event_logs import KnownEventLog, TopicEventReader, directory_event_log
from copying_tier import LIMITS, ORDERS

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
PAYMENTS = TopicIdPartition(topic="payments", partition=3, topic_id=random_uuid())


class Opened:
    """Opens the log once for each process."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = str(directory), stack

    def __call__(self) -> KnownEventLog:
        log = directory_event_log(self._directory, topic=METADATA_TOPIC, partition_count=3, limits=LIMITS)
        return KnownEventLog(self._stack.enter_context(log))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(tmp_path, stack)


def announce(log: KnownEventLog, partition: TopicIdPartition = ORDERS, start: int = 0) -> RemoteLogSegmentId:
    segment_id = RemoteLogSegmentId(topic_id_partition=partition, segment_id=random_uuid())
    log.append(
        SegmentMetadataEvent(
            remote_log_segment_id=segment_id,
            start_offset=start,
            end_offset=start + 9,
            broker_id=1,
            max_timestamp_ms=5,
            event_timestamp_ms=6,
            segment_leader_epochs=((0, start),),
            size_bytes=100,
            custom_metadata=None,
            state=STARTED,
            txn_index_empty=None,
        )
    )
    return segment_id


def update(log: KnownEventLog, segment_id: RemoteLogSegmentId, state: RemoteLogSegmentState) -> None:
    log.append(
        SegmentUpdateEvent(
            remote_log_segment_id=segment_id, broker_id=1, event_timestamp_ms=7, custom_metadata=None, state=state
        )
    )


def states(log: KnownEventLog, partition: TopicIdPartition = ORDERS) -> list[tuple[int, RemoteLogSegmentState]]:
    return [(each.start_offset, each.state) for each in log.segments_of(partition)]


def test_events_of_another_process_are_known_after_a_refresh_and_counted_once(opened: Opened) -> None:
    one, other = opened(), opened()
    first = announce(one)
    update(one, first, FINISHED)
    assert states(other) == []
    other.refresh()
    assert states(other) == [(0, FINISHED)]
    second = announce(other, start=10)
    announce(one, PAYMENTS)
    for log in (one, other):
        log.refresh()
        log.refresh()
        assert states(log) == [(0, FINISHED), (10, STARTED)]
        assert states(log, PAYMENTS) == [(0, STARTED)]
        assert log.dropped_count == 0
    update(one, second, FINISHED)
    assert states(opened()) == states(one)


def test_events_appended_by_others_before_an_own_event_are_applied_before_it(opened: Opened) -> None:
    """A copy that another process has begun to delete can no longer become finished."""
    one, other = opened(), opened()
    segment_id = announce(one)
    other.refresh()
    update(other, segment_id, DELETING)
    update(one, segment_id, FINISHED)
    other.refresh()
    for log in (one, other, opened()):
        assert states(log) == [(0, DELETING)]
        assert log.dropped_count == 1


def test_refresh_reads_only_new_records(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = opened(), opened()
    for number in range(50):
        announce(one, start=number * 10)
    other.refresh()
    read, counted = LocalStore.read_range, list[int]()

    def count(store: LocalStore, name: str, position: int, length: int) -> memoryview:
        content = read(store, name, position, length)
        counted.append(len(content))
        return content

    monkeypatch.setattr(LocalStore, "read_range", count)
    other.refresh()
    assert sum(counted) == 0
    announce(one, start=500)
    other.refresh()
    assert len(states(other)) == 51
    assert 0 < sum(counted) < 400


def test_missing_file_between_others_is_an_error_and_not_skipped(opened: Opened, tmp_path: Path) -> None:
    one, other = opened(), opened()
    announce(one)
    other.refresh()
    folder = next(each for each in tmp_path.glob(f"{METADATA_TOPIC}-*") if list(each.iterdir()))
    content = (folder / f"{0:020d}.log").read_bytes()
    (folder / f"{5:020d}.log").write_bytes(content)
    with pytest.raises(ArchiveError, match="offsets are missing between two files"):
        other.refresh()


@pytest.mark.parametrize(("offsets", "is_complete"), [((0, 1, 2), True), ((0, 2), False), ((1, 2), False)])
def test_topic_with_missing_offsets_is_not_complete(
    offsets: tuple[int, ...], is_complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers do not compact this topic today, so the answers are invented."""
    records = [LiveRecord(offset=offset, timestamp_ms=1, key=b"k", value=b"v") for offset in offsets]
    answers = {OffsetSpec.EARLIEST: {("events", 0): 0}, OffsetSpec.LATEST: {("events", 0): 3}}
    monkeypatch.setattr("coldlog.tiering.event_logs.list_offsets", lambda _cluster, _places, spec: answers[spec])
    monkeypatch.setattr("coldlog.tiering.event_logs.iter_records", lambda *_: iter([records]))
    cluster = Cluster(bootstrap_servers="none:9092", timeout_ms=1, options={})
    reader = TopicEventReader(cluster=cluster, topic="events", partition_count=1)
    assert [place.offset for place, _ in reader.read_new()] == list(offsets)
    assert reader.is_complete is is_complete
