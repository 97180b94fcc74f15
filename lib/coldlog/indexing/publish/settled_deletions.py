"""Leave out of a plan the deleted segments that do not change it.

The row of a deleted segment stays in `segments`, so a partition with retention has more of them each day, and a plan
takes a tenth of a millisecond for each. Nothing of a deleted segment is served. It tells a plan two things:

- Where the log may start (`index.log_start`): after its end, or after the last offset at which it still follows the
  lineage, if that is lower. Only its leader epochs and its end offset matter, and with the same epochs a segment that
  ends later never leads to a lower log start. So of segments with the same several epochs, the one that ends last is
  enough. A segment of one epoch begins that epoch at its own base offset, because Kafka cuts the checkpoint there. It
  follows any lineage up to its end or to the end of this epoch in the lineage, if it does not begin before the epoch.
  Take two segments of the same epoch: if the one that begins first follows a lineage, the other one does, too. So a
  segment is left out if another one of its epoch begins and ends at or after it.
- When its incarnation was written last, and deleted last (`written_times`). The segment that was written last and the
  one that was deleted last are enough.

A segment whose served columns are not yet those of a deleted one is planned. What is left out may be forgotten, too
(`forgotten_segments`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.index.served_ranges import NotServedReason
from coldlog.indexing.written_times import TIME_COLUMNS, deleted_ms, written_ms
from coldlog.model.states import IndexStatus

_Int64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]

_ASKED = (
    "topic", "partition", "topic_id", "segment_id", "was_copied", "end_offset", "announced_end_offset",
    "announced_leader_epochs", "segment_leader_epochs", *TIME_COLUMNS,
)  # fmt: skip


def without_settled(segments: pa.Table, served_columns: Sequence[str]) -> pa.Table:
    """Return the rows of `segments` that must be planned. `served_columns` are those that a plan sets."""
    return segments.filter(pa.array(~are_needless(segments, served_columns)))


def are_needless(segments: pa.Table, served_columns: Sequence[str]) -> _Bool:
    """Whether a row is that of a deleted segment that changes no plan."""
    needless = np.zeros(len(segments), dtype=np.bool_)
    places = np.flatnonzero(_is_settled(segments, served_columns) & ~_has_a_twin(segments))
    if len(places):
        rows = segments.select(_ASKED).take(pa.array(places)).combine_chunks()
        of_row = _incarnations_of(rows)
        needless[places[~(_newest(rows, of_row) | _ends_of_logs(rows, of_row))]] = True
    return needless


def _has_a_twin(segments: pa.Table) -> _Bool:
    """Whether several rows have the id of a row."""
    ids = pc.value_counts(segments["segment_id"].combine_chunks())
    repeated = ids.field("values").filter(pc.greater(ids.field("counts"), 1))
    found: _Bool = pc.is_in(segments["segment_id"], repeated).to_numpy()
    return found


def _incarnations_of(rows: pa.Table) -> _Int64:
    """Return the number of each row's incarnation (topic, partition and topic id)."""
    codes = [rows[name].combine_chunks().dictionary_encode().indices for name in ("topic", "topic_id")]
    columns = np.column_stack([each.to_numpy() for each in (codes[0], rows["partition"], codes[1])])
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


def _newest(rows: pa.Table, of_row: _Int64) -> _Bool:
    """Choose the segments of each incarnation that were written last and deleted last."""
    chosen = np.zeros(len(rows), dtype=np.bool_)
    for times_ms in (written_ms(rows), deleted_ms(rows)):
        order = np.lexsort((_numbers(times_ms), of_row))
        chosen[order[np.append(of_row[order[1:]] != of_row[order[:-1]], True)]] = True
    return chosen


def _ends_of_logs(rows: pa.Table, of_row: _Int64) -> _Bool:
    """Choose the segments that are enough to tell where logs may start."""
    ends = np.maximum(_numbers(rows["end_offset"]), _numbers(rows["announced_end_offset"]))
    announced, own = rows["announced_leader_epochs"], rows["segment_leader_epochs"]
    is_announced = _numbers(pc.list_value_length(announced)) > 0
    epochs = pc.if_else(pa.array(is_announced), announced, own)
    count = _numbers(pc.list_value_length(epochs))
    was_copied = pc.fill_null(rows["was_copied"], False).to_numpy()
    chosen = np.zeros(len(rows), dtype=np.bool_)
    single = np.flatnonzero(was_copied & (count == 1))
    entries = pc.list_flatten(epochs.take(pa.array(single)))
    epoch, start = (_numbers(pc.struct_field(entries, name)) for name in ("leader_epoch", "start_offset"))
    order = np.lexsort((ends[single], start, epoch, of_row[single]))
    places, groups = single[order], np.column_stack((of_row[single], epoch))[order]
    borders = np.flatnonzero((groups[1:] != groups[:-1]).any(axis=1)) + 1
    for group in np.split(places, borders) if len(places) else ():
        # From the one that begins last to the first: those that end later than all before.
        furthest = np.maximum.accumulate(ends[group][::-1])
        chosen[group[::-1][np.append(True, furthest[1:] > furthest[:-1])]] = True
    greatest: dict[tuple[Any, ...], int] = {}
    several = np.flatnonzero(was_copied & (count != 1))
    for at, entry in zip(several.tolist(), epochs.take(pa.array(several)).to_pylist(), strict=True):
        key = (int(of_row[at]), *((each["leader_epoch"], each["start_offset"]) for each in entry or ()))
        if key not in greatest or ends[greatest[key]] < ends[at]:
            greatest[key] = at
    chosen[list(greatest.values())] = True
    return chosen


def _numbers(column: pa.ChunkedArray | pa.Array) -> _Int64:
    """The column with 0 for NULL."""
    found: _Int64 = pc.fill_null(pc.cast(column, pa.int64()), 0).to_numpy()
    return found


def _is_settled(segments: pa.Table, served_columns: Sequence[str]) -> _Bool:
    """Whether a row is that of a deleted segment, and a plan would not change it."""
    facts = [
        pc.starts_with(segments["state"], "DELETE_SEGMENT"),
        pc.equal(segments["index_status"], IndexStatus.GONE.value),
        pc.equal(segments["not_served_reason"], NotServedReason.NOT_INDEXED.value),
        pc.is_null(segments["superseded_build_numbers"]),
        *(pc.is_null(segments[name]) for name in served_columns if name != "not_served_reason"),
    ]
    found: _Bool = pc.fill_null(reduce(pc.and_kleene, facts), False).to_numpy()
    return found
