"""Answer times of many partitions together, from the tables.

One by one, a lookup takes half a millisecond for each partition. Here arrays hold some hundreds of partitions, and each
step is done for all of them: find their rows, their segments, and the stairs. The rules are those of one partition
(`archive_rules`).

What needs more is left to `ListOffsets`: special timestamps, partitions that are unknown or have gaps, segments whose
log must be read, partitions of many segments, and those of which so much is asked that they are fast by themselves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.lookups.archive_rules import answer_times
from coldlog.lookups.index_rows import NOTHING, IndexRows, Int64s, SegmentRows
from coldlog.lookups.partition_facts import ArchiveLimits, PartitionRows
from coldlog.lookups.questions import Answers, AskedPartitions, Flags, Indices, PartitionQuestions, Questions
from coldlog.lookups.served_index import ServedIndex
from coldlog.tables.delta.files.table_reader import PartRange

_LEAST_PARTITIONS = 16
_MOST_REQUESTS = 1_000
"""Of one partition: for more, a search of its own is faster."""
_AT_ONCE = 256
_MOST_SEGMENTS = 500_000
"""Of the partitions that are searched at once; each takes some 100 bytes."""
_END = np.iinfo(np.int64).max


def answer_many(
    index: ServedIndex, questions: Questions, asked: AskedPartitions, report: Callable[[Indices, Answers], None]
) -> Sequence[int]:
    """Report the answers of the partitions that are answered here, and return the numbers of the others, ascending."""
    counts = np.diff(asked.starts)
    first_ms = questions.timestamps_ms[asked.where[asked.starts[:-1]]] if len(asked) else counts
    is_fit = (counts <= _MOST_REQUESTS) & (first_ms >= 0)
    if np.count_nonzero(is_fit) < _LEAST_PARTITIONS:
        return range(len(asked))
    left = [np.flatnonzero(~is_fit)]
    fit = np.flatnonzero(is_fit)
    for start in range(0, len(fit), _AT_ONCE):
        chosen = fit[start : start + _AT_ONCE]
        is_answered = _answer(index, questions, asked, chosen, report)
        left.append(chosen[~is_answered])
    others: list[int] = np.sort(np.concatenate(left)).tolist()
    return others


def _answer(
    index: ServedIndex,
    questions: Questions,
    asked: AskedPartitions,
    chosen: Indices,
    report: Callable[[Indices, Answers], None],
) -> Flags:
    """Answer these partitions and return which were answered."""
    places = [(asked.topics[number], asked.numbers[number]) for number in chosen.tolist()]
    near = {"topic": (places[0][0], places[-1][0])}
    found = _find_partitions(places, index.iter_partition_rows(near, _Needed(places).is_in))
    places = [places[at] for at in found.at]
    is_answered = np.zeros(len(chosen), dtype=np.bool_)
    if not places:
        return is_answered
    keys = [(*place, topic_id) for place, topic_id in zip(places, found.topic_ids, strict=True)]
    needed = _Needed(places)
    segments = _Segments.of(keys, index.iter_segment_rows(near, needed.is_in), index.running_max_column)
    if segments is None:
        return is_answered

    requests = [asked.requests_of(number) for number in chosen[found.at].tolist()]
    of = np.repeat(np.arange(len(places)), [len(each) for each in requests])
    where = np.concatenate(requests)
    at, has_segment = segments.find(of, questions.timestamps_ms[where])
    is_left = np.zeros(len(places), dtype=np.bool_)
    is_left[of[has_segment][segments.is_read[at[has_segment]]]] = True
    is_answered[found.at[~is_left]] = True

    kept = np.flatnonzero(~is_left[of])
    where, of, at, remote = where[kept], of[kept], at[kept], np.flatnonzero(has_segment[kept])
    if not len(where):
        return is_answered
    asked_of = PartitionQuestions.at(questions, where)
    answers = Answers.nothing(len(where))
    if len(remote):
        sought_ms = asked_of.timestamps_ms[remote]
        needed.narrow(segments, of[remote], at[remote], sought_ms)
        wanted = _WantedStairs(places, segments, at[remote], sought_ms)
        for part in index.iter_stairs(near, needed.is_in):
            wanted.look_into(part)
        answers.offsets[remote] = wanted.offsets
        answers.timestamps_ms[remote] = wanted.timestamps_ms
        answers.leader_epochs[remote] = wanted.leader_epochs
    limits = ArchiveLimits(**{each.name: getattr(found.limits, each.name)[of] for each in fields(ArchiveLimits)})
    report(where, answer_times(limits, asked_of, answers))
    return is_answered


class _Needed:
    """Says which parts of a table may have rows of these partitions. `places` is sorted."""

    def __init__(self, places: list[tuple[str, int]]) -> None:
        self._places = places
        self._offsets: list[tuple[int, int, int]] = []

    def narrow(self, segments: _Segments, of: Int64s, at: Int64s, sought_ms: Int64s) -> None:
        """From now on, of each partition only the segments `at` count, and times from `sought_ms` on."""
        count = len(self._places)
        least, greatest = np.full(count, _END), np.full(count, -1)
        least_ms = np.full(count, _END)
        np.minimum.at(least, of, segments.from_offsets[at])
        np.maximum.at(greatest, of, segments.end_offsets[at])
        np.minimum.at(least_ms, of, sought_ms)
        self._offsets = list(zip(least.tolist(), greatest.tolist(), least_ms.tolist(), strict=True))

    def is_in(self, part: PartRange) -> bool:
        first, last = part.least("topic"), part.greatest("topic")
        low, high = (part.least("partition"), part.greatest("partition")) if first == last else (-1, _END)
        start, stop = bisect_left(self._places, (first, low)), bisect_right(self._places, (last, high))
        if stop - start != 1 or not self._offsets:
            return start < stop
        least, greatest, least_ms = self._offsets[start]
        is_within = part.least("offset") <= greatest and part.greatest("offset") >= least
        return bool(is_within and part.greatest("timestamp_ms") >= least_ms)


@dataclass(frozen=True, slots=True)
class _FoundPartitions:
    """The partitions that were found and have no gaps. `at` are their places among those that were sought."""

    at: Indices
    topic_ids: list[str]
    limits: ArchiveLimits


def _find_partitions(places: list[tuple[str, int]], parts: Iterable[PartitionRows]) -> _FoundPartitions:
    numbers, topic_ids, limits = list[Int64s](), list[str](), list[ArchiveLimits]()
    is_open = [True] * len(places)
    for part in parts:
        found = [(at, row) for at, place in enumerate(places) if is_open[at] and (row := part.find(*place)) is not None]
        if not found:
            continue
        at, rows = np.array(found).T
        for each in at.tolist():
            is_open[each] = False
        has_none = ~part.have_gaps(rows)
        at, rows = at[has_none], rows[has_none]
        numbers.append(at)
        topic_ids += part.topic_ids.take(pa.array(rows)).to_pylist()
        limits.append(part.limits(rows))
    at = np.concatenate([np.empty(0, dtype=np.int64), *numbers])
    order = np.argsort(at)
    joined = {
        each.name: np.concatenate([np.empty(0, dtype=np.int64), *(getattr(of, each.name) for of in limits)])[order]
        for each in fields(ArchiveLimits)
    }
    return _FoundPartitions(at[order], [topic_ids[each] for each in order.tolist()], ArchiveLimits(**joined))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segments:
    """The served segments of some partitions, those of each in the order of their offsets. They begin at the
    partition's place in `starts`, which has the end of the last one too. `partitions` are their partitions' numbers."""

    ids: pa.Array
    builds: Int64s
    from_offsets: Int64s
    end_offsets: Int64s
    running_max_ms: Int64s
    is_read: Flags
    partitions: Int64s
    starts: Int64s

    @staticmethod
    def of(keys: list[tuple[str, int, str]], parts: Iterable[SegmentRows], running_max: str) -> _Segments | None:
        """Take the segments of these incarnations from the parts; None if they are too many."""
        names = ("served_build_number", "served_from_offset", "end_offset", running_max)
        depths = ("is_at_batch_depth", "is_at_sidecar_depth")
        columns, ids, numbers = {name: list[Int64s]() for name in (*names, *depths)}, list[pa.Array](), list[Int64s]()
        count = 0
        for part in parts:
            runs = [(at, *run) for at, key in enumerate(keys) for run in part.runs.get(key, ())]
            if not runs:
                continue
            at, rows = _rows_of(np.array(runs))
            count += len(rows)
            if count > _MOST_SEGMENTS:
                return None
            numbers.append(at)
            ids.append(part.segment_ids.take(pa.array(rows)))
            for name, of_parts in columns.items():
                of_parts.append(part.columns[name][rows])
        nothing = np.empty(0, dtype=np.int64)
        joined = {name: np.concatenate([nothing, *of_parts]) for name, of_parts in columns.items()}
        of = np.concatenate([nothing, *numbers])
        order = np.lexsort((joined["served_from_offset"], of))
        build, from_offset, end_offset, running_max_ms = (joined[name][order] for name in names)
        return _Segments(
            ids=pa.chunked_array(ids, pa.string()).combine_chunks().take(pa.array(order)),
            builds=build,
            from_offsets=from_offset,
            end_offsets=end_offset,
            running_max_ms=running_max_ms,
            is_read=((joined[depths[0]] != 0) | (joined[depths[1]] != 0))[order],
            partitions=of[order],
            starts=np.searchsorted(of[order], np.arange(len(keys) + 1)),
        )

    def find(self, partitions: Int64s, times_ms: Int64s) -> tuple[Int64s, Flags]:
        """Return for each time the segment of its partition that answers it, and whether there is one."""
        ends = self.starts[partitions + 1]
        at = first_at_or_after(self.running_max_ms, self.starts[partitions], ends, times_ms)
        return at, at < ends


def _rows_of(runs: npt.NDArray[np.int64]) -> tuple[Int64s, Int64s]:
    """Each run is (number, first row, end). Return the number for each of their rows, and the rows."""
    numbers, firsts, ends = runs.T
    lengths = ends - firsts
    begins = np.cumsum(lengths) - lengths
    rows = np.arange(int(lengths.sum())) + np.repeat(firsts - begins, lengths)
    return np.repeat(numbers, lengths), rows


class _WantedStairs:
    """The answers of segments to times: the lowest offset found so far, -1 if there is none."""

    def __init__(self, places: list[tuple[str, int]], segments: _Segments, at: Int64s, sought_ms: Int64s) -> None:
        self._places = places
        self._sought_ms = sought_ms
        chosen, self._segment = np.unique(at, return_inverse=True)
        self._ids = segments.ids.take(pa.array(chosen))
        self._builds, self._of = segments.builds[chosen], segments.partitions[chosen]
        self.offsets = np.full(len(at), -1)
        self.timestamps_ms = np.full(len(at), NOTHING)
        self.leader_epochs = np.full(len(at), -1)

    def look_into(self, part: IndexRows) -> None:
        """Take the answers of a part that are lower than those found so far."""
        runs = [
            (at, *run) for at, place in enumerate(self._places) if place in part.places for run in part.places[place]
        ]
        if not runs:
            return
        of, rows = _rows_of(np.array(runs))
        wanted, run = self._match(of, part.segment_ids.take(pa.array(rows)), part.builds[rows])
        run = rows[run]
        while len(wanted):  # once, unless the rows of a segment are not next to each other
            chosen, first = np.unique(wanted, return_index=True)
            self._take_lower(part, chosen, run[first])
            is_left = np.ones(len(wanted), dtype=np.bool_)
            is_left[first] = False
            wanted, run = wanted[is_left], run[is_left]

    def _match(self, of: Int64s, ids: pa.Array, builds: Int64s) -> tuple[Int64s, Int64s]:
        """Return the pairs of wanted segments and runs with the same partition, segment id and build."""
        names = self._ids.unique()
        ours, theirs = (
            _codes(each, names) * len(self._places) + numbers for each, numbers in ((self._ids, self._of), (ids, of))
        )
        order = np.argsort(ours, kind="stable")
        bounds = (np.searchsorted(ours[order], theirs, side=side) for side in ("left", "right"))
        run, at = _rows_of(np.column_stack([np.arange(len(theirs)), *bounds]))
        wanted = order[at]
        is_same = self._builds[wanted] == builds[run]
        return wanted[is_same], run[is_same]

    def _take_lower(self, part: IndexRows, segments: Int64s, runs: Int64s) -> None:
        """Take the answers of runs, one for each of these segments, that are lower than those found so far."""
        first, end = np.zeros((2, len(self._builds)), dtype=np.int64)
        first[segments], end[segments] = part.starts[runs], part.starts[runs + 1]
        asked = np.flatnonzero((end > first)[self._segment])
        of = self._segment[asked]
        at = first_at_or_after(part.keys, first[of], end[of], self._sought_ms[asked])
        is_found = at < end[of]
        asked, at = asked[is_found], at[is_found]
        is_lower = (self.offsets[asked] < 0) | (part.offsets[at] < self.offsets[asked])
        asked, at = asked[is_lower], at[is_lower]
        self.offsets[asked] = part.offsets[at]
        self.timestamps_ms[asked] = part.keys[at]
        self.leader_epochs[asked] = part.columns["leader_epoch"][at]


def _codes(texts: pa.Array, names: pa.Array) -> Int64s:
    """Return the place of each text in `names`; -1 if it is not there."""
    codes: Int64s = pc.fill_null(pc.index_in(texts, value_set=names), -1).to_numpy().astype(np.int64)
    return codes


def first_at_or_after(values: Int64s, first: Int64s, end: Int64s, sought: Int64s) -> Int64s:
    """Return for each sought value the first place from `first` up to `end` whose value is not smaller, else `end`.
    Values ascend from `first` to `end`; each sought value has a range of its own."""
    low, high = first.copy(), end.copy()
    while (is_open := low < high).any():
        middle = (low + high) >> 1
        is_before = is_open & (values[np.where(is_open, middle, 0)] < sought)
        low[is_before] = middle[is_before] + 1
        np.copyto(high, middle, where=is_open & ~is_before)
    return low
