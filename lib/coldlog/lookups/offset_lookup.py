"""offset_lookup: what are the answers to many requests at once?

Requests are sorted by partition and cut into as many slices as Spark has slots; each slice is answered by a task, with
`timed_answers`, straight from the files of the tables: no join, no shuffle, and no row group read that no request
needs. The clock of a request starts when the batch of a million that it is in is handed to Spark.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import InheritableThread
from pyspark.sql import DataFrame

from coldlog.lookups.batch_lookup import BatchReader
from coldlog.lookups.list_offsets import ListOffsets
from coldlog.lookups.local_tier import LocalTier
from coldlog.lookups.questions import ROUTES, Answers, Indices, Questions, is_repeated
from coldlog.lookups.served_index import NOTHING, ServedIndex, WarehouseFiles, list_warehouse_files
from coldlog.lookups.timed_answers import answer_until
from coldlog.model.list_offsets import TIMEOUT_SINCE_VERSION, ErrorCode
from coldlog.model.states import IsolationLevel
from coldlog.tables.warehouse import Warehouse

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
    ]
)
"""An answer of ListOffsets. error is NONE where there is none; route and local_start_offset (where the search of
segments that are not archived begins) are NULL where nothing was sought."""

ANSWER_SCHEMA = pa.schema(
    [
        *(LIST_OFFSETS_SCHEMA.field(name) for name in ("topic", "partition", "timestamp_ms")),
        *(LIST_OFFSETS_SCHEMA.field(name) for name in ("offset", "offset_timestamp_ms", "leader_epoch")),
        pa.field("error", pa.string()),
    ]
)
"""An answer of the archive: error is NULL where there is none, and where a timestamp is later than all that is
archived."""

DEFAULT_TIMEOUT_MS = 30_000
_REQUESTS_AT_ONCE = 1_000_000
_GRACE_S = 20.0
"""So much later than the last deadline the tasks themselves are given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """How requests are answered that do not say otherwise, and with what help beside the tables.

    `most_reads_at_once` bounds how many partitions each task reads or asks at the same time, beyond the tables.
    """

    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    broker_compatible: bool = False
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    batches: BatchReader | None = None
    local: LocalTier | None = None
    most_reads_at_once: int = 64


def list_offsets(warehouse: Warehouse, requests: pa.Table, options: LookupOptions = LookupOptions()) -> pa.Table:
    """Answers of `LIST_OFFSETS_SCHEMA`, one a request of `REQUEST_SCHEMA`, in the same order."""
    invalid = is_repeated(*(requests.column(name) for name in ("request_id", "topic", "partition")))
    answers = Answers.nothing(requests.num_rows)
    for start in range(0, requests.num_rows, _REQUESTS_AT_ONCE):
        batch = slice(start, min(start + _REQUESTS_AT_ONCE, requests.num_rows))
        asked = questions_of(requests.slice(start, _REQUESTS_AT_ONCE), invalid[batch], options)
        answers.put(np.arange(batch.start, batch.stop), _answer_batch(warehouse, asked, options))
    return answers_table(requests, answers)


def find_offsets_for_timestamps(
    warehouse: Warehouse, requests: pa.Table, options: LookupOptions = LookupOptions()
) -> pa.Table:
    """Answers of `ANSWER_SCHEMA`, one a request of `REQUEST_SCHEMA`, in the same order."""
    answers = list_offsets(warehouse, requests, options)
    is_told = pc.is_in(answers.column("error_code"), pa.array([ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED], pa.int32()))
    is_told = pc.and_(is_told, pc.or_(pc.greater_equal(answers["timestamp_ms"], 0), pc.equal(answers["error_code"], 0)))
    error = pc.if_else(is_told, pa.scalar(None, pa.string()), answers.column("error"))
    columns = [error if name == "error" else answers.column(name) for name in ANSWER_SCHEMA.names]
    return pa.table(columns, schema=ANSWER_SCHEMA)


@dataclass(frozen=True, slots=True)
class TimedQuestions:
    """Questions, and how long each may take, in seconds."""

    questions: Questions
    timeouts_s: npt.NDArray[np.float64]

    def take(self, where: Indices) -> TimedQuestions:
        """Those at these places."""
        questions = self.questions
        names = [name for name in Questions.__slots__ if name != "topics"]
        taken = Questions(questions.topics.take(pa.array(where)), *(getattr(questions, name)[where] for name in names))
        return TimedQuestions(taken, self.timeouts_s[where])


