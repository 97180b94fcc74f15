"""Test that every record is in one bucket, and that the records of a bucket precede those of the next."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coldlog.replay.buckets import Place, Sample, bucket_numbers, choose_bounds
from coldlog.replay.order import running_maximum

TOPICS = ("a", "b", "é")
LOGS = st.dictionaries(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, 2)), st.lists(st.integers(-3, 6), max_size=12), max_size=6
)


def _places(topic: str, partition: int, timestamps_ms: list[int], task: int) -> list[Place]:
    reached = running_maximum(np.array(timestamps_ms, dtype=np.int64)).tolist()
    return [Place(task, reached_ms, topic, partition, offset * 2) for offset, reached_ms in enumerate(reached)]


@given(logs=LOGS, by_partition=st.booleans(), step=st.integers(1, 4), bucket_count=st.integers(1, 6))
def test_records_of_a_bucket_come_before_those_of_the_next(
    logs: dict[tuple[str, int], list[int]], by_partition: bool, step: int, bucket_count: int
) -> None:
    places = {
        (topic, partition): _places(topic, partition, timestamps_ms, partition if by_partition else 0)
        for (topic, partition), timestamps_ms in logs.items()
    }
    samples = [Sample(own[at], step) for own in places.values() for at in range(0, len(own), step)]
    bounds = choose_bounds(samples, bucket_count)
    assert len(bounds) < bucket_count
    found: list[tuple[int, Place]] = []
    for (topic, partition), own in places.items():
        reached = np.array([each.reached_ms for each in own], dtype=np.int64)
        offsets = np.array([each.offset for each in own], dtype=np.int64)
        task = partition if by_partition else 0
        numbers = bucket_numbers(bounds, task, topic, partition, reached, offsets)
        found += zip(numbers.tolist(), own, strict=True)
    assert sorted(found) == sorted(found, key=lambda each: each[1])


def test_buckets_are_about_equal_even_after_a_timestamp_of_the_far_future() -> None:
    own = _places("a", 0, [9_999_999, *range(1_000)], task=0)
    bounds = choose_bounds([Sample(each, 1) for each in own], 4)
    reached = np.array([each.reached_ms for each in own], dtype=np.int64)
    offsets = np.array([each.offset for each in own], dtype=np.int64)
    counts = Counter(bucket_numbers(bounds, 0, "a", 0, reached, offsets).tolist())
    assert sorted(counts) == [0, 1, 2, 3]
    assert max(counts.values()) - min(counts.values()) <= 3


def test_without_records_there_is_one_bucket() -> None:
    assert choose_bounds([], 8) == []
    nothing = np.array([], dtype=np.int64)
    assert bucket_numbers([Place(0, 5, "a", 0, 1)], 0, "a", 0, nothing, nothing).tolist() == []
