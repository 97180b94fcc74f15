"""Leave segments out of a comparison if their row in `segments` already agrees with their events and the listing.

These are most segments of a partition. To fold and compare one takes a fifth of a millisecond. Here columns are
compared instead, which takes some microseconds.

A segment has *ended* if

- its events are the four of a usual life, and no others: copy started, copy finished, delete started, delete finished,
- it is not listed,
- its row has what follows from the events.

A segment *stands* if

- its events are the first two of these, and no others,
- it is listed with all its files, as its row says, and is indexed,
- its row has what follows from the events.

The deletion of its partition must not be announced. A segment without events has ended if its row says that it is gone,
and it is not listed. It stands if no segment has events.

So a comparison would find no difference. All others are folded and compared one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS, FIRST_COLUMNS, LAST_COLUMNS
from coldlog.indexing.events.event_rows import PARTITION_DELETE, SEGMENT, SEGMENT_UPDATE
from coldlog.model.states import IndexStatus, RemoteLogSegmentState

_LIFE = (
    (SEGMENT, RemoteLogSegmentState.COPY_SEGMENT_STARTED.name),
    (SEGMENT_UPDATE, RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name),
    (SEGMENT_UPDATE, RemoteLogSegmentState.DELETE_SEGMENT_STARTED.name),
    (SEGMENT_UPDATE, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.name),
)
_COPIED = _LIFE[:2]
_SEGMENT = ("topic", "partition", "topic_id")

_Int64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The rows of `segments`, the events and the listed segments that are left to compare.

    `governed` has the topic ids and partitions of the segments with events that were left out: events say what else
    belongs to these. `some_stand`: listed segments were left out.
    """

    stored: pa.Table
    events: pa.Table
    listed: pa.Table
    governed: frozenset[tuple[str, int]]
    some_stand: bool

    @classmethod
    def all_of(cls, stored: pa.Table, events: pa.Table, listed: pa.Table) -> Compared:
        """Leave nothing out."""
        return cls(stored=stored, events=events, listed=listed, governed=frozenset(), some_stand=False)


def without_settled(stored: pa.Table, events: pa.Table, listed: pa.Table) -> Compared:
    """Leave out the segments that have ended or stand. `events` are all of these partitions, in
    `EVENT_COLUMNS`; `listed` has the segments of the listing (`SEGMENT_COLUMNS`)."""
    stored, events, listed = stored.combine_chunks(), events.combine_chunks(), listed.combine_chunks()
    is_gone = _is_gone(stored, listed["segment_id"])
    stands = _stands(stored, listed)
    lives = _Lives.of(events)
    ended = lives.leading_to(stored, np.flatnonzero(is_gone & _lived_as_usual(stored)), _LIFE)
    standing = lives.leading_to(stored, np.flatnonzero(stands & _lived_as_usual(stored)), _COPIED)
    if not len(events):
        standing = np.flatnonzero(stands & _is_unannounced(stored))
    left = ~is_gone | pc.is_in(stored["segment_id"], events["segment_id"]).to_numpy()
    left[ended] = False
    left[standing] = False
    told = stored.take(pa.array(np.concatenate([ended, standing if len(events) else ended[:0]])))
    standing_ids = stored["segment_id"].take(pa.array(standing))
    of_partitions = told.group_by(["topic_id", "partition"]).aggregate([])
    return Compared(
        stored=stored.filter(pa.array(left)),
        events=events.filter(pc.invert(pc.fill_null(pc.is_in(events["segment_id"], told["segment_id"]), False))),
        listed=listed.filter(pc.invert(pc.is_in(listed["segment_id"], standing_ids))),
        governed=frozenset((row["topic_id"], row["partition"]) for row in of_partitions.to_pylist()),
        some_stand=len(standing) > 0,
    )


def ended_places(stored: pa.Table, events: pa.Table) -> _Int64:
    """Return the places of the segments whose events are the four of a usual life, and no others."""
    stored, events = stored.combine_chunks(), events.combine_chunks()
    places, rows, first, _ = _Lives.of(events).of_life(stored, np.arange(len(stored)), _LIFE)
    is_same = [_is_same(rows[name], first[name]) for name in (*_SEGMENT, "start_offset")]
    ended: _Int64 = places[reduce(np.logical_and, is_same)]
    return ended


