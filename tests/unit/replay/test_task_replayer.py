"""Test that a task is replayed in order, as far as max.task.idle.ms promises, while its archive grows."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.errors import RetriableError, UsageError
from coldlog.model.fetch import FetchErrorCode, FetchFailure
from coldlog.replay.order import Head, TopicPartition
from coldlog.replay.task_replayer import (
    ReplayedRecord,
    ReplayedTo,
    ReplayError,
    ReplayOptions,
    RetriableReplayError,
    TaskReplayer,
)
from contents.merged_logs import iter_merged
from drawn_examples import examples
from virtual_clock import VirtualClock
from worlds.growing_archive import GrowingArchive, Uploaded

A, B, C = ("a", 0), ("b", 0), ("c", 0)
START_MS = 1_000_000
FOREVER_MS = 10**9


def uploaded(from_ms: int, *stamps: tuple[int, int], end_offset: int | None = None) -> Uploaded:
    """Offsets and timestamps of records that are uploaded so long after the start."""
    end = stamps[-1][0] + 1 if end_offset is None else end_offset
    return Uploaded(from_ms=START_MS + from_ms, stamps=stamps, end_offset=end)


def growing(
    uploads: Mapping[TopicPartition, Sequence[Uploaded]], fetch_ms: int = 0, refresh_ms: int = 0
) -> GrowingArchive:
    clock = VirtualClock(time_ms=START_MS)
    return GrowingArchive(clock=clock, uploads=uploads, fetch_ms=fetch_ms, refresh_ms=refresh_ms)


def replayer_of(archive: GrowingArchive, **options: Any) -> TaskReplayer:
    return TaskReplayer(archive, archive.clock, dict.fromkeys(archive.uploads), ReplayOptions(**options))


def stamp(each: ReplayedRecord) -> tuple[str, int]:
    return each.topic, each.record.timestamp_ms


def stamps(replayed: Sequence[ReplayedRecord]) -> list[tuple[str, int]]:
    return [stamp(each) for each in replayed]


@pytest.mark.parametrize("refused", [-2, -1000, 1.5, None])
def test_invalid_max_task_idle_ms_is_refused(refused: object) -> None:
    with pytest.raises(UsageError, match=r"max\.task\.idle\.ms"):
        ReplayOptions(max_task_idle_ms=refused)  # type: ignore[arg-type]


def test_task_without_partitions_and_negative_options_are_refused() -> None:
    archive = growing({})
    with pytest.raises(UsageError, match="no partitions"):
        TaskReplayer(archive, archive.clock, {})
    for name in ("max_bytes", "fetch_timeout_ms", "max_metadata_age_ms"):
        refused: dict[str, Any] = {name: -1}
        with pytest.raises(UsageError, match=name):
            ReplayOptions(**refused)
    with pytest.raises(UsageError, match="at least one record"):
        replayer_of(growing({A: [uploaded(0, (0, 1))]})).poll(0)


def test_idle_time_zero_reads_all_that_is_archived_before_it_skips_a_partition() -> None:
    archive = growing(
        {
            A: [uploaded(0, (0, 10), (1, 20)), uploaded(0, (2, 30), (3, 70))],
            B: [uploaded(0, (0, 15)), uploaded(0, (1, 60), (2, 90))],
            C: [uploaded(0, (0, 12)), uploaded(5_000, (1, 40))],
        }
    )
    replayer = replayer_of(archive, max_bytes=1)
    assert stamps(list(replayer)) == [
        ("a", 10), ("c", 12), ("b", 15), ("a", 20), ("a", 30), ("b", 60), ("a", 70), ("b", 90),
    ]  # fmt: skip
    assert archive.clock.waits == []
    # From the offset after c's only record on.
    assert replayer.counts.enforced_processing == 6
    assert replayer.counts.late_records == 0
    archive.clock.time_ms += 6_000
    assert [(stamp(each), each.late_ms) for each in replayer] == [(("c", 40), 50)]
    assert (replayer.counts.late_records, replayer.counts.greatest_lateness_ms) == (1, 50)


def test_partition_that_is_caught_up_is_waited_for_and_then_skipped_until_it_has_records() -> None:
    archive = growing(
        {
            A: [uploaded(0, *[(offset, 10 * offset) for offset in range(10)])],
            B: [uploaded(0, (0, 5)), uploaded(3_000, (1, 25)), uploaded(20_000, (2, 26))],
        }
    )
    replayer = replayer_of(archive, max_task_idle_ms=5_000)
    assert stamps(replayer.poll(2)) == [("a", 0), ("b", 5)]
    assert archive.clock.time_ms == START_MS
    # A record that arrives within the time is replayed in its place.
    assert stamps(replayer.poll(3)) == [("a", 10), ("a", 20), ("b", 25)]
    assert archive.clock.time_ms == START_MS + 3_000
    assert replayer.counts.enforced_processing == 0
    # No record arrives: the partition is skipped when its time is over, and then without waiting.
    assert stamps(replayer.poll(1)) == [("a", 30)]
    assert archive.clock.time_ms == START_MS + 8_000
    assert stamps(replayer.poll(3)) == [("a", 40), ("a", 50), ("a", 60)]
    assert (archive.clock.time_ms, replayer.counts.enforced_processing) == (START_MS + 8_000, 4)
    # Its next record is late, and the task waits for it again.
    archive.clock.time_ms = START_MS + 20_000
    assert [(stamp(each), each.late_ms) for each in replayer.poll(1)] == [(("b", 26), 34)]
    assert stamps(replayer.poll(1)) == [("a", 70)]
    assert archive.clock.time_ms == START_MS + 25_000
    counts = replayer.counts
    assert (counts.enforced_processing, counts.late_records, counts.greatest_lateness_ms) == (5, 1, 34)
    assert counts.waited_ms == 13_000


def test_partitions_that_are_caught_up_are_waited_for_at_the_same_time() -> None:
    archive = growing({A: [uploaded(0, (0, 1), (1, 4))], B: [uploaded(0, (0, 2))], C: [uploaded(0, (0, 3))]})
    replayer = replayer_of(archive, max_task_idle_ms=700)
    assert stamps(list(replayer)) == [("a", 1), ("b", 2), ("c", 3), ("a", 4)]
    # b for 700 ms; c, which was caught up when it had its time, for 700 ms; a at the end.
    assert archive.clock.time_ms == START_MS + 2_100
    archive = growing(
        {A: [uploaded(0, (0, 1), (1, 4))], B: [uploaded(0, end_offset=0)], C: [uploaded(0, end_offset=0)]}
    )
    replayer = replayer_of(archive, max_task_idle_ms=700)
    assert stamps(replayer.poll(2)) == [("a", 1), ("a", 4)]
    assert archive.clock.time_ms == START_MS + 700


def test_time_for_looks_and_fetches_does_not_count_as_waiting() -> None:
    archive = growing(
        {
            A: [uploaded(0, (0, 50))],
            # Its only records have negative timestamps, so much is read and nothing is buffered.
            B: [uploaded(0, *[(offset, -1) for offset in range(8)])],
        },
        fetch_ms=1_000,
        refresh_ms=10_000,
    )
    replayer = replayer_of(archive, max_task_idle_ms=300, max_bytes=1, drops_negative_timestamps=True)
    assert stamps(replayer.poll(1)) == [("a", 50)]
    # A look, a fetch of a and eight of b before b is caught up; then its time, and a look when that is over.
    assert archive.clock.waits == [300]
    assert archive.clock.time_ms == START_MS + 10_000 + 9 * 1_000 + 300 + 10_000 + 1_000
    assert (replayer.counts.negative_timestamps, replayer.counts.records, replayer.counts.waited_ms) == (8, 1, 300)


def test_minus_one_never_waits_and_reads_nothing_between_the_records_of_a_poll() -> None:
    archive = growing(
        {
            A: [uploaded(0, (0, 10), (1, 20), (2, 50))],
            B: [uploaded(0, (0, 5), (1, 12)), uploaded(0, (2, 13))],
        }
    )
    replayer = replayer_of(archive, max_task_idle_ms=-1, max_bytes=2)
    assert stamps(replayer.poll(10)) == [("b", 5), ("a", 10), ("b", 12), ("a", 20)]
    assert archive.calls == ["refresh", "fetch a-0 0", "fetch b-0 0"]
    assert replayer.counts.enforced_processing == 1
    assert [(stamp(each), each.late_ms) for each in replayer.poll(10)] == [(("b", 13), 7), (("a", 50), None)]
    assert replayer.poll(10) == []
    assert archive.calls.count("refresh") == replayer.counts.looks == 1, "what is known is not old yet"
    archive.clock.time_ms += 1_001
    assert replayer.poll(10) == []
    assert archive.calls.count("refresh") == 2
    assert archive.clock.waits == []
    assert replayer.counts.late_records == 1


def test_minus_one_keeps_fetching_while_no_record_is_buffered() -> None:
    log = [uploaded(0, *[(offset, -5) for offset in range(4)], (4, 9))]
    replayer = replayer_of(growing({A: log, B: [uploaded(0, end_offset=0)]}), max_task_idle_ms=-1, max_bytes=1,
                           drops_negative_timestamps=True)  # fmt: skip
    assert stamps(list(replayer)) == [("a", 9)]


def test_negative_timestamps_are_counted_and_either_kept_or_dropped() -> None:
    logs = {A: [uploaded(0, (0, 4), (1, -1), (2, 8), (3, -7))], B: [uploaded(0, (0, -3), (1, 5), (2, 9))]}
    kept, dropped = replayer_of(growing(logs)), replayer_of(growing(logs), drops_negative_timestamps=True)
    assert stamps(list(kept)) == [("b", -3), ("a", 4), ("a", -1), ("b", 5), ("a", 8), ("a", -7), ("b", 9)]
    assert stamps(list(dropped)) == [("a", 4), ("b", 5), ("a", 8), ("b", 9)]
    assert kept.counts.negative_timestamps == dropped.counts.negative_timestamps == 3
    assert kept.counts.late_records == dropped.counts.late_records == 0
    assert kept.replayed == dropped.replayed == {
        A: ReplayedTo(next_offset=4, reached_ms=8),
        B: ReplayedTo(next_offset=3, reached_ms=9),
    }  # fmt: skip


def test_partition_that_the_archive_does_not_know_stops_the_replay_until_it_does() -> None:
    archive = growing({A: [uploaded(0, (0, 10))], B: [uploaded(100, (0, 5))]})
    replayer = replayer_of(archive, max_task_idle_ms=60_000)
    with pytest.raises(RetriableReplayError, match="its first offset of b-0: UNKNOWN_TOPIC_OR_PARTITION"):
        replayer.poll()
    assert archive.clock.waits == []
    assert replayer.replayed[B] is None
    archive.clock.time_ms += 100
    assert stamps(replayer.poll()) == [("b", 5)]
    assert archive.clock.waits == []
    assert stamps(replayer.poll()) == [("a", 10)]
    assert sum(archive.clock.waits) == 60_000


def test_failed_fetch_keeps_buffers_and_position() -> None:
    archive = growing({A: [uploaded(0, (0, 10), (1, 30), (2, 50))], B: [uploaded(0, (0, 20), (1, 40))]})
    replayer = replayer_of(archive, max_bytes=1)
    iterator = iter(replayer)
    assert [stamp(next(iterator)) for _ in range(2)] == [("a", 10), ("b", 20)]
    archive.failures[B] = FetchFailure(error=FetchErrorCode.REQUEST_TIMED_OUT, message="the store is down")
    with pytest.raises(
        RetriableError, match="stopped at offset 1 of b-0: REQUEST_TIMED_OUT: the store is down"
    ) as caught:
        next(iterator)
    failed = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(failed, RetriableReplayError)
    assert (failed.topic, failed.partition, failed.offset, failed.failure) == ("b", 0, 1, archive.failures[B])
    assert replayer.replayed == {
        A: ReplayedTo(next_offset=1, reached_ms=10),
        B: ReplayedTo(next_offset=1, reached_ms=20),
    }
    archive.failures.clear()
    assert stamps(list(replayer)) == [("a", 30), ("b", 40), ("a", 50)]
    assert replayer.counts.failed_fetches == 1
    assert replayer.counts.late_records == 0


def test_poll_that_fails_after_its_first_records_returns_them_and_raises_next_time() -> None:
    archive = growing({A: [uploaded(0, (0, 10), (1, 30))], B: [uploaded(0, (0, 5), (1, 12))]})
    replayer = replayer_of(archive, max_bytes=1)
    assert stamps(replayer.poll(1)) == [("b", 5)]
    assert stamps(replayer.poll(1)) == [("a", 10)]
    archive.failures[A] = FetchFailure(error=FetchErrorCode.CORRUPT_MESSAGE, message="byte 7 is wrong")
    with pytest.raises(ReplayError, match="stopped at offset 1 of a-0: CORRUPT_MESSAGE: byte 7 is wrong"):
        replayer.poll()
    archive.failures[B] = archive.failures.pop(A)
    archive.clock.time_ms += 1
    assert stamps(replayer.poll()) == [("b", 12)]
    with pytest.raises(ReplayError, match="stopped at offset 2 of b-0: CORRUPT_MESSAGE") as caught:
        replayer.poll()
    assert not isinstance(caught.value, RetriableError)


def test_minus_one_skips_a_partition_that_times_out_while_others_have_records() -> None:
    archive = growing({A: [uploaded(0, (0, 10), (1, 30))], B: [uploaded(0, (0, 5), (1, 12))]})
    archive.failures[B] = FetchFailure(error=FetchErrorCode.REQUEST_TIMED_OUT, message="the store is down")
    replayer = replayer_of(archive, max_task_idle_ms=-1)
    assert stamps(replayer.poll()) == [("a", 10), ("a", 30)]
    with pytest.raises(RetriableReplayError, match="b-0"):
        replayer.poll()
    assert replayer.counts.failed_fetches == 2
    archive.failures[B] = replace(archive.failures[B], error=FetchErrorCode.CORRUPT_MESSAGE)
    with pytest.raises(ReplayError, match="CORRUPT_MESSAGE"):
        replayer.poll()
    archive.failures.clear()
    assert [(stamp(each), each.late_ms) for each in replayer.poll()] == [(("b", 5), 25), (("b", 12), 18)]


def test_expired_offsets_are_skipped_only_by_a_seek() -> None:
    archive = growing({A: [uploaded(0, *[(offset, 10 * offset) for offset in range(6)])], B: [uploaded(0, (0, 35))]})
    replayer = replayer_of(archive, max_bytes=2)
    assert stamps(replayer.poll(2)) == [("a", 0), ("a", 10)]
    archive.log_starts[A] = 4
    for _ in range(2):
        with pytest.raises(ReplayError, match="stopped at offset 2 of a-0: OFFSET_OUT_OF_RANGE"):
            replayer.poll()
    failed = FetchFailure(error=FetchErrorCode.OFFSET_OUT_OF_RANGE, message="gone", resume_offset=4)
    assert "; seek to offset 4 to skip the offsets before it" in str(ReplayError("a", 0, 2, failed))
    with pytest.raises(UsageError, match="not assigned"):
        replayer.seek("other", 0, 4)
    replayer.seek("a", 0, 4)
    assert stamps(list(replayer)) == [("b", 35), ("a", 40), ("a", 50)]


def test_replay_does_not_go_on_in_a_topic_that_was_created_again() -> None:
    archive = growing({A: [uploaded(0, (0, 10), (1, 20)), uploaded(5_000, (2, 30))], B: [uploaded(0, (0, 15))]})
    archive.topic_ids[A] = "first"
    replayer = replayer_of(archive)
    assert stamps(list(replayer)) == [("a", 10), ("b", 15), ("a", 20)]
    begun = replayer.replayed
    assert begun[A] == ReplayedTo(next_offset=2, reached_ms=20, topic_id="first")
    archive.topic_ids[A] = "second"
    archive.clock.time_ms += 5_000
    continued = TaskReplayer(archive, archive.clock, begun)
    for each in (replayer, continued):
        for _ in range(2):
            with pytest.raises(
                ReplayError, match="offset 2 of a-0: .*its id was first, and is second; seek to offset 0 "
            ):
                list(each)
    replayer.seek("a", 0, 0)
    assert stamps(list(replayer)) == [("a", 10), ("a", 20), ("a", 30)]


def test_start_after_the_end_of_the_archive_is_out_of_range() -> None:
    archive = growing({A: [uploaded(0, (0, 10))]})
    replayer = TaskReplayer(archive, archive.clock, {A: ReplayedTo(next_offset=9)})
    with pytest.raises(ReplayError, match="offset 9 of a-0: OFFSET_OUT_OF_RANGE"):
        list(replayer)


def test_seek_drops_the_buffered_records_of_the_partition() -> None:
    archive = growing({A: [uploaded(0, (0, 10), (1, 20), (2, 30))], B: [uploaded(0, (0, 15), (1, 25))]})
    replayer = replayer_of(archive)
    assert stamps(replayer.poll(1)) == [("a", 10)]
    replayer.seek("a", 0, 2)
    assert replayer.current_lag("a", 0) == 1
    assert stamps(list(replayer)) == [("b", 15), ("b", 25), ("a", 30)]
    replayer.seek("a", 0, 0)
    assert [(stamp(each), each.late_ms) for each in replayer] == [(("a", 10), 20), (("a", 20), 10), (("a", 30), None)]
    assert replayer.counts.late_records == 2


@pytest.mark.parametrize("max_task_idle_ms", [-1, 0, 100])
def test_at_most_one_fetch_of_a_partition_is_buffered(max_task_idle_ms: int) -> None:
    logs = {
        place: [uploaded(0, *[(offset, offset * step) for offset in range(40)])] for step, place in enumerate((A, B, C))
    }
    archive = growing(logs)
    replayer = replayer_of(archive, max_task_idle_ms=max_task_idle_ms, max_bytes=7)
    fetched_to, replayed_to = dict.fromkeys(logs, 0), dict.fromkeys(logs, 0)
    for each in replayer:
        for call in archive.calls:
            if call.startswith("fetch"):
                _, name, offset = call.split()
                fetched_to[name[:-2], 0] = min(40, int(offset) + 7)
        archive.calls.clear()
        assert all(0 <= fetched_to[place] - replayed_to[place] <= 7 for place in logs)
        replayed_to[each.topic, each.partition] += 1
    assert set(replayed_to.values()) == {40}


def test_seek_keeps_other_partitions_in_order() -> None:
    logs = {("t", number): [uploaded(0, (0, time))] for number, time in enumerate((1, 5, 2, 6, 7, 3))}
    replayer = replayer_of(growing(logs))
    assert stamps(replayer.poll(1)) == [("t", 1)]
    replayer.seek("t", 2, 1)
    assert [each.partition for each in replayer] == [5, 1, 3, 4]


def test_known_end_of_a_skipped_partition_stays_fresh_while_another_is_read() -> None:
    archive = growing(
        {
            A: [uploaded(0, end_offset=0), uploaded(8_000, (0, 7))],
            B: [uploaded(0, (0, 5)), uploaded(4_500, *[(offset, -1) for offset in range(1, 9)], (9, 60))],
            C: [uploaded(0, (0, 50))],
        },
        fetch_ms=1_000,
    )
    replayer = replayer_of(archive, max_bytes=1, drops_negative_timestamps=True)
    assert [stamp(each) for each in replayer.poll(1)] == [("b", 5)]
    archive.clock.time_ms = START_MS + 5_000
    assert stamps(replayer.poll(1)) == [("a", 7)]
    assert replayer.counts.late_records == 0


@st.composite
def growing_uploads(draw: st.DrawFn) -> dict[TopicPartition, list[Uploaded]]:
    """Partitions of a few segments that are uploaded at some time, from the start on."""
    found: dict[TopicPartition, list[Uploaded]] = {}
    for place in (A, B, C)[: draw(st.integers(1, 3))]:
        from_ms, offset = 0, 0
        found[place] = []
        for _ in range(draw(st.integers(1, 4))):
            own = []
            for _ in range(draw(st.integers(0, 4))):
                offset += draw(st.integers(0, 1))
                own.append((offset, draw(st.integers(-2, 12))))
                offset += 1
            found[place].append(Uploaded(from_ms=START_MS + from_ms, stamps=tuple(own), end_offset=offset))
            from_ms += draw(st.integers(0, 400))
    return found


def in_order(uploads: Mapping[TopicPartition, Sequence[Uploaded]], *, drops: bool) -> list[tuple[TopicPartition, Head]]:
    logs = {
        place: [(time, offset) for each in log for offset, time in each.stamps if not drops or time >= 0]
        for place, log in uploads.items()
    }
    return list(iter_merged(logs))


def walk(archive: GrowingArchive, replayer: TaskReplayer, pauses: Sequence[int]) -> list[tuple[int, ReplayedRecord]]:
    """Replay everything and note when each record was returned; time passes between records."""
    found: list[tuple[int, ReplayedRecord]] = []
    for _ in range(2):
        for each in replayer:
            found.append((archive.clock.time_ms, each))
            archive.clock.time_ms += pauses[len(found) % len(pauses)]
        archive.clock.time_ms += FOREVER_MS
    return found


@examples(400)
@given(
    uploads=growing_uploads(),
    idle_ms=st.sampled_from([-1, 0, 50, 300, 2_000]),
    age_ms=st.sampled_from([0, 70, 1_000]),
    costs=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    max_bytes=st.integers(0, 5),
    drops=st.booleans(),
    pauses=st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_record_is_late_only_if_it_was_uploaded_too_late(
    uploads: dict[TopicPartition, list[Uploaded]],
    idle_ms: int,
    age_ms: int,
    costs: tuple[int, int],
    max_bytes: int,
    drops: bool,
    pauses: list[int],
) -> None:
    archive = growing(uploads, *costs)
    replayer = replayer_of(
        archive,
        max_task_idle_ms=idle_ms,
        max_metadata_age_ms=age_ms,
        max_bytes=max_bytes,
        drops_negative_timestamps=drops,
    )
    found = walk(archive, replayer, pauses)
    # Every record once, those of a partition in order.
    expected = in_order(uploads, drops=drops)
    for place in uploads:
        own = [each.record.offset for _, each in found if (each.topic, each.partition) == place]
        assert own == [offset for at, (_, offset) in expected if at == place]
    # Exactly the late records are reported as late.
    keys = keys_of(found)
    late = [number for number in range(len(keys)) if keys[number] < max(keys[: number + 1])]
    assert [number for number, (_, each) in enumerate(found) if each.late_ms is not None] == late
    assert replayer.counts.late_records == len(late)
    lateness = [max(keys[:number])[0] - keys[number][0] for number in late]
    assert [each.late_ms for _, each in found if each.late_ms is not None] == lateness
    assert replayer.counts.greatest_lateness_ms == max(lateness, default=0)
    if not late:
        assert [((e.topic, e.partition), (e.record.timestamp_ms, e.record.offset)) for _, e in found] == expected
    if idle_ms >= 0:
        fetch_ms, refresh_ms = costs
        oldest_ms = max(age_ms, refresh_ms + len(uploads) * fetch_ms)
        for at, passed_over_ms, emptied_ms, uploaded_ms in overtaken(uploads, expected, found):
            assert uploaded_ms > max(passed_over_ms - oldest_ms, emptied_ms + idle_ms), found[at]


def keys_of(found: Sequence[tuple[int, ReplayedRecord]]) -> list[tuple[int, TopicPartition, int]]:
    """Return the place of each record in the order of all records."""
    reached: dict[TopicPartition, int] = {}
    keys = []
    for _, each in found:
        place = (each.topic, each.partition)
        reached[place] = max(reached.get(place, each.record.timestamp_ms), each.record.timestamp_ms)
        keys.append((reached[place], place, each.record.offset))
    return keys


def overtaken(
    uploads: Mapping[TopicPartition, Sequence[Uploaded]],
    expected: Sequence[tuple[TopicPartition, Head]],
    found: Sequence[tuple[int, ReplayedRecord]],
) -> Iterator[tuple[int, int, int, int]]:
    """Yield each choice (number and time) for each partition whose next record should have been chosen instead, with
    the time at which that partition's last record was chosen, and the time at which its next record was uploaded."""
    uploaded_ms = {
        (place, each[0]): log.from_ms for place, logs in uploads.items() for log in logs for each in log.stamps
    }
    left = {place: [head for at, head in expected if at == place] for place in uploads}
    emptied_ms = dict.fromkeys(uploads, START_MS)
    for number, (at_ms, each) in enumerate(found):
        place = (each.topic, each.partition)
        chosen = (left[place].pop(0)[0], place)
        for other, heads in left.items():
            if heads and (heads[0][0], other) < chosen and other != place:
                yield number, at_ms, emptied_ms[other], uploaded_ms[other, heads[0][1]]
        emptied_ms[place] = at_ms
