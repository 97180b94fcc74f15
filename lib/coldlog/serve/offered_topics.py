"""List the topics that clients are offered: their names, numbers of partitions and ids.

The name is that of the archive with the prefix before it. Of a topic that was deleted and created again, every
incarnation but the newest is offered too, by its own name (`model.incarnations`), if it has one that is not too long
for Kafka.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from coldlog.model.incarnations import MOST_CHARACTERS, incarnation_name
from coldlog.records.source.archived_log import Incarnation

_LEGAL_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{MOST_CHARACTERS}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTopics:
    """`counts` has the number of partitions of each topic, `ids` the id of each that has one, `names` the reverse.
    `partition_ids` has the id of the incarnation of each partition as text, empty if it is not known."""

    counts: Mapping[str, int]
    ids: Mapping[str, UUID]
    names: Mapping[UUID, str]
    partition_ids: Mapping[tuple[str, int], str]


def list_topics(incarnations: Iterable[Incarnation], prefix: str) -> OfferedTopics:
    """List the topics of these incarnations."""
    topics: dict[str, list[Incarnation]] = {}
    named: dict[str, list[Incarnation]] = {}
    for each in incarnations:
        if each.is_current:
            topics.setdefault(prefix + each.topic, []).append(each)
        name = incarnation_name(each.topic, each.topic_id)
        if name is not None:
            named.setdefault(prefix + name, []).append(each)
    older = {name: parts for name, parts in named.items() if name not in topics and _is_offered(name, parts)}
    offered = {**topics, **older}
    ids = _find_ids(offered)
    return OfferedTopics(
        counts={name: 1 + max(each.partition for each in parts) for name, parts in offered.items()},
        ids=ids,
        names={topic_id: name for name, topic_id in ids.items()},
        partition_ids={(name, each.partition): each.topic_id for name, parts in offered.items() for each in parts},
    )


def _is_offered(name: str, parts: Sequence[Incarnation]) -> bool:
    has_one_id = len({each.topic_id for each in parts}) == 1
    return has_one_id and len(name) <= MOST_CHARACTERS and not all(each.is_current for each in parts)


def _find_ids(offered: Mapping[str, Sequence[Incarnation]]) -> dict[str, UUID]:
    """Return the ids by which topics can be asked for."""
    found: dict[str, UUID] = {}
    for name, parts in offered.items():
        # A partition of which only an older incarnation is archived has the id of that one.
        ids = {each.topic_id for each in parts}
        topic_id = topic_uuid(ids.pop()) if len(ids) == 1 else None
        if topic_id is not None:
            found[name] = topic_id
    # A mirror may have a topic under two names.
    uses = Counter(found.values())
    return {name: topic_id for name, topic_id in found.items() if uses[topic_id] == 1}


def topic_uuid(topic_id: str) -> UUID | None:
    """Return Kafka's base64 text of a topic id as UUID; None if it is none, or Kafka's mark of an unknown one."""
    try:
        found = UUID(bytes=urlsafe_b64decode(topic_id + "=="))
    except ValueError:
        return None
    return found if found.int else None


def is_legal_name(name: str) -> bool:
    """Whether a broker could have a topic of this name, as Kafka's `Topic.validate` says."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in (".", "..")