def _is_gone(stored: pa.Table, listed_ids: pa.ChunkedArray) -> _Bool:
    """Whether the row says that the segment is deleted, and it is not listed."""
    facts = [
        pc.equal(stored["state"], _LIFE[-1][1]),
        pc.equal(stored["index_status"], IndexStatus.GONE.value),
        pc.invert(stored["is_listed"]),
        pc.invert(pc.is_in(stored["segment_id"], listed_ids)),
    ]
    return _all_true(facts)


def _stands(stored: pa.Table, listed: pa.Table) -> _Bool:
    """Whether the row says that the segment is copied and indexed, and it is listed as the row says."""
    facts = [
        pc.equal(stored["state"], _COPIED[-1][1]),
        pc.equal(stored["index_status"], IndexStatus.INDEXED.value),
        stored["is_listed"],
        pc.is_valid(stored["build_number"]),
        pc.equal(pc.list_value_length(stored["missing_kinds"]), 0),
    ]
    found = _all_true(facts)
    at = pc.fill_null(pc.index_in(stored["segment_id"], listed["segment_id"]), -1).to_numpy().astype(np.int64)
    places = np.flatnonzero(found & (at >= 0))
    places = places[_is_only(listed["segment_id"])[at[places]]]
    row, there = stored.take(pa.array(places)), listed.take(pa.array(at[places]))
    is_same = [_is_same(row[name], there[name]) for name in (*_SEGMENT, "start_offset", "log_modified_ms", "state")]
    is_same.append(pc.is_valid(row["log_modified_ms"]).to_numpy())
    # The listing does not show every size of a log.
    is_same.append(pc.is_null(there["size_bytes"]).to_numpy() | _is_same(row["size_bytes"], there["size_bytes"]))
    is_same.append(_are_same_lists(row["objects"], there["objects"]))
    found[:] = False
    found[places] = reduce(np.logical_and, is_same)
    return found


def _is_only(ids: pa.ChunkedArray) -> _Bool:
    """Whether no other row has the same id."""
    codes = _codes(ids)
    only: _Bool = np.bincount(codes + 1, minlength=1)[codes + 1] == 1
    return only


def _lived_as_usual(stored: pa.Table) -> _Bool:
    """Whether the row says what all rows of a usual life say."""
    return _all_true(
        [
            pc.equal(stored["state_source"], "events"),
            pc.equal(stored["was_copied"], True),
            pc.equal(stored["dropped_event_count"], 0),
        ]
    )


def _is_unannounced(stored: pa.Table) -> _Bool:
    """Whether the row says that no event names the segment."""
    nulls = [pc.is_null(stored[name]) for name in ANNOUNCED_COLUMNS]
    return _all_true([pc.equal(stored["state_source"], "listing"), *nulls])


