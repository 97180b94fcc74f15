"""Test that each segment is read once, by tasks of about equal work, and published in commits of limited size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from coldlog.archive.layouts.layout import SegmentFileKind
from coldlog.indexing.builds.build_plan import SegmentWork, WorkTable, plan_commits, plan_tasks
from tables.work_rows import work_rows

MIB = 1 << 20
OPENING_BYTES = MIB
"""The cost of opening a segment, in bytes; it is added to the size of each segment."""


def work_of(sizes: Sequence[int | None]) -> WorkTable:
    """One segment for each size, in order; None: a segment without a log."""
    return WorkTable.of(work_rows([_row(number, size) for number, size in enumerate(sizes)]))


def _row(number: int, size: int | None) -> dict[str, object]:
    kinds = {SegmentFileKind.OFFSET_INDEX: 10} | ({} if size is None else {SegmentFileKind.LOG: size})
    objects = [
        {"kind": kind.value, "name": f"{number}.{kind}", "size_bytes": size_bytes, "modified_ms": 0}
        for kind, size_bytes in kinds.items()
    ]
    return {
        "topic": "orders",
        "topic_id": "A" * 22,
        "partition": 0,
        "start_offset": number,
        "segment_id": f"{number:022d}",
        "objects": objects,
        "log_modified_ms": 0,
        "count_from_offset": number,
    }


def flat(runs: Sequence[WorkTable]) -> list[SegmentWork]:
    return [each for run in runs for each in run]


def bytes_of(run: Iterable[SegmentWork]) -> int:
    return sum(each.log_bytes for each in run)


def cost_of(run: Sequence[SegmentWork]) -> int:
    return bytes_of(run) + OPENING_BYTES * len(run)


# Nothing, next to nothing, what a topic is set to, and one that is far larger than all others.
SIZES = st.lists(
    st.one_of(st.none(), st.integers(0, 3), st.integers(0, 8 * MIB), st.just(1 << 30), st.integers(0, 1 << 40)),
    max_size=40,
)


@given(sizes=SIZES, task_count=st.integers(1, 64))
def test_tasks_hold_each_segment_once_in_order_and_none_is_empty(sizes: list[int | None], task_count: int) -> None:
    work = work_of(sizes)
    tasks = plan_tasks(work, task_count)
    assert flat(tasks) == list(work)
    assert all(map(len, tasks))
    assert len(tasks) <= task_count


@given(sizes=SIZES, task_count=st.integers(1, 64))
def test_a_task_has_at_most_its_share_and_one_segment(sizes: list[int | None], task_count: int) -> None:
    work = work_of(sizes)
    largest = max((cost_of([each]) for each in work), default=0)
    for task in plan_tasks(work, task_count):
        assert cost_of(list(task)) * task_count <= cost_of(list(work)) + largest * task_count


@given(size=st.integers(0, 1 << 40), count=st.integers(1, 200), task_count=st.integers(1, 64))
def test_segments_of_one_size_keep_every_core_busy(size: int, count: int, task_count: int) -> None:
    lengths = [len(task) for task in plan_tasks(work_of([size] * count), task_count)]
    assert len(lengths) == min(count, task_count)
    assert max(lengths) - min(lengths) <= 1


def test_many_small_segments_are_divided_although_one_large_segment_has_most_bytes() -> None:
    tasks = plan_tasks(work_of([*[1] * 1000, 100 * MIB]), 2)
    assert [len(task) for task in tasks] == [551, 450]


@given(sizes=SIZES, max_bytes=st.one_of(st.integers(1, 10), st.integers(1, 1 << 41)))
def test_commits_hold_each_segment_once_in_order_and_at_most_their_bytes(
    sizes: list[int | None], max_bytes: int
) -> None:
    work = work_of(sizes)
    commits = plan_commits(work, max_bytes)
    assert flat(commits) == list(work)
    assert all(map(len, commits))
    for commit in commits:
        assert commit.total_bytes == bytes_of(commit)
        assert commit.total_bytes <= max_bytes or len(commit) == 1
    for commit, following in pairwise(commits):
        assert commit.total_bytes + next(iter(following)).log_bytes > max_bytes, (
            "a commit that could hold more costs a run time"
        )


def test_segment_larger_than_a_commit_gets_its_own_commit() -> None:
    commits = plan_commits(work_of([4, 6, 11, 0, 10, 1]), 10)
    assert [[each.log_bytes for each in commit] for commit in commits] == [[4, 6], [11], [0, 10], [1]]


@given(sizes=SIZES, task_count=st.integers(1, 8))
def test_a_task_unpacks_its_segments(sizes: list[int | None], task_count: int) -> None:
    for task in plan_tasks(work_of(sizes), task_count):
        unpacked = WorkTable.unpacked(task.packed())
        assert (list(unpacked), unpacked.log_bytes.tolist()) == (list(task), task.log_bytes.tolist())


def test_segments_are_taken_in_the_order_of_their_keys() -> None:
    rows = work_rows([_row(number, 1) for number in (3, 1, 2)])
    assert [each.segment.start_offset for each in WorkTable.of(rows)] == [1, 2, 3]


def test_names_of_objects_may_take_more_than_two_gigabytes() -> None:
    listed = work_of([1]).rows["objects"].chunk(0).flatten()
    assert pa.types.is_large_string(listed.field("name").type)


def test_a_segment_is_decoded_again_if_its_objects_were_indexed_at_record_depth() -> None:
    depths = ("sidecar", "batch", "record", None)
    work = WorkTable.of(work_rows([_row(number, 1) | {"index_depth": depth} for number, depth in enumerate(depths)]))
    assert [each.is_decoded for each in work] == [False, False, True, False]
