"""Test that topics make the same tasks as in Kafka Streams."""

from __future__ import annotations

import pytest

from coldlog.errors import UsageError
from coldlog.replay.tasks import TaskId, co_partitioned_tasks, one_task

COUNTS = {"clicks": 3, "orders": 2, "users": 3, "unread": 9}


def test_task_has_the_partition_with_its_number_of_each_topic() -> None:
    tasks = co_partitioned_tasks([["orders", "clicks"], {"users"}], COUNTS)
    assert {str(task): partitions for task, partitions in tasks.items()} == {
        "0_0": (("clicks", 0), ("orders", 0)),
        "0_1": (("clicks", 1), ("orders", 1)),
        "0_2": (("clicks", 2),),
        "1_0": (("users", 0),),
        "1_1": (("users", 1),),
        "1_2": (("users", 2),),
    }
    assert list(tasks) == sorted(tasks)
    assert TaskId(sub_topology=0, partition=10) > TaskId(sub_topology=0, partition=9)


def test_a_topic_that_is_named_twice_in_a_group_counts_once() -> None:
    assert co_partitioned_tasks([["orders", "orders"]], {"orders": 1}) == {
        TaskId(sub_topology=0, partition=0): (("orders", 0),)
    }


def test_one_task_has_all_partitions() -> None:
    assert one_task({"orders": 2, "clicks": 1}) == (("clicks", 0), ("orders", 0), ("orders", 1))


def test_invalid_groups_of_topics_are_refused() -> None:
    with pytest.raises(UsageError, match="no partitions of topic payments are known"):
        co_partitioned_tasks([["orders", "payments"]], COUNTS)
    with pytest.raises(UsageError, match="no partitions of topic orders"):
        one_task({"orders": 0})
    with pytest.raises(UsageError, match="topics in more than one group: clicks, users"):
        co_partitioned_tasks([["clicks", "users"], ["users", "clicks", "orders"]], COUNTS)
    with pytest.raises(UsageError, match="group 1 of topics is empty"):
        co_partitioned_tasks([["clicks"], []], COUNTS)