def _all_true(facts: Sequence[pa.ChunkedArray]) -> _Bool:
    found: _Bool = pc.fill_null(reduce(pc.and_kleene, facts), False).to_numpy()
    return found.copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lives:
    """The events of each segment, in order: the places of all, where those of a segment begin, and how many it has.

    `steps` are the places in `_LIFE` of the events' states, -1 for others.
    """

    events: pa.Table
    order: _Int64
    begins: _Int64
    counts: _Int64
    steps: _Int64

    @classmethod
    def of(cls, events: pa.Table) -> _Lives:
        """Put the events of each segment in order."""
        ids = pc.fill_null(events["segment_id"], "").combine_chunks().dictionary_encode()
        of_id = ids.indices.to_numpy()
        steps = np.full(len(events), -1)
        for step, (kind, state) in enumerate(_LIFE):
            is_step = pc.and_(pc.equal(events["event_kind"], kind), pc.equal(events["state"], state))
            steps[pc.fill_null(is_step, False).to_numpy()] = step
        order = np.lexsort((events["metadata_offset"].to_numpy(), events["metadata_partition"].to_numpy(), of_id))
        begins = np.flatnonzero(np.append(True, of_id[order[1:]] != of_id[order[:-1]])) if len(order) else order
        counts = np.diff(np.append(begins, len(order)))
        return cls(events=events, order=order, begins=begins, counts=counts, steps=steps)

    def leading_to(self, stored: pa.Table, candidates: _Int64, life: Sequence[tuple[str, str]]) -> _Int64:
        """Return the candidates, places in `stored`, whose events are those of this life and lead to their rows."""
        found, rows, first, last = self.of_life(stored, candidates, life)
        return found[_follows_from(rows, first, last)]

    def of_life(
        self, stored: pa.Table, candidates: _Int64, life: Sequence[tuple[str, str]]
    ) -> tuple[_Int64, pa.Table, pa.Table, pa.Table]:
        """Return the candidates whose events are those of this life; their rows, first and last events."""
        firsts, lasts = self._with(life)
        ids = self.events["segment_id"].take(pa.array(firsts))
        place = pc.fill_null(pc.index_in(stored["segment_id"], ids), -1).to_numpy().astype(np.int64)
        candidates = candidates[place[candidates] >= 0]
        rows = stored.take(pa.array(candidates))
        first, last = (self.events.take(pa.array(places[place[candidates]])) for places in (firsts, lasts))
        return candidates, rows, first, last

    def _with(self, life: Sequence[tuple[str, str]]) -> tuple[_Int64, _Int64]:
        """Find the segments with the events of this life and no others; return the places of their first and last."""
        begins = self.begins[self.counts == len(life)]
        places = self.order[begins[:, None] + np.arange(len(life))]
        is_usual = (self.steps[places] == np.arange(len(life))).all(axis=1)
        for name in _SEGMENT:
            codes = _codes(self.events[name])[places]
            is_usual &= (codes == codes[:, :1]).all(axis=1)
        topic_ids = self.events["topic_id"]
        deleted = topic_ids.filter(pc.equal(self.events["event_kind"], PARTITION_DELETE))
        is_deleted = pc.fill_null(pc.is_in(topic_ids, deleted), False).to_numpy()
        is_usual &= ~is_deleted[places[:, 0]]
        return places[is_usual, 0], places[is_usual, -1]


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """A number for each different value; that of NULL is its own."""
    codes: npt.NDArray[np.int32] = pc.fill_null(column.combine_chunks().dictionary_encode().indices, -1).to_numpy()
    return codes


def _follows_from(rows: pa.Table, first: pa.Table, last: pa.Table) -> _Bool:
    """Whether each row has what its events say."""
    facts = [_is_same(rows[name], first[name]) for name in (*_SEGMENT, "start_offset")]
    facts += [_is_same(rows[name], first[of_event]) for name, of_event in FIRST_COLUMNS.items()]
    facts.append(_is_same(rows["copy_started_ms"], first["event_timestamp_ms"]))
    facts += [_is_same(rows[name], last[name]) for name in LAST_COLUMNS]
    # What a build found in the log counts more than what was announced, which is kept only if it is true.
    announced = pc.if_else(first["txn_index_empty"], True, None)
    facts.append(pc.is_valid(rows["build_number"]).to_numpy() | _is_same(rows["txn_index_empty"], announced))
    found: _Bool = reduce(np.logical_and, facts)
    return found


def _is_same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> _Bool:
    """Whether the values are equal, or both NULL."""
    if pa.types.is_list(one.type):
        return _are_same_lists(one, other)
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    is_same: _Bool = pc.if_else(both_null, True, pc.fill_null(pc.equal(one, other), False)).to_numpy()
    return is_same


def _are_same_lists(one: pa.ChunkedArray, other: pa.ChunkedArray) -> _Bool:
    """Whether lists of structs have the same entries in the same order. Empty lists and NULL count as different."""
    lengths, others = (pc.fill_null(pc.list_value_length(each), 0).to_numpy() for each in (one, other))
    places = np.flatnonzero((lengths == others) & (lengths > 0))
    found = np.zeros(len(one), dtype=np.bool_)
    if len(places):
        entries = [pc.list_flatten(each.take(pa.array(places))) for each in (one, other)]
        names = [field.name for field in one.type.value_type]
        is_same = reduce(
            np.logical_and, [_is_same(*(pc.struct_field(each, name) for each in entries)) for name in names]
        )
        begins = np.append(0, np.cumsum(lengths[places])[:-1])
        found[places] = np.logical_and.reduceat(is_same, begins)
    return found
