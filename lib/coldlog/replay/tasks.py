"""tasks: which partitions are replayed together?

As the tasks of Kafka Streams (PartitionGrouper of 4.2): the topics that one part of a program reads, a sub-topology,
are co-partitioned, and partition n of each of them makes task n. There are as many tasks as the topic with the most
partitions has; a topic with fewer is absent from those behind. Records are ordered within a task, and tasks know
nothing of each other. What is to come in one order altogether is one task of all partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coldlog.errors import UsageError

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TaskId:
    """Of a task; as text it is Kafka's, such as 0_3."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"


def co_partitioned_tasks(
    sub_topologies: Sequence[Collection[str]], partition_counts: Mapping[str, int]
) -> dict[TaskId, tuple[TopicPartition, ...]]:
    """The partitions of each task, by topic; tasks in order.

    `sub_topologies` are groups of topics, numbered as they come; `partition_counts` says how many partitions each topic
    has. A topic without partitions, in two groups, or a group without topics is a `UsageError`.
    """
    named = Counter(topic for topics in sub_topologies for topic in set(topics))
    twice = sorted(topic for topic, count in named.items() if count > 1)
    if twice:
        raise UsageError(f"{', '.join(twice)}: a topic is read by one group of topics; name it in one of them")
    tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
    for number, topics in enumerate(sub_topologies):
        if not topics:
            raise UsageError(f"group {number} of topics is empty; name a topic in it, or leave it out")
        counts = {topic: _count(topic, partition_counts) for topic in sorted(set(topics))}
        for partition in range(max(counts.values())):
            tasks[TaskId(sub_topology=number, partition=partition)] = tuple(
                (topic, partition) for topic, count in counts.items() if partition < count
            )
    return tasks


def one_task(partition_counts: Mapping[str, int]) -> tuple[TopicPartition, ...]:
    """All partitions of all topics, to be replayed in one order; errors as above."""
    return tuple(
        (topic, partition) for topic in sorted(partition_counts) for partition in range(_count(topic, partition_counts))
    )


def _count(topic: str, partition_counts: Mapping[str, int]) -> int:
    count = partition_counts.get(topic, 0)
    if count < 1:
        raise UsageError(f"topic {topic} has no partitions that are known; is it archived, and its name right?")
    return count
