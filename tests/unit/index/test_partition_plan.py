"""Test the plan of a partition without tables: log start offset, gaps, cuts, running maxima."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from coldlog.index.log_start import LogStart, LogStartSource
from coldlog.index.partition_plan import IncarnationPlan, plan_partition
from coldlog.index.segment_facts import ANY_TIMESTAMP_MS, SegmentFacts
from coldlog.index.served_ranges import NotServedReason
from coldlog.index.unserved_ranges import UnservedRange

Epochs = tuple[tuple[int, int], ...]


def segment(segment_id: str, start: int, end: int, *, epochs: Epochs | None = None, max_ms: int = 100) -> SegmentFacts:
    """A usable segment, by default of leader epoch 1. The maximum in its metadata is 5 ms larger than in its
    records."""
    return SegmentFacts(
        topic_id="T",
        segment_id=segment_id,
        start_offset=start,
        written_ms=1,
        is_usable=True,
        is_finished=True,
        end_offset=end,
        leader_epochs=((1, start),) if epochs is None else epochs,
        counted_from_offset=start,
        counted_max_timestamp_ms=max_ms,
        counted_max_timestamp_offset=start,
        metadata_max_timestamp_ms=max_ms + 5,
    )


def deleted(copied: SegmentFacts) -> SegmentFacts:
    return replace(copied, is_usable=False, is_finished=False, is_deleted=True)


def plan(*segments: SegmentFacts, supplied: int | None = None, checkpoint: Epochs = ()) -> IncarnationPlan:
    (planned,) = plan_partition(segments, supplied, {"T": checkpoint}, {"cut": (70, 33)})
    return planned


def test_gaps_are_counted_between_served_segments() -> None:
    assert plan(segment("a", 0, 9), segment("b", 10, 19), segment("c", 20, 29)).gap_count == 0
    gaps = plan(segment("a", 0, 9), segment("b", 11, 19), segment("c", 25, 29))
    assert (gaps.gap_count, gaps.earliest_offset, gaps.latest_tiered_offset) == (2, 0, 29)


@pytest.mark.parametrize(
    ("supplied", "checkpoint", "expected"),
    [
        (None, (), LogStart(10, LogStartSource.DELETED_SEGMENTS)),
        (5, (), LogStart(10, LogStartSource.DELETED_SEGMENTS)),
        (15, (), LogStart(15, LogStartSource.SUPPLIED)),
        (5, ((1, 12),), LogStart(12, LogStartSource.LEADER_EPOCHS)),
        (15, ((1, 12),), LogStart(15, LogStartSource.SUPPLIED)),
    ],
)
def test_log_start_offset_is_the_highest_of_all_sources(
    supplied: int | None, checkpoint: Epochs, expected: LogStart
) -> None:
    assert (
        plan(deleted(segment("gone", 0, 9)), segment("a", 10, 19), supplied=supplied, checkpoint=checkpoint).log_start
        == expected
    )


@pytest.mark.parametrize(
    ("start", "end", "epochs", "expected"),
    [
        pytest.param(50, 99, ((0, 50),), 60, id="follows the log up to the next leader"),
        pytest.param(70, 99, ((0, 70),), 60, id="begins after the end of its epoch: that was truncated"),
        pytest.param(50, 99, ((0, 50), (1, 55)), 55, id="has an epoch that the log does not have"),
        pytest.param(50, 99, ((1, 50),), None, id="has no epoch of the log"),
        pytest.param(50, 79, ((0, 50), (2, 60)), 80, id="is of the log"),
        pytest.param(50, 59, ((0, 50),), 60, id="ends with its epoch"),
    ],
)
def test_deleted_segment_of_a_deposed_leader_moves_the_log_start_to_where_it_leaves_the_log(
    start: int, end: int, epochs: Epochs, expected: int | None
) -> None:
    live, gone = segment("live", 80, 130, epochs=((2, 80),)), deleted(segment("gone", start, end, epochs=epochs))
    found = plan(gone, live, checkpoint=((0, 0), (2, 60)))
    wanted = LogStart(80, LogStartSource.FIRST_SEGMENT)
    assert found.log_start == (wanted if expected is None else LogStart(expected, LogStartSource.DELETED_SEGMENTS))
    assert (found.earliest_offset, found.latest_tiered_offset) == (80, 130)


def test_first_leader_epoch_does_not_set_the_log_start_if_earlier_records_have_no_epoch() -> None:
    checkpoint = ((4, 10),)
    with_epochs = plan(segment("a", 10, 19, epochs=((4, 10),)), checkpoint=checkpoint)
    assert with_epochs.log_start == LogStart(10, LogStartSource.LEADER_EPOCHS)
    without = plan(
        segment("a", 0, 9, epochs=((-1, 0),)), segment("b", 10, 19, epochs=((4, 10),)), checkpoint=checkpoint
    )
    assert (without.log_start, without.earliest_offset) == (None, 0)


def test_segments_follow_the_checkpoint_up_to_its_last_leader() -> None:
    found = plan(segment("a", 0, 9), segment("b", 10, 19, epochs=((2, 10),)), checkpoint=((1, 0), (2, 10)))
    assert [each.is_within_lineage for each in found.segments] == [True, True]
    assert [(each.from_offset, each.to_offset) for each in found.segments] == [(0, 9), (10, 19)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param(50, {"deposed": None, "again": (50, 79)}, id="of two copies, the one that follows further"),
        pytest.param(60, {"deposed": (50, 59), "again": (60, 79)}, id="the first one up to the next"),
        pytest.param(70, {"deposed": (50, 69), "again": (70, 79)}, id="one after the other"),
    ],
)
def test_leader_epoch_after_the_cut_bars_no_segment(start: int, expected: dict[str, tuple[int, int] | None]) -> None:
    """A leader was deposed at offset 80, elected again, and uploaded what another one had led from 70 on."""
    deposed = segment("deposed", 50, 99, epochs=((0, 50), (1, 70)))
    again, newest = segment("again", start, 79, epochs=((0, start),)), segment("newest", 80, 120, epochs=((2, 80),))
    found = plan(segment("a", 0, 49, epochs=((0, 0),)), deposed, again, newest, checkpoint=((0, 0), (2, 80)))
    ranges = {each.segment.segment_id: (each.from_offset, each.to_offset) for each in found.segments if not each.reason}
    wanted = {name: served for name, served in expected.items() if served is not None}
    assert ranges == {"a": (0, 49), "newest": (80, 120), **wanted}
    assert (found.gap_count, found.unserved_ranges) == (0, [])


def test_only_epochs_that_batches_show_may_begin_later_than_the_lineage_says() -> None:
    """Compaction removed the first batches of epoch 1, and all of epoch 2. A broker announces when they began."""
    segments = segment("a", 0, 49, epochs=((0, 0), (1, 12), (3, 40))), segment("b", 50, 99, epochs=((3, 50),))
    compacted, newest = (replace(each, may_be_compacted=True) for each in segments)
    checkpoint = ((0, 0), (1, 10), (2, 30), (3, 35))
    found = plan(compacted, newest, checkpoint=checkpoint)
    assert [(each.to_offset, each.is_within_lineage) for each in found.segments] == [(49, True), (99, True)]
    assert (found.gap_count, found.unserved_ranges) == (0, [])
    announced = plan(replace(compacted, may_be_compacted=False), newest, checkpoint=checkpoint)
    assert [(each.to_offset, each.is_within_lineage) for each in announced.segments] == [(9, False), (99, True)]


def test_segment_that_begins_after_its_epoch_has_ended_serves_nothing() -> None:
    deposed = segment("deposed", 70, 99, epochs=((0, 70),))
    found = plan(segment("a", 0, 49, epochs=((0, 0),)), deposed, checkpoint=((0, 0), (2, 60)))
    assert [each.reason for each in found.segments] == [None, NotServedReason.OUTSIDE_LINEAGE]
    assert (found.latest_tiered_offset, found.gap_count) == (49, 0)


def test_segment_cut_by_a_later_leader_has_the_largest_timestamp_before_the_cut() -> None:
    cut, later = segment("cut", 0, 99, max_ms=900), segment("later", 50, 99, epochs=((2, 50),), max_ms=60)
    found = plan(cut, later)
    first, second = found.segments
    assert (first.to_offset, first.is_cut_at_end, first.max_timestamp_ms) == (49, True, 70)
    assert (second.from_offset, second.is_cut_at_end, second.max_timestamp_ms) == (50, False, 60)
    assert (found.max_timestamp_ms, found.max_timestamp_offset) == (70, 33)
    unknown = plan(replace(cut, segment_id="other"), later)
    assert unknown.segments[0].max_timestamp_ms is None
    assert (unknown.max_timestamp_ms, unknown.max_timestamp_offset) == (60, 50)


def test_running_maxima_ascend_over_segments_and_the_brokers_use_metadata_timestamps() -> None:
    found = plan(segment("a", 0, 9, max_ms=300), segment("b", 10, 19, max_ms=200), segment("c", 20, 29, max_ms=400))
    exact = [(each.previous_running_max_timestamp_ms, each.running_max_timestamp_ms) for each in found.segments]
    assert exact == [(None, 300), (300, 300), (300, 400)]
    broker = [
        (each.broker_previous_running_max_timestamp_ms, each.broker_running_max_timestamp_ms) for each in found.segments
    ]
    assert broker == [(None, 305), (305, 305), (305, 405)]
    assert (found.max_timestamp_ms, found.max_timestamp_offset) == (400, 20)
    alike = plan(segment("a", 0, 9, max_ms=300), segment("b", 10, 19, max_ms=300))
    assert (alike.max_timestamp_ms, alike.max_timestamp_offset) == (300, 0), "the lowest offset"


def test_segment_that_serves_nothing_has_a_reason() -> None:
    unread = replace(segment("a", 0, 9), is_usable=False)
    below, outside = segment("b", 10, 19, epochs=((1, 10),)), segment("c", 20, 29, epochs=((3, 20),))
    found = plan(unread, below, outside, segment("d", 20, 29, epochs=((2, 20),)), checkpoint=((2, 20),))
    assert [(each.segment.segment_id, each.reason) for each in found.segments] == [
        ("a", NotServedReason.NOT_INDEXED),
        ("b", NotServedReason.BELOW_LOG_START),
        ("c", NotServedReason.OUTSIDE_LINEAGE),
        ("d", None),
    ]


def test_log_start_at_the_beginning_of_a_segment_changes_nothing() -> None:
    (first, second) = plan(segment("a", 0, 9), segment("b", 10, 19), supplied=10).segments
    assert (first.reason, first.from_offset) == (NotServedReason.BELOW_LOG_START, None)
    assert (second.reason, second.from_offset, second.must_count_from) == (None, 10, None)


def test_lineage_without_a_checkpoint_is_that_of_the_served_batches() -> None:
    found = plan(segment("a", 0, 99, epochs=((1, 0), (2, 60))), segment("b", 50, 99, epochs=((3, 50), (4, 80))))
    assert [tuple(each) for each in found.lineage.entries] == [(1, 0), (3, 50), (4, 80)]
    assert [each.is_within_lineage for each in found.segments] == [None, None]
    same = plan(segment("a", 0, 9, epochs=((1, 0), (2, 5))), segment("b", 10, 19, epochs=((2, 10),)))
    assert [tuple(each) for each in same.lineage.entries] == [(1, 0), (2, 5)]


def test_incarnation_written_last_is_current_and_gets_the_supplied_log_start() -> None:
    old = replace(segment("a", 0, 9), topic_id="OLD", written_ms=None)
    new = replace(segment("b", 0, 9), topic_id="NEW", written_ms=0)
    newest = replace(segment("c", 0, 9), topic_id="A", written_ms=7)
    planned = {each.topic_id: each for each in plan_partition([old, new, newest], 4, {}, {})}
    assert [each.topic_id for each in planned.values() if each.is_current] == ["A"]
    assert planned["A"].log_start == LogStart(4, LogStartSource.SUPPLIED)
    assert (planned["OLD"].log_start, planned["NEW"].log_start) == (None, None)
    assert plan_partition([old], 4, {}, {})[0].is_current


def test_incarnation_whose_segments_are_deleted_later_is_not_current() -> None:
    new = replace(segment("new", 0, 99), topic_id="NEW", written_ms=50)
    old = replace(deleted(segment("old", 0, 4_999)), topic_id="OLD", written_ms=1, deleted_ms=90)

    def current(*segments: SegmentFacts) -> tuple[str, int | None]:
        (found,) = [each for each in plan_partition(segments, None, {}, {}) if each.is_current]
        return found.topic_id, found.earliest_offset

    assert current(new, old) == ("NEW", 0)
    assert current(new, replace(old, written_ms=None)) == ("NEW", 0), "not known when it was written"
    both = replace(deleted(new), written_ms=None, deleted_ms=60), replace(old, written_ms=None)
    assert current(*both) == ("OLD", None), "nothing else is known"


@pytest.mark.parametrize(
    ("supplied", "checkpoint", "expected"),
    [
        pytest.param(None, (), [(30, 39, None)], id="where the log starts is not known"),
        pytest.param(None, ((1, 5),), [(30, 39, None)], id="a checkpoint may be older than the last deletion"),
        pytest.param(5, (), [(5, 9, None)], id="a supplied log start is certain"),
    ],
)
def test_offsets_from_a_certain_log_start_on_are_passed_over(
    supplied: int | None, checkpoint: Epochs, expected: list[tuple[int, int, int | None]]
) -> None:
    found = plan(segment("a", 10, 29), segment("b", 40, 49), supplied=supplied, checkpoint=checkpoint)
    assert [astuple(each) for each in found.unserved_ranges] == expected


def _unread(start: int, end: int) -> SegmentFacts:
    return replace(segment(f"unread {start}", start, end), is_usable=False, is_unread=True)


@pytest.mark.parametrize(
    ("others", "supplied", "offset", "source"),
    [
        pytest.param((), None, 50, LogStartSource.FIRST_SEGMENT, id="nothing is known before the first one served"),
        pytest.param((), 20, 20, LogStartSource.SUPPLIED, id="a user said it"),
        pytest.param((), 3, 50, LogStartSource.FIRST_SEGMENT, id="a user said less than the checkpoint"),
        pytest.param(
            (deleted(segment("gone", 0, 19)),), None, 20, LogStartSource.DELETED_SEGMENTS, id="an event said it"
        ),
        pytest.param((_unread(5, 49),), None, 5, LogStartSource.LEADER_EPOCHS, id="the first segment is lost"),
        pytest.param((_unread(0, 49),), None, 5, LogStartSource.LEADER_EPOCHS, id="the log starts inside a lost one"),
        pytest.param((_unread(0, -1),), None, 5, LogStartSource.LEADER_EPOCHS, id="its end is not known"),
        pytest.param((_unread(6, 49),), None, 6, LogStartSource.FIRST_SEGMENT, id="the second segment is lost"),
        pytest.param((_unread(0, 4),), None, 50, LogStartSource.FIRST_SEGMENT, id="one below the log is lost"),
        pytest.param((_unread(0, 5),), None, 5, LogStartSource.LEADER_EPOCHS, id="only its last offset is in the log"),
        pytest.param((_unread(60, 69),), None, 50, LogStartSource.FIRST_SEGMENT, id="a later one is lost"),
    ],
)
def test_log_starts_at_the_first_segment_that_is_known_if_only_an_old_checkpoint_says_less(
    others: tuple[SegmentFacts, ...], supplied: int | None, offset: int, source: LogStartSource
) -> None:
    found = plan(*others, segment("a", 50, 59), supplied=supplied, checkpoint=((1, 5),))
    assert (found.log_start, found.earliest_offset) == (LogStart(offset, source), 50)
    if source is LogStartSource.FIRST_SEGMENT:
        assert found.lineage.entries == ((1, 5),), "the offsets before it belong to the log, if they were not deleted"


def test_log_starts_where_its_checkpoint_does_if_no_segment_is_served() -> None:
    found = plan(_unread(50, 59), checkpoint=((1, 5),))
    assert found.log_start == LogStart(5, LogStartSource.LEADER_EPOCHS)


def test_offsets_before_the_first_segment_that_is_known_do_not_put_times_in_doubt() -> None:
    assert plan(segment("a", 50, 59), checkpoint=((1, 5),)).unserved_ranges == []


def test_unread_segments_are_passed_over_with_the_timestamps_that_were_announced() -> None:
    def unread(segment_id: str, start: int, end: int, max_ms: int) -> SegmentFacts:
        return replace(segment(segment_id, start, end, max_ms=max_ms), is_usable=False, is_unread=True)

    first, last = unread("a", 0, 9, 40), replace(unread("c", 20, 29, 80), end_offset=-1, metadata_max_timestamp_ms=None)
    found = plan(first, segment("b", 10, 19), last, segment("d", 30, 39))
    assert [astuple(each) for each in found.unserved_ranges] == [(0, 9, 45), (20, 29, None)]
    known = replace(first, is_unread=False)
    assert plan(known, segment("b", 10, 19)).unserved_ranges == [], "it was deleted, or never copied"


def test_leader_epoch_does_not_go_back_if_the_newest_segment_is_lost_with_its_checkpoint() -> None:
    """Clients refuse metadata with an older epoch, and get UNKNOWN_LEADER_EPOCH for the one that they know."""
    first, last = segment("a", 0, 9), segment("b", 10, 29, epochs=((1, 10), (2, 15)))
    lost = replace(last, is_usable=False, is_unread=True)
    for known in (last, lost, replace(lost, hides_log_start=True)):
        checkpoint = ((1, 0), (2, 15)) if known is last else ((1, 0),)
        assert plan(first, known, checkpoint=checkpoint).lineage.entries == ((1, 0), (2, 15))
    found = plan(first, replace(lost, is_unread=False), checkpoint=((1, 0),))
    assert found.lineage.entries == ((1, 0),), "it was deleted, or never copied"
    older = segment("a", 0, 9, epochs=((0, 0), (1, 3))), segment("c", 10, 19, epochs=((2, 10),))
    unclean = replace(lost, start_offset=5, leader_epochs=((3, 5),))
    found = plan(*older, unclean, checkpoint=((0, 0), (1, 3), (2, 10)))
    assert found.lineage.entries == ((0, 0), (1, 3), (3, 5))
    assert found.latest_tiered_offset == 4, "the new leader has written the rest anew"


def test_answers_are_in_doubt_if_the_newest_checkpoint_is_lost() -> None:
    """The log may start anywhere up to the end of the segment that has lost it."""
    damaged = replace(segment("b", 10, 19), is_usable=False, is_unread=True, hides_log_start=True)

    def doubted(*others: SegmentFacts, supplied: int | None = None, checkpoint: Epochs = ()) -> object:
        found = plan(segment("a", 0, 9), damaged, *others, supplied=supplied, checkpoint=checkpoint)
        return [astuple(each) for each in found.unserved_ranges]

    for checkpoint, offset in (((), 0), (((1, 4),), 4)):
        found = plan(segment("a", 0, 9), damaged, checkpoint=checkpoint)
        assert found.log_start == LogStart(offset, LogStartSource.CHECKPOINT_LOST)
    only_its_own = [(10, 19, 105)]
    assert doubted() == [(0, 19, None)]
    assert doubted(checkpoint=((1, 4),)) == [(4, 19, None)], "an older checkpoint shows where it starts at least"
    assert doubted(supplied=4) == only_its_own
    assert doubted(segment("c", 20, 29)) == only_its_own, "the checkpoint of a newer segment knows it"


def test_holes_of_served_segments_are_passed_over() -> None:
    """The offsets around them are still served, and a hole without offsets is none."""

    def torn(*holes: tuple[int, int | None, int | None]) -> SegmentFacts:
        ranges = tuple(UnservedRange(from_offset=a, to_offset=b, max_timestamp_bound_ms=bound) for a, b, bound in holes)
        return replace(segment("b", 10, 19), holes=ranges)

    before, after = segment("a", 0, 9), segment("c", 20, 29)

    def passed_over(*segments: SegmentFacts, supplied: int | None = None) -> object:
        found = plan(*segments, supplied=supplied)
        return found.gap_count, [astuple(each) for each in found.unserved_ranges]

    assert passed_over(before, torn((12, 13, 50), (15, 15, 70)), after) == (0, [(12, 13, 50), (15, 15, 70)])
    assert passed_over(before, torn((10, 12, 50), (18, 19, 40)), after) == (0, [(10, 12, 50)]), "the first decides"
    assert passed_over(before, torn((17, None, None)), after) == (0, [(17, 19, None)]), "up to the next segment"
    assert passed_over(before, torn((17, None, None))) == (0, [(17, None, None)])
    assert passed_over(before, torn((12, 16, 50)), after, supplied=14) == (0, [(14, 16, 50)])
    assert passed_over(before, torn((12, 13, 50)), after, supplied=14) == (0, [])


def finished(segment_id: str, start: int, end: int, announced_max_ms: int | None) -> SegmentFacts:
    """A finished segment that is not indexed; None: it was not announced."""
    whole = segment(segment_id, start, end)
    unread = replace(whole, is_usable=False, is_unread=True, counted_max_timestamp_ms=None)
    return replace(unread, metadata_max_timestamp_ms=announced_max_ms)


FINISHED_SEGMENTS = [
    pytest.param((), 100, 105, id="none but the one that is served: as in its metadata"),
    pytest.param((finished("b", 10, 19, 300),), 100, 300, id="pending, in quarantine or gone: as it was announced"),
    pytest.param((finished("b", 10, 19, 30),), 100, 105, id="pending, and earlier than what is served"),
    pytest.param((finished("b", 10, 19, None),), 100, ANY_TIMESTAMP_MS, id="pending, and not announced"),
    pytest.param((replace(finished("b", 10, 19, 300), is_finished=False, is_unread=False),), 100, 105, id="an orphan"),
    pytest.param((replace(finished("b", 10, 19, None), is_finished=False),), 100, 105, id="an upload of a part"),
    pytest.param((deleted(segment("b", 10, 19, max_ms=300)),), None, 105, id="a deleted one"),
    pytest.param(
        (replace(segment("b", 10, 19, max_ms=-1), metadata_max_timestamp_ms=1_700_000_000_000),),
        100,
        1_700_000_000_000,
        id="without timestamps: the time of the file",
    ),
    pytest.param((segment("b", 0, 9, epochs=((0, 0),), max_ms=300),), 100, 305, id="of an older leader, so not served"),
    pytest.param(
        (replace(segment("b", 10, 19, max_ms=300), metadata_max_timestamp_ms=30),),
        300,
        300,
        id="metadata that is earlier than the records",
    ),
    pytest.param(
        (replace(segment("b", 10, 19, max_ms=300), topic_id="OLD", written_ms=0),), 100, 105, id="another incarnation"
    ),
]


@pytest.mark.parametrize(("others", "served_ms", "finished_ms"), FINISHED_SEGMENTS)
def test_largest_finished_timestamp_is_that_of_all_finished_segments_of_the_incarnation(
    others: tuple[SegmentFacts, ...], served_ms: int | None, finished_ms: int
) -> None:
    """The largest timestamp itself stays that of the served records."""
    planned = plan_partition([segment("a", 0, 9), *others], None, {}, {})
    (current,) = [each for each in planned if each.is_current]
    assert (current.max_timestamp_ms, current.finished_max_timestamp_ms) == (served_ms, finished_ms)


def test_log_that_lost_records_may_have_had_later_ones() -> None:
    """A damaged log is served without them. The bound is None if nothing says how late they can be."""

    def torn(*bounds: int | None) -> int | None:
        holes = tuple(UnservedRange(from_offset=3, to_offset=4, max_timestamp_bound_ms=bound) for bound in bounds)
        return plan(replace(segment("a", 0, 9), holes=holes)).finished_max_timestamp_ms

    assert (torn(50), torn(50, 700), torn(700, None)) == (105, 700, ANY_TIMESTAMP_MS)


def test_partition_without_finished_segments_has_no_largest_finished_timestamp() -> None:
    gone = deleted(segment("a", 0, 9))
    assert plan(gone).finished_max_timestamp_ms is None
    assert plan(gone, finished("b", 10, 19, 40)).finished_max_timestamp_ms == 40, "nothing is served"
