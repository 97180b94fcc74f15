"""Define requests and answers as tables, and convert them to and from arrays.

`REQUEST_SCHEMA` is a request of ListOffsets, `LIST_OFFSETS_SCHEMA` its answer. `ANSWER_SCHEMA` is the answer of
lookup_offsets, which only asks the archive for times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coldlog.lookups.index_rows import NOTHING
from coldlog.lookups.questions import ROUTES, Answers, Indices, Questions
from coldlog.model.list_offsets import (
    DEFAULT_TIMEOUT,
    ISOLATION_LEVEL_SINCE_VERSION,
    NEWEST_VERSION,
    TIMEOUT_SINCE_VERSION,
    UNKNOWN_EPOCH,
    ErrorCode,
)
from coldlog.model.states import IsolationLevel

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("request_index", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("current_leader_epoch", pa.int32(), nullable=False),
        pa.field("isolation_level", pa.string()),
        pa.field("timeout_ms", pa.int32(), nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("request_id", pa.string()),
    ]
)
"""A request of ListOffsets. isolation_level: NULL takes that of the settings. timeout_ms: -1 takes that of the
settings. request_id: entries with the same id are one request, which may name a partition only once."""
LIST_OFFSETS_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("error_code", pa.int32(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("offset", pa.int64()),
        pa.field("offset_timestamp_ms", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("route", pa.string()),
        pa.field("local_start_offset", pa.int64()),
        pa.field("is_exact", pa.bool_()),
        pa.field("passed_over_from_offset", pa.int64()),
        pa.field("passed_over_to_offset", pa.int64()),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("request_id", pa.string()),
    ]
)
"""An answer of ListOffsets. error is NONE if there is none. route and local_start_offset (where the search of segments
that are not archived begins) are NULL if nothing was searched. is_exact is false if offsets that no segment serves may
hold an earlier match: passed_over_from_offset to passed_over_to_offset (NULL: the end is unknown). is_exact is NULL for
errors, and in tables of a release that did not know. version and request_id are those of the request."""

EXACTNESS_COLUMNS = ("is_exact", "passed_over_from_offset", "passed_over_to_offset")
ANSWER_SCHEMA = pa.schema(
    [
        *(LIST_OFFSETS_SCHEMA.field(name) for name in ("topic", "partition", "timestamp_ms")),
        *(LIST_OFFSETS_SCHEMA.field(name) for name in ("offset", "offset_timestamp_ms", "leader_epoch")),
        pa.field("error", pa.string()),
        *(LIST_OFFSETS_SCHEMA.field(name) for name in EXACTNESS_COLUMNS),
    ]
)
"""An answer of the archive. error is NULL if there is none, also for a timestamp that is later than the archive."""

REQUEST_DEFAULTS: dict[str, int | None] = {
    "current_leader_epoch": UNKNOWN_EPOCH,
    "isolation_level": None,
    "timeout_ms": DEFAULT_TIMEOUT,
    "version": NEWEST_VERSION,
    "request_id": None,
}
REQUEST_TYPES = {field.name: field.type for field in REQUEST_SCHEMA if field.name != "request_index"}


def requests_from_rows(rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """Make requests from (topic, partition, timestamp_ms), optionally followed by more columns of `REQUEST_SCHEMA`.
    Rows may differ in length."""
    names = list(REQUEST_TYPES)[: max(map(len, rows), default=3)]
    columns = zip_longest(*rows) if rows else ([] for _ in names)
    return numbered_requests(
        {name: pa.array(column, REQUEST_TYPES[name]) for name, column in zip(names, columns, strict=True)}
    )


def numbered_requests(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Number requests in the order given; missing columns and values get the schema's defaults."""
    count = len(columns["topic"])
    filled = []
    for name, type_ in REQUEST_TYPES.items():
        column = columns.get(name, pa.nulls(count, type_))
        default = REQUEST_DEFAULTS.get(name)
        filled.append(column if default is None else pc.fill_null(column, default))
    return pa.table([pa.array(range(count), pa.int64()), *filled], schema=REQUEST_SCHEMA)


