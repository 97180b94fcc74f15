"""Which topics are offered, under which names and ids?"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from uuid import UUID

from builders.segment_builder import uuid_text_of
from coldlog.records.source.archived_log import Incarnation
from coldlog.serve.offered_topics import list_topics

_NEWER, _NEW, _OLD, _OLDEST, _LONG = (uuid_text_of(seed) for seed in ("newer", "new", "old", "oldest", "long"))


def _of(topic_id: str, *, partition: int = 0, is_current: bool = False, topic: str = "orders") -> Incarnation:
    return Incarnation(topic=topic, partition=partition, is_current=is_current, topic_id=topic_id)


def _uuid(topic_id: str) -> UUID:
    return UUID(bytes=urlsafe_b64decode(topic_id + "=="))


def test_older_incarnations_have_names_of_their_own() -> None:
    offered = list_topics([_of(_OLD), _of(_OLD, partition=2), _of(_NEW, is_current=True), _of(_OLDEST)], "archive.")
    old, oldest = f"archive.orders.id-{_OLD[:8]}", f"archive.orders.id-{_OLDEST[:8]}"
    assert offered.counts == {"archive.orders": 1, old: 3, oldest: 1}
    assert offered.ids == {"archive.orders": _uuid(_NEW), old: _uuid(_OLD), oldest: _uuid(_OLDEST)}
    assert offered.names == {topic_id: name for name, topic_id in offered.ids.items()}


def test_a_topic_whose_partitions_have_several_ids_has_none() -> None:
    parts = [_of(_NEW, is_current=True), _of(_OLD), _of(_OLD, partition=1, is_current=True)]
    offered = list_topics(parts, "")
    old = f"orders.id-{_OLD[:8]}"
    assert offered.counts == {"orders": 2, old: 2}
    assert offered.names == {_uuid(_OLD): old}


def test_a_name_that_is_taken_or_too_long_is_not_offered_again() -> None:
    taken, long = f"orders.id-{_OLD[:8]}", "l" * 238
    parts = [_of(_NEW, is_current=True), _of(_OLD, partition=3), _of(_NEWER, is_current=True, topic=taken)]
    parts += [_of(_LONG, is_current=True, topic=long), _of(_OLDEST, topic=long, partition=9)]
    offered = list_topics(parts, "")
    assert offered.counts == {"orders": 1, taken: 1, long: 1}
    assert offered.ids == {"orders": _uuid(_NEW), taken: _uuid(_NEWER), long: _uuid(_LONG)}


def test_a_name_that_two_incarnations_would_have_is_not_offered() -> None:
    alike = _OLD[:8] + _NEW[8:]
    parts = [_of(_NEW, is_current=True), _of(_OLD), _of(alike, partition=1), _of(_OLDEST)]
    assert list_topics(parts, "").counts == {"orders": 1, f"orders.id-{_OLDEST[:8]}": 1}


def test_a_deleted_topic_that_was_not_created_again_keeps_its_name() -> None:
    offered = list_topics([_of(_OLD, is_current=True), _of(_OLD, is_current=True, partition=1)], "")
    assert (offered.counts, offered.ids) == ({"orders": 2}, {"orders": _uuid(_OLD)})


def test_an_incarnation_whose_id_is_not_known_has_no_name_of_its_own() -> None:
    parts = [_of("", is_current=True, partition=1), _of(""), _of(_NEW, is_current=True)]
    parts += [_of("A" * 22, is_current=True, topic="payments"), _of("", is_current=True, topic="logs")]
    offered = list_topics(parts, "")
    assert offered.counts == {"orders": 2, "payments": 1, "logs": 1}
    assert (offered.ids, offered.names) == ({}, {})


def test_an_id_that_two_topics_have_finds_neither() -> None:
    offered = list_topics([_of(_NEW, is_current=True, topic=topic) for topic in ("orders", "orders.copy")], "")
    assert offered.counts == {"orders": 1, "orders.copy": 1}
    assert (offered.ids, offered.names) == ({}, {})
