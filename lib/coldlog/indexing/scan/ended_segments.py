"""Leave out of a comparison the segments that were copied and deleted, and of which `segments` says so already.

A partition with retention has more of them each day, and to fold and compare one takes a fifth of a millisecond. Here
columns are compared instead, which takes some microseconds. A segment has *ended* if

- its events are the four of a usual life, and no others: copy started, copy finished, delete started, delete finished,
- the deletion of its partition was not announced,
- it is not listed,
- its row has what follows from the events.

A segment without events has ended if its row says that it is gone, and it is not listed.

So a comparison would find no difference. All others are folded and compared one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.indexing.events.announced_here import FIRST_COLUMNS, LAST_COLUMNS
from coldlog.indexing.events.event_rows import PARTITION_DELETE, SEGMENT, SEGMENT_UPDATE
from coldlog.model.states import IndexStatus, RemoteLogSegmentState

_LIFE = (
    (SEGMENT, RemoteLogSegmentState.COPY_SEGMENT_STARTED.name),
    (SEGMENT_UPDATE, RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name),
    (SEGMENT_UPDATE, RemoteLogSegmentState.DELETE_SEGMENT_STARTED.name),
    (SEGMENT_UPDATE, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.name),
)
_SEGMENT = ("topic", "partition", "topic_id")

_Int64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The rows of `segments` and the events that are left to compare. `governed` has the topic ids and partitions of
    the segments that were left out: events say what else belongs to these."""

    stored: pa.Table
    events: pa.Table
    governed: frozenset[tuple[str, int]]


def without_ended(stored: pa.Table, events: pa.Table, listed_ids: pa.Array) -> Compared:
    """Leave out the segments that have ended. `events` are all of these partitions, in `announced_here.EVENT_COLUMNS`;
    `listed_ids` has the ids of segments that are listed."""
    stored, events = stored.combine_chunks(), events.combine_chunks()
    is_gone = _is_gone(stored, listed_ids)
    firsts, lasts = _usual_lives(events)
    candidates = np.flatnonzero(is_gone & _lived_as_usual(stored))
    ids = events["segment_id"].take(pa.array(firsts))
    at = pc.index_in(stored["segment_id"], ids)
    life = pc.fill_null(at, -1).to_numpy().astype(np.int64)
    candidates = candidates[life[candidates] >= 0]
    rows = stored.take(pa.array(candidates))
    first, last = (events.take(pa.array(places[life[candidates]])) for places in (firsts, lasts))
    ended = candidates[_follows_from(rows, first, last)]
    left = ~is_gone | pc.is_in(stored["segment_id"], events["segment_id"]).to_numpy()
    left[ended] = False
    ended_ids = stored["segment_id"].take(pa.array(ended))
    is_of_ended = pc.fill_null(pc.is_in(events["segment_id"], ended_ids), False)
    of_partitions = stored.take(pa.array(ended)).group_by(["topic_id", "partition"]).aggregate([])
    return Compared(
        stored=stored.filter(pa.array(left)),
        events=events.filter(pc.invert(is_of_ended)),
        governed=frozenset((row["topic_id"], row["partition"]) for row in of_partitions.to_pylist()),
    )


def _is_gone(stored: pa.Table, listed_ids: pa.Array) -> _Bool:
    """Whether the row says that the segment is deleted, and it is not listed."""
    facts = [
        pc.equal(stored["state"], _LIFE[-1][1]),
        pc.equal(stored["index_status"], IndexStatus.GONE.value),
        pc.invert(stored["is_listed"]),
        pc.invert(pc.is_in(stored["segment_id"], listed_ids)),
    ]
    return _all_true(facts)


def _lived_as_usual(stored: pa.Table) -> _Bool:
    """Whether the row says what all rows of a usual life say."""
    return _all_true(
        [
            pc.equal(stored["state_source"], "events"),
            pc.equal(stored["was_copied"], True),
            pc.equal(stored["dropped_event_count"], 0),
        ]
    )


def _all_true(facts: list[pa.ChunkedArray]) -> _Bool:
    found: _Bool = pc.fill_null(reduce(pc.and_kleene, facts), False).to_numpy()
    return found


def _usual_lives(events: pa.Table) -> tuple[_Int64, _Int64]:
    """Find the ids with the four events of a usual life and no others; return the places of their first and last."""
    ids = pc.fill_null(events["segment_id"], "").combine_chunks().dictionary_encode()
    of_id = ids.indices.to_numpy()
    steps = np.full(len(events), -1)
    for step, (kind, state) in enumerate(_LIFE):
        is_step = pc.and_(pc.equal(events["event_kind"], kind), pc.equal(events["state"], state))
        steps[pc.fill_null(is_step, False).to_numpy()] = step
    order = np.lexsort((events["metadata_offset"].to_numpy(), events["metadata_partition"].to_numpy(), of_id))
    begins = np.flatnonzero(np.append(True, of_id[order[1:]] != of_id[order[:-1]])) if len(order) else order
    begins = begins[np.diff(np.append(begins, len(order))) == len(_LIFE)]
    places = order[begins[:, None] + np.arange(len(_LIFE))]
    is_usual = (steps[places] == np.arange(len(_LIFE))).all(axis=1)
    for name in _SEGMENT:
        codes = _codes(events[name])[places]
        is_usual &= (codes == codes[:, :1]).all(axis=1)
    deleted = events["topic_id"].filter(pc.equal(events["event_kind"], PARTITION_DELETE))
    is_deleted = pc.fill_null(pc.is_in(events["topic_id"], deleted), False).to_numpy()
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
    facts += [_is_same(rows[name], last[name]) for name in LAST_COLUMNS]
    # What a build found in the log counts more than what was announced, which is kept only if it is true.
    announced = pc.if_else(first["txn_index_empty"], True, None)
    facts.append(pc.is_valid(rows["build_number"]).to_numpy() | _is_same(rows["txn_index_empty"], announced))
    found: _Bool = reduce(np.logical_and, facts)
    return found


def _is_same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> _Bool:
    """Whether the values are equal or both NULL. Of lists, only those with one entry count: a segment of one epoch."""
    if pa.types.is_list(one.type):
        is_single = [pc.fill_null(pc.equal(pc.list_value_length(each), 1), False).to_numpy() for each in (one, other)]
        places = np.flatnonzero(is_single[0] & is_single[1])
        entries = [pc.list_flatten(each.take(pa.array(places))) for each in (one, other)]
        fields = [[pc.struct_field(each, name) for each in entries] for name in ("leader_epoch", "start_offset")]
        found = np.zeros(len(one), dtype=np.bool_)
        found[places] = reduce(np.logical_and, [_is_same(*each) for each in fields])
        return found
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    is_same: _Bool = pc.if_else(both_null, True, pc.fill_null(pc.equal(one, other), False)).to_numpy()
    return is_same
