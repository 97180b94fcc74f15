"""Divide segments into commits and tasks.

Segments keep their order of topic, partition and start offset, so that each file of an index table covers a short
range. Commits and tasks are consecutive segments in this order, with about equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.archive.layouts.layout import ListedSegment, SegmentFileKind
from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.segments import SEGMENTS, listed_segment, required_integer

WORK_COLUMNS = (
    *SEGMENTS.key, "topic_id", "objects", "log_modified_ms", "build_number", "superseded_build_numbers",
    "announced_size_bytes", "announced_end_offset", "announced_max_timestamp_ms", "announced_leader_epochs",
    "index_depth",
)  # fmt: skip
"""The columns of `segments` that a build needs."""
ADDED_COLUMNS = ("count_from_offset", "is_last", "is_log_damaged")
"""What `SegmentWork` says of them, beside these columns."""
_OBJECTS = pa.list_(
    pa.struct(
        [
            (each.name, pa.large_string() if each.type == pa.string() else each.type)
            for each in SEGMENTS.arrow_schema.field("objects").type.value_type
        ]
    )
)
"""The names of 3 million segments take more than the 2 GiB that a column of usual strings may have."""
_READ_AT_ONCE = 1_000
_OPENING_COST_BYTES = 1 << 20
"""The cost of opening a segment's files, as bytes that could be read in the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWork:
    """A segment to read.

    Running maxima and stairs count records from `count_from_offset` on. Announced values are None if no event is known.
    `is_last`: no listed segment of its directory begins after it. `is_log_damaged`: the log was found damaged, so it is
    read at every depth. `is_decoded`: its objects were indexed at record depth before, so they are again: a lookup that
    the tables answered must not need the archive after the segment was counted again.
    """

    segment: ListedSegment
    log_modified_ms: int
    count_from_offset: int
    replaces_build_numbers: tuple[int, ...]
    announced_size_bytes: int | None = None
    announced_end_offset: int | None = None
    announced_max_timestamp_ms: int | None = None
    announced_leader_epochs: tuple[EpochStart, ...] = ()
    is_last: bool = False
    is_log_damaged: bool = False
    is_decoded: bool = False

    @property
    def log_bytes(self) -> int:
        log = self.segment.find_object(SegmentFileKind.LOG)
        return log.size_bytes if log else 0

    @staticmethod
    def from_row(row: dict[str, object]) -> SegmentWork:
        """Make it from a row of `segments` with the columns count_from_offset and is_last added."""
        return SegmentWork(
            segment=listed_segment(row),
            log_modified_ms=required_integer(row["log_modified_ms"]),
            count_from_offset=required_integer(row["count_from_offset"]),
            replaces_build_numbers=_build_numbers(row),
            announced_size_bytes=_known_integer(row.get("announced_size_bytes")),
            announced_end_offset=_known_integer(row.get("announced_end_offset")),
            announced_max_timestamp_ms=_known_integer(row.get("announced_max_timestamp_ms")),
            announced_leader_epochs=_epoch_starts(row.get("announced_leader_epochs")),
            is_last=row.get("is_last") is True,
            is_log_damaged=row.get("is_log_damaged") is True,
            is_decoded=row.get("index_depth") == IndexDepth.RECORD.value,
        )


@dataclass(frozen=True, slots=True, eq=False)
class WorkTable:
    """Segments to read, as columns: the object of a segment takes 4 KB, so it is made where the segment is read.

    `rows` have `WORK_COLUMNS` and `ADDED_COLUMNS`. `log_bytes` has the size of each log, 0 if there is none.
    """

    rows: pa.Table
    log_bytes: npt.NDArray[np.int64]

    @staticmethod
    def of(rows: pa.Table) -> WorkTable:
        """Take the rows in the order of the table's key."""
        wanted = rows.select((*WORK_COLUMNS, *ADDED_COLUMNS))
        wanted = wanted.set_column(wanted.column_names.index("objects"), "objects", wanted["objects"].cast(_OBJECTS))
        wanted = wanted.sort_by([(name, "ascending") for name in SEGMENTS.key])
        return WorkTable(wanted, _log_bytes(wanted["objects"]))

    @property
    def total_bytes(self) -> int:
        """Of all logs."""
        return int(self.log_bytes.sum())

    def __len__(self) -> int:
        return len(self.log_bytes)

    def __iter__(self) -> Iterator[SegmentWork]:
        for first in range(0, len(self), _READ_AT_ONCE):
            yield from map(SegmentWork.from_row, self.rows.slice(first, _READ_AT_ONCE).to_pylist())

    def packed(self) -> bytes:
        """Return the rows as bytes for a task, compressed: names of objects are long and alike."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_table(self.rows)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    @staticmethod
    def unpacked(content: bytes) -> WorkTable:
        """Undo `packed`."""
        rows = pa.ipc.open_stream(content).read_all()
        return WorkTable(rows, _log_bytes(rows["objects"]))

    def split(self, starts: Iterable[int]) -> list[WorkTable]:
        """Divide them before the segments at these places, the first of which is 0 if there are segments."""
        bounds = [*starts, len(self)]
        return [
            WorkTable(self.rows.slice(first, end - first), self.log_bytes[first:end]) for first, end in pairwise(bounds)
        ]


def plan_commits(work: WorkTable, max_bytes: int) -> list[WorkTable]:
    """Split `work` into runs of at most `max_bytes` of log; a larger segment becomes a run alone."""
    starts, room = list[int](), 0
    for place, size in enumerate(work.log_bytes.tolist()):
        if not starts or size > room:
            starts.append(place)
            room = max_bytes
        room -= size
    return work.split(starts)


def plan_tasks(work: WorkTable, task_count: int) -> list[WorkTable]:
    """Split `work` into at most `task_count` runs of about equal bytes; no run is empty."""
    costs = [size + _OPENING_COST_BYTES for size in work.log_bytes.tolist()]
    total, starts, done = sum(costs), list[int](), 0
    for place, cost in enumerate(costs):
        if not starts or done * task_count >= total * len(starts):
            starts.append(place)
        done += cost
    return work.split(starts)


def _log_bytes(objects: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the size of the log among the objects of each segment."""
    found = np.zeros(len(objects), dtype=np.int64)
    first = 0
    for chunk in objects.chunks:
        listed, owners = chunk.flatten(), pc.list_parent_indices(chunk).to_numpy()
        is_log = pc.equal(pc.struct_field(listed, "kind"), SegmentFileKind.LOG.value)
        sizes = pc.struct_field(listed, "size_bytes").filter(is_log)
        found[first + owners[np.flatnonzero(is_log)]] = sizes.to_numpy()
        first += len(chunk)
    return found


def _build_numbers(row: dict[str, object]) -> tuple[int, ...]:
    """List the newest build, and earlier builds whose rows still exist."""
    earlier = row.get("superseded_build_numbers") or []
    newest = _known_integer(row["build_number"])
    return (*earlier, *([] if newest is None else [newest]))  # type: ignore[misc]  # an Arrow list column


def _epoch_starts(entries: object) -> tuple[EpochStart, ...]:
    return tuple((entry["leader_epoch"], entry["start_offset"]) for entry in entries or ())  # type: ignore[attr-defined]


def _known_integer(value: object) -> int | None:
    return None if value is None else required_integer(value)
