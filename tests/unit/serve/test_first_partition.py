"""Test that no partition of a fetch waits for others for long, whatever the client does with their order."""

from __future__ import annotations

from itertools import product

import pytest

from coldlog.serve.answers.fetch_plans import first_partition

FETCHES = 2000


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10, 60])
def test_each_partition_is_the_first_one_often_enough(count: int) -> None:
    """A client begins its list `turns` partitions later each time (librdkafka: one), and sends `step` requests from one
    fetch to the next (two if it commits after each). Of all orders, each partition has nearly its share."""
    for turns, step, begin in product(range(3), range(1, 6), (0, 2**31 - FETCHES)):
        firsts = [0] * count
        longest, last = 0, dict.fromkeys(range(count), -1)
        for fetch in range(FETCHES):
            first = (first_partition(begin + fetch * step, count) + fetch * turns) % count
            firsts[first] += 1
            longest, last[first] = max(longest, fetch - last[first]), fetch
        assert min(firsts) >= FETCHES // count // 2, (turns, step)
        assert longest <= 20 * count, (turns, step)


def test_a_list_in_the_same_order_goes_round() -> None:
    assert {first_partition(each, 3) for each in range(5)} == {0, 1, 2}
    assert first_partition(-1, 3) in range(3)
    assert first_partition(7, 0) == 0
