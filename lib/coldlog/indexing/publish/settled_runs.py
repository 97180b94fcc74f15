"""Join the segments of a partition that a plan would leave as they are.

A plan takes a tenth of a millisecond for each segment, and in a partition of many segments only the last ones are new.
So rows that follow each other become one row, a *run*, if each of them is as a plan has left it:

- It is indexed, serves all its offsets by its newest build, and has no holes and no transaction index.
- Its offsets begin directly after those of the row before it, and no other row begins there or reaches into them.
- It has one leader epoch, the same as the row before it, and a leader epoch checkpoint.
- It has markers, or no transaction is open at the end of the row before it.
- Its running maxima follow from those of the row before it.

The first of these rows stays by itself, because its running maxima change when the segments before it are deleted.

The run has the sums and maxima of its rows, the beginning of the first one, and the end, id and checkpoint of the last
one. A plan of the run is a plan of its segments: the first and the last offset and the leader epoch decide whether a
segment is within the lineage, above the log start and served, and its running maximum follows from the one before it.
If a plan changes the row of a run, the caller plans the partition without runs.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.indexing.written_times import written_ms
from coldlog.model.states import IndexStatus, RemoteLogSegmentState

JOINED_COUNT = "joined_count"
"""The column that is added: how many segments a row stands for."""
_ORDER = ("topic", "partition", "topic_id", "start_offset", "segment_id")
_EPOCHS = ("announced_leader_epochs", "segment_leader_epochs")
_UNKNOWN = np.iinfo(np.int64).min

_Int64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]


def in_order(segments: pa.Table) -> pa.Table:
    """Return the rows of each incarnation next to each other, in the order of their offsets."""
    return segments.sort_by([(name, "ascending") for name in _ORDER]).combine_chunks()


def join_settled_runs(segments: pa.Table, is_checkpoint_known: pa.ChunkedArray) -> pa.Table:
    """Return each run of two or more rows as one row, with `JOINED_COUNT`.

    `segments` are `in_order` and have the columns that a plan reads. `is_checkpoint_known` tells for each row whether
    it has a leader epoch checkpoint that a run may leave out.
    """
    if len(segments) < 3:
        return segments.append_column(JOINED_COUNT, pa.array(np.ones(len(segments), dtype=np.int64)))
    may_join = _is_settled(segments) & _is_alone(segments) & pc.fill_null(is_checkpoint_known, False).to_numpy()
    follows = np.concatenate(([False], may_join[1:] & may_join[:-1] & _follows(segments)))
    # The first row stays by itself: its running maxima change if segments before it are deleted.
    return _joined(segments, np.flatnonzero(~follows | np.concatenate(([True], ~follows[:-1]))))


def _is_settled(segments: pa.Table) -> _Bool:
    """Whether a row is that of a whole segment, and its served columns are those of one."""
    epochs, announced = (pc.list_value_length(segments[f"{name}_leader_epochs"]) for name in ("segment", "announced"))
    announced_end = segments["announced_end_offset"]
    facts = [
        pc.equal(segments["state"], RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name),
        pc.equal(segments["index_status"], IndexStatus.INDEXED.value),
        pc.equal(segments["served_from_offset"], segments["start_offset"]),
        pc.equal(segments["counted_from_offset"], segments["start_offset"]),
        pc.equal(segments["served_to_offset"], segments["end_offset"]),
        pc.or_kleene(pc.is_null(announced_end), pc.equal(announced_end, segments["end_offset"])),
        pc.equal(segments["served_build_number"], segments["build_number"]),
        pc.equal(segments["served_index_depth"], segments["index_depth"]),
        pc.fill_null(segments["is_within_lineage"], True),
        pc.is_valid(_largest(segments)),
        segments["txn_index_empty"],
        pc.equal(epochs, 1),
        pc.or_kleene(pc.is_null(announced), pc.equal(announced, 1)),
        *(
            pc.is_null(segments[name])
            for name in (
                "holes",
                "served_holes",
                "served_open_from_offset",
                "superseded_build_numbers",
                "not_served_reason",
            )
        ),
    ]
    found: _Bool = pc.fill_null(reduce(pc.and_kleene, facts), False).to_numpy()
    return found & ~_is_repeated(segments) & _has_own_maxima(segments)


def _is_repeated(segments: pa.Table) -> _Bool:
    """Whether another row has the same segment id; a plan takes one of them."""
    ids = pc.value_counts(segments["segment_id"])
    repeated = ids.field("values").filter(pc.greater(ids.field("counts"), 1))
    found: _Bool = pc.is_in(segments["segment_id"], value_set=repeated).to_numpy()
    return found


def _has_own_maxima(segments: pa.Table) -> _Bool:
    """Whether each running maximum is the larger one of the maximum before the segment and its own."""
    previous, own = _numbers(segments, "previous_running_max_timestamp_ms", "counted_max_timestamp_ms")
    of_broker, largest = _numbers(segments, "broker_previous_running_max_timestamp_ms"), _filled(_largest(segments))
    running, broker_running = _numbers(segments, "running_max_timestamp_ms", "broker_running_max_timestamp_ms")
    found: _Bool = (running == np.maximum(previous, own)) & (broker_running == np.maximum(of_broker[0], largest))
    return found


def _is_alone(segments: pa.Table) -> _Bool:
    """Whether no other row of the incarnation begins at one of the segment's offsets, or reaches into them."""
    starts, ends = _numbers(segments, "start_offset", "end_offset")
    is_other = _begins_incarnation(segments)
    begins = np.concatenate(([True], is_other))
    reached = np.empty(len(starts), dtype=np.int64)
    edges = np.append(np.flatnonzero(begins), len(starts))
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        reached[first] = _UNKNOWN
        np.maximum.accumulate(np.maximum(starts, ends)[first : end - 1], out=reached[first + 1 : end])
    is_before_next = is_other | (np.maximum(starts, ends)[:-1] < starts[1:])
    found: _Bool = (reached < starts) & np.append(is_before_next, True)
    return found


