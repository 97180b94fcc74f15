"""Test that the heap takes the smallest head, and that sorting by the running maximum gives the same order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coldlog.replay.order import Head, TopicPartition, running_maximum
from contents.merged_logs import iter_merged

TIMES = st.one_of(st.integers(-3, 4), st.integers(-(2**63), 2**63 - 1))
PLACES = st.tuples(st.sampled_from(["a", "a-1", "b", "é", "\U0001f600", "\uffee"]), st.integers(0, 11))


@st.composite
def logs(draw: st.DrawFn) -> dict[TopicPartition, list[Head]]:
    """Draw logs: offsets ascend with gaps, timestamps are arbitrary."""
    found: dict[TopicPartition, list[Head]] = {}
    for place in draw(st.lists(PLACES, max_size=5, unique=True)):
        times = draw(st.lists(TIMES, max_size=12))
        steps = draw(st.lists(st.integers(1, 3), min_size=len(times), max_size=len(times)))
        found[place] = list(zip(times, np.cumsum(steps).tolist(), strict=True))
    return found


def by_looking_at_every_head(given_logs: dict[TopicPartition, list[Head]]) -> list[tuple[TopicPartition, Head]]:
    """Apply the rule literally: compare all heads."""
    rest = {place: list(log) for place, log in given_logs.items() if log}
    merged = []
    while rest:
        place = min(rest, key=lambda each: (rest[each][0][0], each))
        merged.append((place, rest[place].pop(0)))
        if not rest[place]:
            del rest[place]
    return merged


@given(given_logs=logs())
def test_heap_takes_the_smallest_head(given_logs: dict[TopicPartition, list[Head]]) -> None:
    assert list(iter_merged(given_logs)) == by_looking_at_every_head(given_logs)


@given(given_logs=logs(), shuffled=st.randoms(use_true_random=False))
def test_sorting_by_the_running_maximum_gives_the_same_order(given_logs, shuffled) -> None:  # type: ignore[no-untyped-def]
    rows = [
        (place, head, int(reached))
        for place, log in given_logs.items()
        for head, reached in zip(log, running_maximum(np.array([time for time, _ in log], dtype=np.int64)), strict=True)
    ]
    # In the order in which the tasks of a cluster return them.
    shuffled.shuffle(rows)
    rows.sort(key=lambda row: (row[2], row[0], row[1][1]))
    assert [(place, head) for place, head, _ in rows] == list(iter_merged(given_logs))


@given(times=st.lists(TIMES, max_size=20), cut=st.integers(0, 20))
def test_running_maximum_continues_from_an_earlier_maximum(times: list[int], cut: int) -> None:
    whole = np.array(times, dtype=np.int64)
    first = running_maximum(whole[:cut])
    second = running_maximum(whole[cut:], int(first[-1]) if len(first) else None)
    assert [*first.tolist(), *second.tolist()] == [max(times[: at + 1]) for at in range(len(times))]


def test_partition_keeps_its_order_if_its_timestamps_decrease() -> None:
    merged = iter_merged({("a", 0): [(5, 0), (1, 1), (9, 2)], ("b", 0): [(4, 0), (5, 1), (6, 2)]})
    assert [(place[0], *head) for place, head in merged] == [
        ("b", 4, 0), ("a", 5, 0), ("a", 1, 1), ("b", 5, 1), ("b", 6, 2), ("a", 9, 2),
    ]  # fmt: skip
