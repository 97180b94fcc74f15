"""Say which topic or partition the warehouse does not have, and which name is near."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from coldlog.errors import UsageError
from coldlog.runtime.installation import COMMAND
from coldlog.tables.table_rows import read_table

if TYPE_CHECKING:
    from coldlog.runtime.settings import Settings


def find_unknown(settings: Settings, topic: str | None, partition: int | None = None) -> UsageError | None:
    """Return the error for a topic, or a partition of it, that is in none of the tables; None if it is there. Without a
    topic, a partition of any topic counts."""
    from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
    from coldlog.tables.definitions.segments import SEGMENTS

    known: dict[str, set[int]] = {}
    # Segments that no run has published yet are in the second table only.
    for table in (PARTITION_METADATA, SEGMENTS):
        for row in read_table(settings, table, ("topic", "partition")):
            known.setdefault(row["topic"], set()).add(row["partition"])
        numbers = set().union(*known.values()) if topic is None else known.get(topic)
        if numbers is not None and (partition is None or partition in numbers):
            return None
    warehouse = f"the warehouse {settings.warehouse_uri}"
    if topic is None:
        return UsageError(f"no topic of {warehouse} has a partition {partition}; `{COMMAND} partitions` lists all")
    return UsageError(f"{warehouse} does not know {unknown_text(topic, partition, known)}")


def unpublished_topic(settings: Settings, topic: str) -> UsageError:
    """Return the error for a topic of which no partition is published."""
    return find_unknown(settings, topic) or UsageError(f"the topic {topic!r} has no published partition yet")


def unknown_text(topic: str, partition: int | None, known: Iterable[str]) -> str:
    """Return the topic, or its partition, with the nearest of the `known` topics and the command that lists all."""
    names = list(known)
    if topic not in names:
        return f"the topic {topic!r}{_nearest(topic, names)} lists all"
    return f"partition {partition} of topic {topic!r}; `{COMMAND} partitions {topic}` lists all"


def _nearest(topic: str, known: Iterable[str]) -> str:
    from coldlog.runtime.nearest import nearest_name

    near = nearest_name(topic, known)
    return f"; `{COMMAND} topics`" if near is None else f": did you mean {near}? `{COMMAND} topics`"
