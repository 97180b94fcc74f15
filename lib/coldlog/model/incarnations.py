"""Name the incarnations of a topic.

A topic that was deleted and created again has an id for each incarnation. The newest one has the topic's name. An older
one has a name of its own: the topic's name, `.id-`, and the first characters of its id. Kafka allows all these
characters.

A name that a topic has is never that of an incarnation, and a name that two incarnations would have belongs to neither.
"""

from __future__ import annotations

_MARK = ".id-"
_ID_LENGTH = 8
MOST_CHARACTERS = 249
"""The length of a topic's name in Kafka."""


def incarnation_name(topic: str, topic_id: str) -> str | None:
    """Return the name of an incarnation of a topic; None if its id is not known, so that it has no name."""
    return f"{topic}{_MARK}{topic_id[:_ID_LENGTH]}" if len(topic_id) >= _ID_LENGTH else None


def topic_of_incarnation(name: str) -> str | None:
    """Return the topic of an incarnation; None if no incarnation can have this name."""
    topic, mark, id_start = name.rpartition(_MARK)
    return topic if mark and topic and len(id_start) == _ID_LENGTH else None
