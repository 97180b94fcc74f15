"""Test the lineage of leader epochs with Kafka's own vectors, and segments of deposed leaders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.index.leader_epoch_lineage import EpochStart, LeaderEpochLineage, filter_epochs

LINEAGE = {0: 0, 1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}
OVERLAPPING = {7: 51, 9: 100}


def lineage_of(epochs: dict[int, int]) -> LeaderEpochLineage:
    return LeaderEpochLineage.of(epochs.items())


@pytest.mark.parametrize(
    ("lineage", "log_end_offset", "start", "end", "epochs", "is_within"),
    [
        (LINEAGE, 90, 15, 35, {1: 15, 2: 20, 3: 30}, True),
        (LINEAGE, 90, 15, 19, {1: 15}, True),
        (LINEAGE, 90, 0, 5, {0: 0}, True),
        (LINEAGE, 90, 70, 75, {7: 70}, True),
        (LINEAGE, 90, 15, 29, {1: 15, 2: 20}, True),
        (LINEAGE, 90, 55, 85, {5: 55, 6: 60, 7: 70}, False),
        (LINEAGE, 90, 15, 45, {1: 15, 2: 20, 4: 40}, False),
        (LINEAGE, 90, 15, 95, LINEAGE, False),
        (LINEAGE, 90, 15, 90, LINEAGE, False),
        (LINEAGE, 90, 5, 25, {1: 5, 2: 20}, False),
        (LINEAGE, 90, 15, 30, {1: 15, 2: 20}, False),
        (LINEAGE, 90, 15, 35, {1: 15, 2: 20}, False),
        (OVERLAPPING, 210, 14, 150, {5: 14, 7: 15, 9: 100}, True),
        (OVERLAPPING, 210, 2, 7, {2: 5, 3: 6}, False),
        (OVERLAPPING, 210, 15, 250, {7: 15, 9: 100, 10: 200}, False),
        (OVERLAPPING, 210, 75, 100, {8: 75}, False),
        (OVERLAPPING, 210, 15, 150, {7: 15, 9: 101}, False),
        (OVERLAPPING, 210, 99, 150, {9: 99}, False),
    ],
)
def test_segments_are_inside_or_outside_the_lineage_as_kafka_decides(
    lineage: dict[int, int], log_end_offset: int, start: int, end: int, epochs: dict[int, int], is_within: bool
) -> None:
    assert start <= end
    assert lineage_of(lineage).is_within(list(epochs.items()), end, log_end_offset) is is_within


def test_no_segment_is_within_an_empty_lineage_and_one_without_epochs_is_within_none() -> None:
    assert not lineage_of({}).is_within([(1, 15)], 19, 90)
    assert not lineage_of(LINEAGE).is_within([], 19, 90)


def test_epochs_without_records_are_ignored() -> None:
    entries = {0: 0, 1: 0, 2: 0, 3: 30, 4: 40, 5: 60, 6: 60, 7: 70, 8: 70}
    assert dict(filter_epochs(entries.items())) == {2: 0, 3: 30, 4: 40, 6: 60, 8: 70}
    assert filter_epochs([]) == ()


@pytest.mark.parametrize(
    ("epochs", "end", "last_within"),
    [
        ({1: 15, 2: 20, 3: 30}, 35, 35),
        ({5: 55, 6: 60, 7: 70}, 85, 59),
        ({1: 15, 2: 20, 4: 40}, 45, 29),
        ({1: 15, 2: 20}, 35, 29),
        ({1: 5, 2: 20}, 25, None),
        ({6: 60}, 65, None),
        ({8: 80}, 85, None),
        ({0: 0}, 25, 9),
        ({1: 19}, 25, 19),
        ({1: 20}, 25, None),
        ({1: 25, 6: 28}, 29, None),
    ],
)
def test_segment_counts_up_to_the_offset_where_it_leaves_the_lineage(
    epochs: dict[int, int], end: int, last_within: int | None
) -> None:
    assert lineage_of(LINEAGE).find_last_offset_within(list(epochs.items()), end) == last_within


@pytest.mark.parametrize(
    ("batches", "end", "last_within"),
    [
        pytest.param({1: 15, 2: 23}, 29, 29, id="the first batches of an epoch were removed"),
        pytest.param({1: 15, 3: 30}, 35, 35, id="an epoch was removed"),
        pytest.param({1: 15, 4: 44, 7: 72}, 80, 80, id="epochs and first batches were removed"),
        pytest.param({0: 3, 2: 25, 3: 29}, 39, 28, id="the lineage has another epoch at a batch"),
        pytest.param({0: 3, 2: 25}, 35, 29, id="another epoch at the last batch"),
        pytest.param({0: 3, 2: 25, 6: 62}, 65, 29, id="an epoch that the lineage does not have"),
        pytest.param({2: 17, 3: 35}, 39, None, id="another epoch at the first batch"),
    ],
)
def test_compacted_segment_counts_while_the_lineage_has_its_epochs_at_its_batches(
    batches: dict[int, int], end: int, last_within: int | None
) -> None:
    """As if its epochs had been announced before compaction."""
    lineage = lineage_of(LINEAGE)
    epochs = lineage.with_compacted(list(batches.items()))
    assert lineage.find_last_offset_within(epochs, end) == last_within
    assert lineage.is_within(epochs, end, 90) is (last_within == end)


def test_compacted_segment_may_begin_before_the_log_start_offset() -> None:
    cut = LeaderEpochLineage.of(LINEAGE.items(), log_start_offset=25)
    assert cut.with_compacted([(2, 21), (4, 44)]) == [(2, 21), (3, 30), (4, 40)]
    assert cut.with_compacted([(1, 15), (4, 44)]) == [(1, 15), (4, 44)]
    assert cut.find_last_offset_within([(1, 15), (4, 44)], 49) == 49
    assert LeaderEpochLineage.of([]).with_compacted([(1, 15), (4, 44)]) == [(1, 15), (4, 44)]


def test_lineage_begins_at_the_log_start_offset() -> None:
    cut = LeaderEpochLineage.of(LINEAGE.items(), log_start_offset=25)
    assert cut.entries == ((2, 25), (3, 30), (4, 40), (5, 50), (7, 70))
    assert cut.is_within([(1, 15), (2, 20), (3, 30)], 35, 90)
    assert not cut.is_within([(1, 15)], 19, 90)
    assert LeaderEpochLineage.of(LINEAGE.items(), log_start_offset=0) == lineage_of(LINEAGE)
    assert LeaderEpochLineage.of([]).first_epoch == -1


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[EpochStart], int, int]:
    """The epoch of each offset of a log, and a part of the log with its epochs."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    steps = draw(st.lists(st.integers(1, 3), min_size=len(lengths), max_size=len(lengths)))
    epochs: list[int] = []
    epoch = -1
    for length, step in zip(lengths, steps, strict=True):
        epoch += step
        epochs += [epoch] * length
    start = draw(st.integers(0, len(epochs) - 1))
    end = draw(st.integers(start, len(epochs) - 1))
    return epochs, epoch_starts(epochs, start, end), start, end


def epoch_starts(epochs: list[int], start: int, end: int) -> list[EpochStart]:
    return [(epochs[at], at) for at in range(start, end + 1) if at == start or epochs[at] != epochs[at - 1]]


@given(histories(), histories())
def test_segment_within_the_lineage_has_the_epochs_of_the_log(
    log: tuple[list[int], list[EpochStart], int, int], other: tuple[list[int], list[EpochStart], int, int]
) -> None:
    epochs, own, _, own_end = log
    lineage = LeaderEpochLineage.of(epoch_starts(epochs, 0, len(epochs) - 1))
    assert lineage.is_within(own, own_end, len(epochs))
    assert lineage.find_last_offset_within(own, own_end) == own_end
    others, foreign, start, end = other
    last = lineage.find_last_offset_within(foreign, end)
    if lineage.is_within(foreign, end, len(epochs)):
        assert last == end
    if last is not None and last < len(epochs):
        known = [at for at in range(start, last + 1) if others[at] >= lineage.first_epoch]
        assert [others[at] for at in known] == [epochs[at] for at in known]