def _follows(segments: pa.Table) -> _Bool:
    """Whether each row but the first continues the one before it: offsets, leader epoch and running maxima."""
    starts, ends = _numbers(segments, "start_offset", "end_offset")
    found: _Bool = ~_begins_incarnation(segments) & (starts[1:] == ends[:-1] + 1)
    for kind in _EPOCHS:
        epochs, offsets = _epochs(segments[kind])
        found &= (epochs[1:] == epochs[:-1]) & (offsets[1:] >= offsets[:-1])
    for kind in ("", "broker_"):
        previous, running = _numbers(
            segments, f"{kind}previous_running_max_timestamp_ms", f"{kind}running_max_timestamp_ms"
        )
        found &= previous[1:] == running[:-1]
    within = _filled(segments["is_within_lineage"].cast(pa.int64()))
    found &= within[1:] == within[:-1]
    commits, aborts, open_from = _numbers(segments, "commit_marker_count", "abort_marker_count", "open_from_offset")
    found &= (commits[1:] != 0) | (aborts[1:] != 0) | (open_from[:-1] == _UNKNOWN)
    return found


def _begins_incarnation(segments: pa.Table) -> _Bool:
    """Whether each row but the first is of another incarnation than the one before it."""
    differs = [pc.not_equal(segments[name].slice(1), segments[name].slice(0, len(segments) - 1)) for name in _ORDER[:3]]
    found: _Bool = pc.fill_null(reduce(pc.or_kleene, differs), True).to_numpy()
    return found


def _joined(segments: pa.Table, firsts: _Int64) -> pa.Table:
    """Make one row of the rows from each of `firsts` to the next."""
    counts = np.diff(np.append(firsts, len(segments)))
    lasts = firsts + counts - 1
    if not (counts > 1).any():
        return segments.append_column(JOINED_COUNT, pa.array(counts))
    joined = segments.take(pa.array(lasts))
    largest = _largest(segments)
    own = _filled(segments["counted_max_timestamp_ms"])
    highest = np.maximum.reduceat(own, firsts)
    places = np.where(own == np.repeat(highest, counts), np.arange(len(own)), len(own))
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        name: segments[name].take(pa.array(firsts))
        for name in (
            "start_offset", "counted_from_offset", "served_from_offset", "previous_running_max_timestamp_ms",
            "broker_previous_running_max_timestamp_ms", *_EPOCHS,
        )
    }  # fmt: skip
    columns |= {
        "counted_max_timestamp_ms": _known(highest),
        "counted_max_timestamp_offset": segments["counted_max_timestamp_offset"].take(
            pa.array(np.minimum.reduceat(places, firsts))
        ),
        "announced_max_timestamp_ms": _known(np.maximum.reduceat(_filled(largest), firsts)),
        "copy_started_ms": _known(np.maximum.reduceat(_filled(written_ms(segments)), firsts)),
        **{
            name: pa.array(np.add.reduceat(_filled(segments[name], 0), firsts))
            for name in ("size_bytes", "record_count")
        },
    }
    is_run = pa.array(counts > 1)
    for name, column in columns.items():
        of_runs = column.cast(joined.schema.field(name).type)
        chosen = pc.if_else(is_run, of_runs, joined[name]) if name not in _EPOCHS else of_runs
        joined = joined.set_column(joined.schema.get_field_index(name), name, chosen)
    return joined.append_column(JOINED_COUNT, pa.array(counts))


def _largest(segments: pa.Table) -> pa.ChunkedArray:
    """The largest timestamp that Kafka announced, or that the build found in the headers."""
    return pc.coalesce(segments["announced_max_timestamp_ms"], segments["metadata_max_timestamp_ms"])


def _numbers(segments: pa.Table, *names: str) -> list[_Int64]:
    return [_filled(segments[name]) for name in names]


def _filled(column: pa.ChunkedArray, value: int = _UNKNOWN) -> _Int64:
    found: _Int64 = pc.fill_null(column, value).to_numpy()
    return found


def _known(values: _Int64) -> pa.Array:
    return pa.array(values, mask=values == _UNKNOWN)


def _epochs(column: pa.ChunkedArray) -> tuple[_Int64, _Int64]:
    """The first leader epoch of each row and its start offset; `_UNKNOWN` if the row has none."""
    lists = column.combine_chunks()
    has_one = pc.fill_null(pc.greater(pc.list_value_length(lists), 0), False).to_numpy(zero_copy_only=False)
    at = lists.offsets.to_numpy()[:-1][has_one]
    found = []
    for name in ("leader_epoch", "start_offset"):
        values = np.full(len(lists), _UNKNOWN, dtype=np.int64)
        values[has_one] = lists.values.field(name).to_numpy(zero_copy_only=False)[at]
        found.append(values)
    return found[0], found[1]
