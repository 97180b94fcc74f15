"""Test what clients get of an endpoint that does not have the newest tables open, or opens them meanwhile.

Endpoints look for newer tables at times of their own, and a consumer may read on at another one. A log that ends before
its offset makes it go back, to where its last epoch ends or where auto.offset.reset says.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from builders.segment_builder import Segment, uuid_text_of
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.model.list_offsets import SpecialTimestamp
from coldlog.model.states import IndexDepth
from coldlog.records.fetch.record_source import RecordSource
from coldlog.serve.answers.fetch import answer_fetch
from coldlog.serve.answers.offsets import answer_epoch_ends, answer_list_offsets
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.messages import Request
from coldlog.serve.threads import Threads
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from endpoint_context import endpoint_context
from tables.scattered_tables import Row, write
from worlds.sidecar_world import EPOCH_MS, LIMITS, SidecarWorld, batch, sidecar_world

OLD_END, NEW_END, EPOCH = 10, 20, 3
EMPTY = 1
"""A partition without archived records."""


def _world(folder: Path, end: int, topic_id: str | None = None, epoch: int = EPOCH) -> SidecarWorld:
    segment = Segment(batches=tuple(batch(at, EPOCH_MS + at) for at in range(end)))
    world = sidecar_world(folder, [segment], depths=[IndexDepth.BATCH])
    own_id = topic_id or world.outcomes[0]["topic_id"]
    facts: Row = {"topic": "orders", "partition": 0, "topic_id": own_id, "unserved_ranges": []}
    facts |= {"earliest_offset": 0, "latest_tiered_offset": end - 1}
    facts |= {"leader_epoch_lineage": [{"leader_epoch": epoch, "start_offset": 0}]}
    shutil.rmtree(world.warehouse / PARTITION_METADATA.name)
    write(world.warehouse, PARTITION_METADATA, [facts, {**facts, "partition": EMPTY + 1}])
    write(world.warehouse, QUARANTINE, [])
    return world


class _Endpoint:
    """An endpoint that has opened the tables at `warehouse`, where newer ones are since."""

    def __init__(self, warehouse: Path, opened: ExitStack, old_id: str | None = None, old_epoch: int = EPOCH) -> None:
        old = _world(warehouse.parent / "old", OLD_END, old_id, old_epoch)
        new = _world(warehouse.parent / "new", NEW_END)
        self.warehouse = warehouse
        old.warehouse.rename(warehouse)
        source = opened.enter_context(closing(RecordSource(str(warehouse), lambda: new.layout, LIMITS)))
        self.view = ArchiveView(str(warehouse), source, LookupOptions())
        threads = opened.enter_context(closing(Threads("test", 3)))
        self._context = endpoint_context(self.view, threads, timeout_ms=60_000, is_local=True)
        assert self.view.topics() == {"orders": EMPTY + 2}
        known = self.view.partition("orders", 0)
        assert known is not None
        assert known.ends.end_offset == OLD_END
        warehouse.rename(warehouse.parent / "replaced")
        new.warehouse.rename(warehouse)

    def wait_by_id(self, topic_id: UUID | None) -> ErrorCode:
        """Ask for records at the end of the older tables, and open the newer ones while the fetch waits."""

        async def ask() -> Any:
            asked = SimpleNamespace(partition=0, fetch_offset=OLD_END, partition_max_bytes=1)
            topics = [SimpleNamespace(topic_id=topic_id, partitions=[asked])]
            body = SimpleNamespace(topics=topics, max_wait=timedelta(hours=1))
            request = Request(api_key=1, version=13, correlation_id=0, client_id=None, body=body)
            asking = asyncio.create_task(answer_fetch(self._context, request))
            assert not (await asyncio.wait([asking], timeout=0.1))[0]
            await asyncio.to_thread(self.view.refresh)
            self._context.announce()
            return await asking

        ((found,),) = (topic["partitions"] for topic in asyncio.run(ask())["responses"])
        error: ErrorCode = found["error_code"]
        assert bool(found["records"]) == (error is ErrorCode.none)
        return error

    def fetch(self, *offsets: int, partition: int = 0) -> list[tuple[ErrorCode, int, bool]]:
        """Ask for a partition at several offsets; return error, end and whether there are records."""
        asked = [
            SimpleNamespace(partition=partition, fetch_offset=each, partition_max_bytes=1, current_leader_epoch=EPOCH)
            for each in offsets
        ]
        topics = [SimpleNamespace(topic="orders", partitions=asked)]
        (topic,) = self._ask(answer_fetch, SimpleNamespace(topics=topics, max_wait=timedelta(0)))["responses"]
        return [(each["error_code"], each["high_watermark"], bool(each["records"])) for each in topic["partitions"]]

    def end_of(self, epoch: int) -> tuple[ErrorCode, int, int]:
        """Return error, epoch and end for an epoch."""
        asked = SimpleNamespace(partition=0, leader_epoch=epoch, current_leader_epoch=EPOCH)
        topics = [SimpleNamespace(topic="orders", partitions=[asked])]
        (topic,) = self._ask(answer_epoch_ends, SimpleNamespace(topics=topics))["topics"]
        (found,) = topic["partitions"]
        return found["error_code"], found["leader_epoch"], found["end_offset"]

    def first_offset(self, epoch: int) -> tuple[ErrorCode, int]:
        """Return error and offset for EARLIEST."""
        return self.special_offset(SpecialTimestamp.EARLIEST, 0, epoch)

    def special_offset(self, special: SpecialTimestamp, partition: int, epoch: int = -1) -> tuple[ErrorCode, int]:
        """Return error and offset for a special timestamp."""
        asked = SimpleNamespace(partition_index=partition, timestamp=special, current_leader_epoch=epoch)
        topics = [SimpleNamespace(name="orders", partitions=[asked])]
        (topic,) = self._ask(answer_list_offsets, SimpleNamespace(topics=topics))["topics"]
        (found,) = topic["partitions"]
        return found["error_code"], found["offset"]

    def _ask(self, answer: Any, body: object) -> Any:
        async def ask() -> Any:
            return await answer(
                self._context, Request(api_key=1, version=12, correlation_id=0, client_id=None, body=body)
            )

        return asyncio.run(ask())


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[_Endpoint]:
    with ExitStack() as opened:
        yield _Endpoint(tmp_path / "warehouse", opened)


def test_a_fetch_after_the_end_is_answered_from_the_newest_tables(endpoint: _Endpoint) -> None:
    assert endpoint.fetch(OLD_END + 5, NEW_END, NEW_END + 1) == [
        (ErrorCode.none, NEW_END, True),
        (ErrorCode.none, NEW_END, False),
        (ErrorCode.offset_out_of_range, NEW_END, False),
    ]


def test_a_partition_without_archived_records_is_an_empty_log(endpoint: _Endpoint) -> None:
    """After UNKNOWN_TOPIC_OR_PARTITION a consumer asks again for ever, and never resets its offset."""
    assert endpoint.fetch(0, 1, partition=EMPTY) == [
        (ErrorCode.none, 0, False),
        (ErrorCode.offset_out_of_range, 0, False),
    ]


def test_the_log_of_a_partition_without_archived_records_begins_and_ends_at_0(endpoint: _Endpoint) -> None:
    """As at a broker; no offset of it is archived, is to be archived, or has the largest timestamp."""
    found = {special: endpoint.special_offset(special, EMPTY) for special in SpecialTimestamp}
    at_0 = {SpecialTimestamp.EARLIEST, SpecialTimestamp.EARLIEST_LOCAL, SpecialTimestamp.LATEST}
    assert found == {special: (ErrorCode.none, 0 if special in at_0 else -1) for special in SpecialTimestamp}


def test_newer_tables_are_looked_for_once_in_a_request_and_only_for_offsets_after_the_end(endpoint: _Endpoint) -> None:
    assert endpoint.fetch(OLD_END) == [(ErrorCode.none, OLD_END, False)]
    assert endpoint.view.looks == 0
    endpoint.fetch(*[NEW_END + 1] * 5)
    assert endpoint.view.looks == 1
    endpoint.fetch(NEW_END + 1)
    assert endpoint.view.looks == 2


def test_the_end_of_the_newest_epoch_is_that_of_the_newest_tables(endpoint: _Endpoint) -> None:
    assert endpoint.end_of(EPOCH - 1) == (ErrorCode.none, EPOCH - 1, 0)
    assert endpoint.view.looks == 0
    assert endpoint.end_of(EPOCH) == (ErrorCode.none, EPOCH, NEW_END)


@pytest.mark.parametrize("request_name", ["fetch", "epoch ends", "offsets"])
def test_a_leader_epoch_that_another_endpoint_has_told_is_looked_for_in_the_newest_tables(
    request_name: str, tmp_path: Path
) -> None:
    with ExitStack() as opened:
        endpoint = _Endpoint(tmp_path / "warehouse", opened, old_epoch=EPOCH - 1)
        if request_name == "fetch":
            assert endpoint.fetch(0) == [(ErrorCode.none, NEW_END, True)]
        elif request_name == "epoch ends":
            assert endpoint.end_of(EPOCH - 1) == (ErrorCode.none, EPOCH - 1, 0)
        else:
            assert endpoint.first_offset(EPOCH) == (ErrorCode.none, 0)
            assert endpoint.first_offset(EPOCH + 1) == (ErrorCode.unknown_leader_epoch, -1)
            assert endpoint.first_offset(EPOCH - 1) == (ErrorCode.fenced_leader_epoch, -1)


def test_fetches_that_wait_are_told_of_newer_tables_that_another_request_has_opened(endpoint: _Endpoint) -> None:
    endpoint.fetch(OLD_END + 1)
    assert [endpoint.view.refresh() for _ in range(2)] == [True, False]


def test_clients_ask_again_if_the_newest_tables_cannot_be_opened(endpoint: _Endpoint) -> None:
    shutil.rmtree(endpoint.warehouse)
    failed = ErrorCode.kafka_storage_error
    assert endpoint.fetch(*[OLD_END + 1] * 2) == [(failed, -1, False)] * 2
    assert endpoint.end_of(EPOCH) == (failed, -1, -1)


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_fetch_by_id_that_waits_gets_no_records_of_a_topic_that_was_created_again(
    is_created_again: bool, tmp_path: Path
) -> None:
    old_id = uuid_text_of("old") if is_created_again else None
    with ExitStack() as opened:
        endpoint = _Endpoint(tmp_path / "warehouse", opened, old_id)
        error = endpoint.wait_by_id(endpoint.view.topic_id("orders"))
    assert error is (ErrorCode.unknown_topic_id if is_created_again else ErrorCode.none)
