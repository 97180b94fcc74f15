"""Write and read the position of a stream, as Spark keeps it in the checkpoint.

    {"orders": {"0": 23, "1": 0}, "orders/Wm3kTq9xRk2fN1bZ0yQvHg/0,1": {}}

An entry of a topic has the next offset of each partition, as in a checkpoint of Spark's Kafka source. An entry without
offsets names the id of a topic and the partitions that the stream has read of it. No topic has a slash in its name, and
Spark's Kafka source passes over a topic without partitions, so it can read these checkpoints. Checkpoints of that
source, and older ones, have no ids: then a topic that was created again is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coldlog.errors import UsageError
from coldlog.records.source.options import TopicPartition

Position = dict[str, dict[str, int]]
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The next offset of each partition, and the ids of their topics as far as they are known."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict)

    def find_recreated(self, later: Mapping[TopicPartition, str]) -> list[TopicPartition]:
        """Return the partitions whose topic has another id in `later`, where an empty id is an unknown one."""
        ids = self.topic_ids
        return sorted(place for place in ids.keys() & later.keys() if later[place] not in ("", ids[place]))

    def entries(self) -> Position:
        """Return the entries of the checkpoint, sorted, so that the same position has the same text."""
        position: Position = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            position.setdefault(topic, {})[str(partition)] = offset
        partitions: dict[tuple[str, str], list[str]] = {}
        for (topic, partition), topic_id in sorted(self.topic_ids.items()):
            partitions.setdefault((topic, topic_id), []).append(str(partition))
        for (topic, topic_id), numbers in sorted(partitions.items()):
            position[f"{topic}/{topic_id}/{','.join(numbers)}"] = {}
        return position


def read_position(position: Position) -> StreamPosition:
    """Read the entries of a checkpoint."""
    offsets: dict[TopicPartition, int] = {}
    topic_ids: dict[TopicPartition, str] = {}
    for name, of_topic in position.items():
        topic, *has_id = name.split("/")
        offsets |= {(topic, int(partition)): offset for partition, offset in of_topic.items()}
        if has_id:
            topic_id, partitions = has_id
            topic_ids |= {(topic, int(partition)): topic_id for partition in partitions.split(",")}
    return StreamPosition(offsets=offsets, topic_ids=topic_ids)


def recreated(
    places: Iterable[TopicPartition], before: Mapping[TopicPartition, str], now: Mapping[TopicPartition, str]
) -> UsageError:
    """Return the error for a position in topics that were created again since."""
    names = ", ".join(
        f"{topic}-{partition} (id {before[topic, partition]}, now {now[topic, partition]})"
        for topic, partition in sorted(places)[:_SHOWN]
    )
    return UsageError(
        f"topics were created again since the stream has read them: {names}. Use another checkpoint, or "
        "failOnDataLoss=false to read the new ones from their first offset on"
    )
