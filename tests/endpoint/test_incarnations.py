"""Are the older incarnations of a topic read under names of their own?"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from contents.record_rows import Row
from endpoint.conftest import Endpoint, serving
from endpoint.support.clients import READERS
from endpoint.support.raw_client import connected, fetch, list_offsets, message
from endpoint.support.truth import LEVELS, Place, as_row
from worlds.recreated_topics import ABORTED, NEW_MS, OLD_MS, new_id, old_id, old_name, value_of

_ORDERS, _PAYMENTS = old_name("orders"), old_name("payments")
_PREFIX = "archive."
_COUNTS = {"orders": 2, _ORDERS: 2, "payments": 1, _PAYMENTS: 1, "single": 1}
"""Partitions of each topic."""


@pytest.fixture(scope="module")
def recreated(recreated_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The topics, with a prefix before their names."""
    notes, archive = tmp_path_factory.mktemp("recreated") / "notes", Path(recreated_uri).parent / "archive"
    with serving(notes, recreated_uri, archive, f"serve.topic_prefix={_PREFIX}") as endpoint:
        yield endpoint


def _rows(incarnation: str, count: int, first_ms: int, without: range = range(0)) -> list[Row]:
    return [
        as_row(offset, first_ms + offset * 1000, None, value_of(incarnation, offset), [])
        for offset in range(count)
        if offset not in without
    ]


def _true_records(level: str) -> dict[Place, list[Row]]:
    """What is in each partition. The newer `orders` has no partition 1 in the archive, and has that of the older."""
    aborted = ABORTED if level == "read_committed" else range(9, 10)
    payments = [row for row in _rows("old", 12, OLD_MS, aborted) if row["o"] != 4]
    found = {
        ("orders", 0): _rows("new", 20, NEW_MS),
        ("orders", 1): _rows("second", 7, OLD_MS),
        (_ORDERS, 0): _rows("old", 30, OLD_MS),
        (_ORDERS, 1): _rows("second", 7, OLD_MS),
        ("payments", 0): _rows("new", 5, NEW_MS),
        (_PAYMENTS, 0): payments,
        ("single", 0): _rows("new", 3, NEW_MS),
    }
    return {(_PREFIX + topic, partition): rows for (topic, partition), rows in found.items()}


@pytest.mark.parametrize("client", READERS)
def test_every_incarnation_is_read_to_its_end(recreated: Endpoint, client: str) -> None:
    for level in LEVELS:
        true = _true_records(level)
        assert READERS[client](recreated.address, list(true), level) == true


def _uuid(topic_id: str) -> UUID:
    return UUID(bytes=urlsafe_b64decode(topic_id + "=="))


def test_topics_are_listed_with_the_ids_of_their_incarnations(recreated: Endpoint) -> None:
    asked = message(3, 12, "MetadataRequest", topics=None, include_topic_authorized_operations=False)
    with connected(recreated.port) as client:
        topics = client.ask(3, 12, asked).topics
    assert {topic.name: len(topic.partitions) for topic in topics} == {
        _PREFIX + name: count for name, count in _COUNTS.items()
    }
    ids = {topic.name.removeprefix(_PREFIX): topic.topic_id for topic in topics}
    assert ids == {
        "orders": None,  # Its partitions are of two incarnations.
        _ORDERS: _uuid(old_id("orders")),
        "payments": _uuid(new_id("payments")),
        _PAYMENTS: _uuid(old_id("payments")),
        "single": _uuid(new_id("single")),
    }


def test_records_are_fetched_by_the_id_of_an_incarnation(recreated: Endpoint) -> None:
    with connected(recreated.port) as client:
        for topic_id, incarnation in ((old_id("payments"), b"old 1"), (new_id("payments"), b"new 1")):
            answer = client.ask(1, 13, fetch(13, [(_uuid(topic_id), 0, 0)]))
            (part,) = answer.responses[0].partitions
            assert (part.error_code, incarnation in part.records) == (0, True)
        answer = client.ask(1, 13, fetch(13, [(_uuid(old_id("single")), 0, 0)]))
        assert answer.responses[0].partitions[0].error_code == 100, "UNKNOWN_TOPIC_ID"


def test_offsets_by_time_are_those_of_the_incarnation(recreated: Endpoint) -> None:
    asked = [
        (_PREFIX + topic, timestamp_ms)
        for topic in ("orders", _ORDERS)
        for timestamp_ms in (-2, -1, OLD_MS + 3000, NEW_MS + 3001)
    ]
    with connected(recreated.port) as client:
        found = {
            (topic.removeprefix(_PREFIX), timestamp_ms): client.ask(2, 11, list_offsets([(topic, 0, timestamp_ms)]))
            for topic, timestamp_ms in asked
        }
    assert {place: answer.topics[0].partitions[0].offset for place, answer in found.items()} == {
        ("orders", -2): 0,
        ("orders", -1): 20,
        ("orders", OLD_MS + 3000): 0,
        ("orders", NEW_MS + 3001): 4,
        (_ORDERS, -2): 0,
        (_ORDERS, -1): 30,
        (_ORDERS, OLD_MS + 3000): 3,
        (_ORDERS, NEW_MS + 3001): -1,
    }
