"""Answer many requests at once with Spark tasks.

Requests are sorted by partition and cut into as many slices as Spark has slots. A task answers a slice with
`timed_answers`, directly from the files of the tables: no join, no shuffle, and only the row groups that a request
needs. The timeout of a request starts when Spark gets its batch of up to a million requests.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import DataFrame

from coldlog.lookups.list_offsets import LookupOptions, open_lookup
from coldlog.lookups.many_requests import answer_requests, in_no_hurry
from coldlog.lookups.questions import Answers, Indices, Questions
from coldlog.lookups.requests.rows import TimedQuestions, answers_of_archive
from coldlog.lookups.served_index import WarehouseFiles, list_warehouse_files
from coldlog.lookups.timed_answers import answer_until
from coldlog.model.list_offsets import ErrorCode
from coldlog.tables.delta.warehouse import Warehouse

_DEFAULTS = LookupOptions()
_GRACE_S = 20.0
"""The tasks are cancelled this long after the last deadline."""


def list_offsets(warehouse: Warehouse, requests: pa.Table, options: LookupOptions = _DEFAULTS) -> pa.Table:
    """Return answers of `LIST_OFFSETS_SCHEMA`, one per request of `REQUEST_SCHEMA`, in the same order."""
    return answer_requests(requests, options, partial(answer_batch, warehouse))


def find_offsets_for_timestamps(
    warehouse: Warehouse, requests: pa.Table, options: LookupOptions = _DEFAULTS
) -> pa.Table:
    """Return answers of `ANSWER_SCHEMA`, one per request of `REQUEST_SCHEMA`, in the same order.

    There is no default timeout: only a request's own timeout counts.
    """
    return answers_of_archive(list_offsets_in_no_hurry(warehouse, requests, options))


def list_offsets_in_no_hurry(warehouse: Warehouse, requests: pa.Table, options: LookupOptions = _DEFAULTS) -> pa.Table:
    """As `list_offsets`, but only a request's own timeout counts."""
    return list_offsets(warehouse, requests, in_no_hurry(options))


def answer_batch(warehouse: Warehouse, timed: TimedQuestions, options: LookupOptions) -> Answers:
    """Answer each request within its timeout, which starts now."""
    started = time.time()
    spark = warehouse.spark
    files = list_warehouse_files(warehouse.uri, as_of_ms=warehouse.as_of_ms)
    places = _slices(timed.questions, spark.sparkContext.defaultParallelism)
    shipped = spark.sparkContext.broadcast((files, options, started, [timed.take(where) for where in places]))

    def answer_slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files, options, started, slices = shipped.value
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = _answer_slice(files, options, started, slices[number])
                yield pa.RecordBatch.from_pydict({"number": [number], "answers": [pickle.dumps(found)]})

    tasks = spark.range(0, len(places), 1, len(places)).mapInArrow(answer_slices, "number BIGINT, answers BINARY")
    answers = Answers.nothing(len(timed.timeouts_s), ErrorCode.REQUEST_TIMED_OUT)
    last_deadline = started + float(timed.timeouts_s.max(initial=0.0))
    try:
        for number, packed in _collect_until(tasks, last_deadline + _GRACE_S):
            answers.put(places[number], pickle.loads(packed))
    finally:
        shipped.unpersist()
    return answers


def _slices(questions: Questions, count: int) -> list[Indices]:
    """Cut requests into slices of about equal size; the requests of a partition stay together."""
    codes = questions.topics.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((questions.partitions, codes))
    codes, partitions = codes[order], questions.partitions[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (codes[1:] != codes[:-1]) | (partitions[1:] != partitions[:-1])
    firsts = np.append(np.flatnonzero(is_first), len(order))
    cuts = firsts[np.searchsorted(firsts, np.linspace(0, len(order), count + 1).astype(np.int64))]
    return [order[start:stop] for start, stop in pairwise(cuts) if stop > start]


def _answer_slice(files: WarehouseFiles, options: LookupOptions, started: float, timed: TimedQuestions) -> Answers:
    return answer_until(
        lambda: open_lookup(files, options)[1],
        timed.questions,
        started + timed.timeouts_s,
        most_at_once=options.most_reads_at_once,
    )


def _collect_until(tasks: DataFrame, deadline: float) -> list[tuple[int, bytes]]:
    """Return the answers of the tasks. Cancel the tasks if they do not end by the deadline."""
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
