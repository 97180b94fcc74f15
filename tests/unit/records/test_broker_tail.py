"""Test that brokers go on where the archive ends, against the records of the model that they have."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from builders.segment_builder import Batch, abort_marker, commit_marker
from coldlog.errors import RetriableError, UsageError
from coldlog.fetcher import RecordFetcher
from coldlog.lookups.local.live_broker_tier import LiveBrokerTier
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.model.states import IsolationLevel
from coldlog.records.fetch.archive_tables import ArchivedPartition
from coldlog.records.fetch.local_tail import LocalTail, StaleArchive
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.local_log import open_local_log
from coldlog.runtime.settings_sources import load_settings
from damage.tail_batches import LIMITS, OF_ARCHIVE, batch_at
from servers.broker_clients import CLUSTER, LogClient
from virtual_clock import VirtualClock

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def _marker(offset: int, producer_id: int, *, is_commit: bool) -> Batch:
    make = commit_marker if is_commit else abort_marker
    return make(offset=offset, timestamp_ms=0, producer_id=producer_id, producer_epoch=0, leader_epoch=0)


LOG = (
    batch_at(0, 3), batch_at(3, 2, 1), batch_at(5, 2, 2), batch_at(7, 2), _marker(9, 1, is_commit=False),
    batch_at(10, 2, 1), batch_at(14, 2), _marker(16, 2, is_commit=True), _marker(17, 1, is_commit=False),
    batch_at(18, 2, 1), batch_at(20, 1), _marker(21, 1, is_commit=True), batch_at(22, 2, 4),
    batch_at(24, 2), batch_at(26, 2),
)  # fmt: skip
"""Producer 1 aborts twice, then commits; no batch has offsets 12 and 13; the transaction of producer 4 is open. The
last batch is not decided yet."""
END, STABLE = 26, 22
ABORTED, MARKERS = {3, 4, 10, 11}, {9, 16, 17, 21}
RECORDS = [offset for offset in range(END) if offset not in {12, 13} | MARKERS]


def _opened(client: LogClient) -> LocalTail:
    tier = LiveBrokerTier(CLUSTER, LIMITS)
    tier._held.client, tier._held.process_id = client, os.getpid()
    return LocalTail(tier, LIMITS)


def _archived(end_offset: int, stable_offset: int, topic_id: str = "A" * 21 + "Q") -> ArchivedPartition:
    return ArchivedPartition(
        topic="orders",
        partition=0,
        topic_id=topic_id,
        ends=PartitionEnds(log_start_offset=0, end_offset=end_offset, last_stable_offset=stable_offset),
        segments=(),
        from_offsets=np.empty(0, dtype=np.int64),
        undecided=(),
        lineage=(),
    )


def _request(offset: int, level: IsolationLevel = UNCOMMITTED, max_bytes: int = 1) -> FetchRequest:
    return FetchRequest(topic="orders", partition=0, offset=offset, max_bytes=max_bytes, isolation_level=level)


@pytest.mark.parametrize("max_bytes", [1, 200, 1 << 20])
def test_every_record_after_any_end_of_the_archive_is_fetched_once(max_bytes: int) -> None:
    for end in range(END + 1):
        stable = min(end, 3 if end <= 17 else STABLE)
        for level, first, expected in [
            (UNCOMMITTED, end, [each for each in RECORDS if each >= end]),
            (COMMITTED, stable, [each for each in RECORDS if stable <= each < STABLE and each not in ABORTED]),
        ]:
            tail, found, offset = _opened(LogClient(batches=LOG, decided=len(LOG) - 1)), list[int](), first
            while True:
                answer = tail.go_on(_request(offset, level, max_bytes), _archived(end, stable), OF_ARCHIVE)
                assert isinstance(answer, FetchedRecords), answer
                assert answer.ends == PartitionEnds(log_start_offset=0, end_offset=END, last_stable_offset=STABLE)
                found += [record.offset for record in answer.records]
                if answer.next_offset == offset:
                    break
                offset = answer.next_offset
            assert found == expected, (end, level)


def test_fetch_begins_at_any_offset_and_carries_the_aborts_that_overlap_it() -> None:
    tail = _opened(LogClient(batches=LOG, decided=len(LOG) - 1))
    for offset in range(STABLE):
        answer = tail.go_on(_request(offset, COMMITTED, 1 << 20), _archived(0, 0), OF_ARCHIVE)
        assert isinstance(answer, FetchedRecords)
        committed = [each for each in RECORDS if offset <= each < STABLE and each not in ABORTED]
        assert [record.offset for record in answer.records] == committed
        aborts = [(1, 3, 9), (1, 10, 17)]
        found = [(each.producer_id, each.first_offset, each.last_offset) for each in answer.aborted_transactions]
        assert found == [each for each in aborts if each[2] >= offset], offset


def test_brokers_whose_leader_epochs_contradict_the_archive_are_not_read() -> None:
    tail = _opened(LogClient(batches=LOG, decided=len(LOG) - 1))
    other = tail.go_on(_request(7), replace(_archived(7, 7), lineage=((3, 0),)), OF_ARCHIVE)
    assert isinstance(other, StaleArchive)
    named = "offset 6 has leader epoch 3 in the archive, but 0 there; run run_pipeline when the newer one is archived"
    assert named in other.failure.message
    assert isinstance(tail.go_on(_request(7), replace(_archived(7, 7), lineage=((0, 0),)), OF_ARCHIVE), FetchedRecords)


def test_brokers_have_in_their_tier_what_is_not_indexed_yet() -> None:
    tail = _opened(LogClient(batches=LOG, decided=len(LOG) - 1, local_start=20))
    answer = tail.go_on(_request(7), _archived(7, 3), OF_ARCHIVE)
    assert isinstance(answer, FetchedRecords)
    assert [record.offset for record in answer.records] == [7, 8]


def test_log_start_of_brokers_hides_no_archived_offset_and_is_a_gap_above_the_archives_end() -> None:
    tail = _opened(LogClient(batches=LOG, decided=len(LOG) - 1, log_start=20, local_start=20))
    answer = tail.go_on(_request(22), _archived(22, 22), OF_ARCHIVE)
    assert isinstance(answer, FetchedRecords)
    assert ([record.offset for record in answer.records], answer.ends.log_start_offset) == ([22, 23], 0)
    lost = tail.go_on(_request(14), _archived(14, 3), OF_ARCHIVE)
    assert isinstance(lost, StaleArchive)
    assert "14 to 19 left the brokers and are not indexed" in lost.failure.message
    assert lost.failure.resume_offset == 20


def test_archived_offsets_are_not_asked_of_brokers() -> None:
    client = LogClient(batches=LOG, decided=len(LOG) - 1)
    answer = _opened(client).go_on(_request(6), _archived(7, 3), OF_ARCHIVE)
    assert isinstance(answer, FetchedRecords)
    assert (answer.next_offset, answer.ends.end_offset) == (-1, END)
    assert client.fetched == []


def test_each_question_of_a_fetch_has_the_time_of_the_fetch() -> None:
    client = LogClient(batches=LOG, decided=len(LOG) - 1)
    tail, began = _opened(client), time.time()
    for offset in (6, 7):
        assert isinstance(
            tail.go_on(replace(_request(offset), timeout_ms=9_000), _archived(7, 3), OF_ARCHIVE), FetchedRecords
        )
    assert len(client.deadlines) >= 2
    assert all(each is not None and began + 9 <= each <= time.time() + 9 for each in client.deadlines)
    tail.ends("orders", 0, None)
    assert client.deadlines[-1] is None, "that of the cluster"


def test_each_attempt_has_what_is_left_of_the_time_of_the_fetch() -> None:
    clock, given_ms = VirtualClock(), list[int]()

    class Unreachable:
        def plan(self, request: FetchRequest) -> FetchedRecords:
            given_ms.append(request.timeout_ms)
            clock.wait_ms(400)
            raise RetriableError("no answer")

    fetcher = RecordFetcher(cast(RecordSource, Unreachable()), clock=clock, chance=lambda: 0.5)
    answer = fetcher.fetch_records("orders", 0, 7, timeout_ms=1_000)
    assert isinstance(answer, FetchFailure)
    assert answer.error is FetchErrorCode.REQUEST_TIMED_OUT
    assert given_ms == [1_000, 500, 0]


def test_brokers_that_send_no_records_are_asked_again() -> None:
    tail = _opened(LogClient(batches=LOG, decided=len(LOG) - 1, is_throttled=True))
    with pytest.raises(RetriableError, match=r"the brokers returned no records .*under a quota.*try again"):
        tail.go_on(_request(7), _archived(7, 3), OF_ARCHIVE)


def test_topic_that_is_created_again_while_it_is_read_leaves_the_archive_its_answer() -> None:
    client = LogClient(batches=LOG, decided=len(LOG) - 1)
    tail = _opened(client)
    assert isinstance(tail.go_on(_request(7), _archived(7, 3), OF_ARCHIVE), FetchedRecords)
    client.topic_id = "B" * 21 + "Q"
    assert tail.go_on(_request(10), _archived(7, 3), OF_ARCHIVE) == OF_ARCHIVE


def test_offset_after_the_end_is_out_of_range_and_names_the_brokers() -> None:
    tail = _opened(LogClient(batches=LOG, decided=len(LOG) - 1))
    answer = tail.go_on(_request(END + 1), _archived(7, 3), OF_ARCHIVE)
    assert isinstance(answer, FetchFailure)
    assert answer.error is FetchErrorCode.OFFSET_OUT_OF_RANGE
    assert f"the archive and the brokers have offsets 0 to {END - 1}" in answer.message


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["fetch.log_directory=/data"], "fetch.log_directory or fetch.bootstrap_servers, not both"),
        (["warehouse.as_of=2026-01-01T00:00:00Z"], "but fetch.bootstrap_servers is always of now: unset one of them"),
    ],
)
def test_brokers_are_refused_beside_a_directory_or_a_past_index(assignments: list[str], message: str) -> None:
    settings = load_settings("local", ["fetch.bootstrap_servers=127.0.0.1:9092", *assignments])
    with pytest.raises(UsageError, match=message):
        open_local_log(settings)


def test_directory_that_cannot_be_reached_is_named_with_its_setting() -> None:
    with pytest.raises(UsageError, match="fetch.log_directory: /nowhere is not a directory that can be reached"):
        open_local_log(load_settings("local", ["fetch.log_directory=/nowhere"]))
