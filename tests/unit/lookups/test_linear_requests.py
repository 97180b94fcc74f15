"""Many requests, and the wrong one among them, are read with work that grows as their number does."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.lookups.requests.requests_file import read_requests_file
from coldlog.reader import _first_unfit
from counts.counted_calls import count_calls

COUNT, TIMES = 20_000, 4
MOST_TIMES = 5
"""Work that grows as the square of the number would be 16 times as much."""
LINE = '{"topic": "orders", "partition": 0, "timestamp_ms": 5}\n'


@pytest.mark.parametrize("more", ["", ', "current_leader_epoch": 3'], ids=["required columns", "an optional column"])
def test_four_times_as_many_json_lines_are_four_times_the_work(more: str, tmp_path: Path) -> None:
    def work(count: int) -> int:
        path = tmp_path / f"{count}.jsonl"
        path.write_text(LINE.replace("}", more + "}") * count, encoding="utf-8")
        return count_calls(lambda: read_requests_file(str(path)))

    work(1)  # imports what the first file needs
    assert work(COUNT * TIMES) <= MOST_TIMES * work(COUNT)


@pytest.mark.parametrize("wrong", ['{"topic": "orders", "partition": 0}\n', "[]\n", "{\n"])
def test_the_wrong_one_of_many_json_lines_costs_a_look_at_its_chunk(wrong: str, tmp_path: Path) -> None:
    def work(count: int) -> int:
        path = tmp_path / f"{count}.jsonl"
        path.write_text(LINE * count + wrong, encoding="utf-8")

        def refuse() -> None:
            with pytest.raises(UsageError, match=f"line {count + 1}"):
                read_requests_file(str(path))

        return count_calls(refuse)

    work(1)  # imports what the first file needs
    assert work(COUNT * TIMES) <= MOST_TIMES * work(COUNT)


def test_the_wrong_one_of_many_requests_of_a_program_is_found_by_halves() -> None:
    def work(count: int) -> int:
        requests = [("orders", 0, 5)] * count + [("orders", 0, "5")]
        found: list[int] = []
        calls = count_calls(lambda: found.append(_first_unfit(requests)))
        assert found == [count]
        return calls

    work(1)  # imports what the first table needs
    few = work(COUNT)
    assert work(COUNT * TIMES) <= MOST_TIMES * few
    assert few < 40 * COUNT, "one table for each request would be some hundred calls for each"