def questions_of(requests: pa.Table, invalid: npt.NDArray[np.bool_], options: LookupOptions) -> TimedQuestions:
    """Requests of `REQUEST_SCHEMA` as arrays, with what the options say where they say nothing."""
    numbers = {
        name: requests.column(name).cast(pa.int64()).to_numpy()
        for name in ("partition", "timestamp_ms", "current_leader_epoch", "timeout_ms", "version")
    }
    levels = pc.fill_null(requests.column("isolation_level"), options.isolation_level.value)
    is_committed = pc.equal(levels, IsolationLevel.READ_COMMITTED.value).to_numpy(zero_copy_only=False)
    questions = Questions(
        topics=requests.column("topic").combine_chunks(),
        partitions=numbers["partition"],
        timestamps_ms=numbers["timestamp_ms"],
        leader_epochs=numbers["current_leader_epoch"],
        is_committed=is_committed,
        versions=numbers["version"],
        is_invalid=invalid,
    )
    has_own = (numbers["timeout_ms"] > 0) & (numbers["version"] >= TIMEOUT_SINCE_VERSION)
    return TimedQuestions(questions, np.where(has_own, numbers["timeout_ms"], options.timeout_ms) / 1000)


def answers_table(requests: pa.Table, answers: Answers) -> pa.Table:
    """Answers as a table of `LIST_OFFSETS_SCHEMA`."""
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
    }
    asked = {name: requests.column(name) for name in ("topic", "partition", "timestamp_ms")}
    columns = {**asked, **values}
    return pa.table([columns[name] for name in LIST_OFFSETS_SCHEMA.names], schema=LIST_OFFSETS_SCHEMA)


def _nullable(values: npt.NDArray[np.int64], null: int, type_: pa.DataType) -> pa.Array:
    return pa.array(values, mask=values == null).cast(type_)


def _answer_batch(warehouse: Warehouse, asked: TimedQuestions, options: LookupOptions) -> Answers:
    started = time.time()
    spark = warehouse.spark
    files = list_warehouse_files(warehouse.uri, as_of_ms=warehouse.as_of_ms)
    places = _slices(asked.questions, spark.sparkContext.defaultParallelism)
    shipped = spark.sparkContext.broadcast((files, options, started, [asked.take(where) for where in places]))

    def answer_slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files, options, started, slices = shipped.value
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = _answer_slice(files, options, started, slices[number])
                yield pa.RecordBatch.from_pydict({"number": [number], "answers": [pickle.dumps(found)]})

    tasks = spark.range(0, len(places), 1, len(places)).mapInArrow(answer_slices, "number BIGINT, answers BINARY")
    answers = Answers.nothing(len(asked.timeouts_s), ErrorCode.REQUEST_TIMED_OUT)
    last_deadline = started + float(asked.timeouts_s.max(initial=0.0))
    try:
        for number, packed in _collect_until(tasks, last_deadline + _GRACE_S):
            answers.put(places[number], pickle.loads(packed))
    finally:
        shipped.unpersist()
    return answers


def _slices(questions: Questions, count: int) -> list[Indices]:
    """Places of requests: of about equal number, those of one partition together."""
    codes = questions.topics.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((questions.partitions, codes))
    codes, partitions = codes[order], questions.partitions[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (codes[1:] != codes[:-1]) | (partitions[1:] != partitions[:-1])
    firsts = np.append(np.flatnonzero(is_first), len(order))
    cuts = firsts[np.searchsorted(firsts, np.linspace(0, len(order), count + 1).astype(np.int64))]
    return [order[start:stop] for start, stop in pairwise(cuts) if stop > start]


def open_lookup(files: WarehouseFiles, options: LookupOptions) -> ListOffsets:
    """The tables, with what the options bring beside them."""
    index = ServedIndex(files, broker_compatible=options.broker_compatible)
    return ListOffsets(index, options.local, options.batches)


def _answer_slice(files: WarehouseFiles, options: LookupOptions, started: float, asked: TimedQuestions) -> Answers:
    return answer_until(
        partial(open_lookup, files, options),
        asked.questions,
        started + asked.timeouts_s,
        most_at_once=options.most_reads_at_once,
    )


def _collect_until(tasks: DataFrame, deadline: float) -> list[tuple[int, bytes]]:
    """What the tasks answered; where they themselves do not come to an end they are cancelled."""
    context, group = tasks.sparkSession.sparkContext, f"list-offsets-{uuid.uuid4()}"
    collected: list[list[tuple[int, bytes]]] = []
    failed: list[Exception] = []

    def collect() -> None:
        context.setJobGroup(group, "answer ListOffsets requests", interruptOnCancel=True)
        try:
            collected.append([(row["number"], row["answers"]) for row in tasks.toArrow().to_pylist()])
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            failed.append(error)

    thread = InheritableThread(target=collect, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.time()))
    if thread.is_alive():
        context.cancelJobGroup(group)
        return []
    if failed:
        raise failed[0]
    return collected[0]
