"""Test that a group does not go on in a topic that was created again where it stopped in the older one.

Its consumers would miss the first records of the topic without an error. Kafka removes the offsets with the topic.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from kio.schema.errors import ErrorCode

from builders.segment_builder import uuid_text_of
from coldlog.errors import RetriableError
from coldlog.records.source.archived_log import Incarnation
from coldlog.serve.answers.group_offsets import answer_offset_commit, answer_offset_fetch
from coldlog.serve.archive_view import ArchiveView
from coldlog.serve.groups.coordinator import Coordinator
from coldlog.serve.messages import Request
from coldlog.serve.offered_topics import OfferedTopics, list_topics
from coldlog.serve.threads import Threads
from endpoint_context import endpoint_context
from servers.committing_endpoints import GROUP, Endpoints, run_endpoints

_OLD, _NEW = uuid_text_of("old"), uuid_text_of("new")
_TOPIC = "archive.orders"


def _topics(*topic_ids: str) -> OfferedTopics:
    """Those of the archive if the partitions of the topic have these ids."""
    return list_topics(
        [
            Incarnation(topic="orders", partition=number, is_current=True, topic_id=each)
            for number, each in enumerate(topic_ids)
        ],
        "archive.",
    )


class _View:
    """Tables that are open, and newer ones that can be opened."""

    def __init__(self, opened: OfferedTopics, newest: OfferedTopics | None = None) -> None:
        self._opened, self._newest = opened, newest or opened
        self.looks = 0

    def offered(self) -> OfferedTopics:
        return self._opened

    def look_again(self, _: int) -> None:
        self.looks += 1
        self._opened = self._newest


class _UnreadableView(_View):
    def offered(self) -> OfferedTopics:
        raise RetriableError("no answer")


class _Client:
    """A consumer without a group's protocol, at an endpoint with these groups and tables."""

    def __init__(self, groups: Coordinator, view: _View, threads: Threads) -> None:
        self._context = endpoint_context(cast(ArchiveView, view), threads, groups=groups)

    async def commit(self, offset: int) -> None:
        """Commit the offset for both partitions."""
        partitions = [
            SimpleNamespace(partition_index=number, committed_offset=offset, committed_metadata=None)
            for number in range(2)
        ]
        topics = [SimpleNamespace(name=_TOPIC, partitions=partitions)]
        body = SimpleNamespace(group_id=GROUP, member_id="", generation_id_or_member_epoch=-1, topics=topics)
        answer = await self._ask(answer_offset_commit, body)
        assert [each["error_code"] for each in answer["topics"][0]["partitions"]] == [ErrorCode.none] * 2

    async def committed(self) -> list[int]:
        """Return the committed offsets of both partitions, asked for by name and by a request for all."""
        named = await self.fetch([SimpleNamespace(name=_TOPIC, partition_indexes=[0, 1])])
        of_all = await self.fetch(None)
        found = {at: each for at, each in enumerate(named) if each != -1}
        assert of_all == list(found.values())
        return named

    async def fetch(self, topics: object) -> list[int]:
        answer = await self._ask(
            answer_offset_fetch, SimpleNamespace(groups=[SimpleNamespace(group_id=GROUP, topics=topics)])
        )
        (group,) = answer["groups"]
        assert group["error_code"] is ErrorCode.none
        return [each["committed_offset"] for topic in group["topics"] for each in topic["partitions"]]

    async def error(self) -> ErrorCode:
        """Return the error of a request of an older version, which names one group."""
        body = SimpleNamespace(group_id=GROUP, topics=None)
        request = Request(api_key=9, version=7, correlation_id=0, client_id=None, body=body)
        found = await answer_offset_fetch(self._context, request)
        error = found["error_code"]
        assert isinstance(error, ErrorCode)
        return error

    async def _ask(self, answer: Any, body: object) -> Any:
        return await answer(self._context, Request(api_key=9, version=9, correlation_id=0, client_id=None, body=body))


def test_offsets_of_an_older_incarnation_do_not_count(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        before = _Client(await endpoints.start(), _View(_topics(_OLD, _OLD)), endpoints.threads)
        await before.commit(7)
        assert await before.committed() == [7, 7]
        view = _View(_topics(_NEW, _OLD))
        after = _Client(await endpoints.start(), view, endpoints.threads)
        assert await after.committed() == [-1, 7], "of the second partition only the older one is archived"
        await after.commit(8)
        assert (await after.committed(), view.looks > 0) == ([8, 8], True)

    run_endpoints(str(warehouse), steps)


def test_offsets_count_while_the_id_of_the_topic_was_or_is_not_known(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        unknown = _topics("", _OLD)
        await _Client(await endpoints.start(), _View(unknown), endpoints.threads).commit(7)
        for topics in (unknown, _topics(_NEW, ""), _topics("", "")):
            assert await _Client(await endpoints.start(), _View(topics), endpoints.threads).committed() == [7, 7]

    run_endpoints(str(warehouse), steps)


def test_offsets_that_another_endpoint_has_kept_for_the_newer_incarnation_count(warehouse: Path) -> None:
    async def steps(endpoints: Endpoints) -> None:
        new = _topics(_NEW, _NEW)
        await _Client(await endpoints.start(), _View(new), endpoints.threads).commit(7)
        view = _View(_topics(_OLD, _OLD), newest=new)
        late = _Client(await endpoints.start(), view, endpoints.threads)
        assert (await late.committed(), view.looks) == ([7, 7], 1)

    run_endpoints(str(warehouse), steps)


def test_clients_ask_again_for_offsets_if_the_tables_cannot_be_read() -> None:
    with closing(Threads("test", 1)) as threads:
        client = _Client(Coordinator(first_delay_s=0), _UnreadableView(_topics()), threads)
        assert asyncio.run(client.error()) is ErrorCode.coordinator_load_in_progress
