"""Group partitions into the tasks of a replay.

The groups are those of Kafka Streams (PartitionGrouper of 4.2). The topics that one part of a program reads, a
sub-topology, are co-partitioned, and partition n of each of them makes task n. There are as many tasks as the topic
with the most partitions has partitions; a topic with fewer partitions is missing in the last tasks. Records are ordered
within a task, and tasks are independent. For one order of all records, use one task with all partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coldlog.errors import UsageError

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TaskId:
    """The id of a task. Its text form is Kafka's, such as 0_3."""

    sub_topology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.sub_topology}_{self.partition}"


def co_partitioned_tasks(
    sub_topologies: Sequence[Collection[str]], partition_counts: Mapping[str, int]
) -> dict[TaskId, tuple[TopicPartition, ...]]:
    """Return the partitions of each task, by topic; tasks in order.

    `sub_topologies` are groups of topics, numbered in order; `partition_counts` is the number of partitions of each
    topic. Raise `UsageError` for a topic without partitions or in two groups, and for a group without topics.
    """
    named = Counter(topic for topics in sub_topologies for topic in set(topics))
    twice = sorted(topic for topic, count in named.items() if count > 1)
    if twice:
        raise UsageError(f"topics in more than one group: {', '.join(twice)}; name each topic in one group")
    tasks: dict[TaskId, tuple[TopicPartition, ...]] = {}
    for number, topics in enumerate(sub_topologies):
        if not topics:
            raise UsageError(f"group {number} of topics is empty; name a topic in it, or remove it")
        counts = {topic: _count(topic, partition_counts) for topic in sorted(set(topics))}
        for partition in range(max(counts.values())):
            tasks[TaskId(sub_topology=number, partition=partition)] = tuple(
                (topic, partition) for topic, count in counts.items() if partition < count
            )
    return tasks


def one_task(partition_counts: Mapping[str, int]) -> tuple[TopicPartition, ...]:
    """Return all partitions of all topics, to be replayed in one order. Errors are as for `co_partitioned_tasks`."""
    return tuple(
        (topic, partition) for topic in sorted(partition_counts) for partition in range(_count(topic, partition_counts))
    )


def _count(topic: str, partition_counts: Mapping[str, int]) -> int:
    count = partition_counts.get(topic, 0)
    if count < 1:
        raise UsageError(f"no partitions of topic {topic} are known; is it archived, and is its name right?")
    return count