@dataclass(frozen=True, slots=True)
class TimedQuestions:
    """Questions, and the timeout of each in seconds."""

    questions: Questions
    timeouts_s: npt.NDArray[np.float64]

    def take(self, where: Indices) -> TimedQuestions:
        """Return the questions at these places."""
        questions = self.questions
        names = [name for name in Questions.__slots__ if name != "topics"]
        taken = Questions(questions.topics.take(pa.array(where)), *(getattr(questions, name)[where] for name in names))
        return TimedQuestions(taken, self.timeouts_s[where])


def questions_of(
    requests: pa.Table, invalid: npt.NDArray[np.bool_], isolation_level: IsolationLevel, timeout_ms: int
) -> TimedQuestions:
    """Convert requests of `REQUEST_SCHEMA` to arrays. The arguments replace values that a request does not give."""
    numbers = {
        name: requests.column(name).cast(pa.int64()).to_numpy()
        for name in ("partition", "timestamp_ms", "current_leader_epoch", "timeout_ms", "version")
    }
    levels = pc.fill_null(requests.column("isolation_level"), isolation_level.value)
    is_level = pc.is_in(levels, pa.array([level.value for level in IsolationLevel])).to_numpy().astype(np.bool_)
    is_committed = pc.equal(levels, IsolationLevel.READ_COMMITTED.value).to_numpy(zero_copy_only=False)
    is_committed &= numbers["version"] >= ISOLATION_LEVEL_SINCE_VERSION
    questions = Questions(
        topics=requests.column("topic").combine_chunks(),
        partitions=numbers["partition"],
        timestamps_ms=numbers["timestamp_ms"],
        leader_epochs=numbers["current_leader_epoch"],
        is_committed=is_committed,
        versions=numbers["version"],
        is_invalid=invalid | ~is_level,
    )
    has_timeout = (numbers["timeout_ms"] > 0) & (numbers["version"] >= TIMEOUT_SINCE_VERSION)
    return TimedQuestions(questions, np.where(has_timeout, numbers["timeout_ms"], timeout_ms) / 1000)


def answers_table(requests: pa.Table, answers: Answers) -> pa.Table:
    """Convert answers to a table of `LIST_OFFSETS_SCHEMA`."""
    codes = pa.array(answers.errors, pa.int32())
    names = pa.array([ErrorCode(code).name for code in pc.unique(codes).to_pylist()], pa.string())
    values = {
        "error_code": codes,
        "error": names.take(pc.index_in(codes, pc.unique(codes))) if len(codes) else pa.array([], pa.string()),
        "offset": _nullable(answers.offsets, -1, pa.int64()),
        "offset_timestamp_ms": _nullable(answers.timestamps_ms, NOTHING, pa.int64()),
        "leader_epoch": _nullable(answers.leader_epochs, -1, pa.int32()),
        "route": pa.array([route.value for route in ROUTES]).take(_nullable(answers.routes, -1, pa.int64())),
        "local_start_offset": _nullable(answers.local_starts, -1, pa.int64()),
        "is_exact": _nullable(answers.exactness, -1, pa.bool_()),
        "passed_over_from_offset": _nullable(answers.passed_from, -1, pa.int64()),
        "passed_over_to_offset": _nullable(answers.passed_to, -1, pa.int64()),
    }
    copied = {name: requests.column(name) for name in LIST_OFFSETS_SCHEMA.names if name not in values}
    columns = {**copied, **values}
    return pa.table([columns[name] for name in LIST_OFFSETS_SCHEMA.names], schema=LIST_OFFSETS_SCHEMA)


def answers_of_archive(answers: pa.Table) -> pa.Table:
    """Convert answers of `LIST_OFFSETS_SCHEMA` to `ANSWER_SCHEMA`: a time later than the archive is not an error."""
    is_fine = pc.is_in(answers.column("error_code"), pa.array([ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED], pa.int32()))
    is_fine = pc.and_(is_fine, pc.or_(pc.greater_equal(answers["timestamp_ms"], 0), pc.equal(answers["error_code"], 0)))
    error = pc.if_else(is_fine, pa.scalar(None, pa.string()), answers.column("error"))
    columns = [error if name == "error" else answers.column(name) for name in ANSWER_SCHEMA.names]
    return pa.table(columns, schema=ANSWER_SCHEMA)


def _nullable(values: npt.NDArray[np.int64], null: int, type_: pa.DataType) -> pa.Array:
    is_null = values == null
    return pa.nulls(len(values), type_) if is_null.all() else pa.array(values, mask=is_null).cast(type_)
