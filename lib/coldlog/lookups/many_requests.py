"""Answer a table of requests in this process, without Spark, or batch by batch by whoever reads the tables.

Opening the tables takes a tenth of a second and an answer a fraction of a millisecond, so some 100,000 requests are
answered before Spark would have started. All that reads runs in child processes, as in Spark's tasks: a child can be
stopped at a deadline, and delta-rs refuses to work in a child of a process that has used it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from coldlog.errors import RetriableError
from coldlog.lookups.deadlines import NoResult, Piece, run_pieces
from coldlog.lookups.list_offsets import ListOffsets, LookupOptions, open_lookup
from coldlog.lookups.questions import Answers, is_repeated
from coldlog.lookups.requests.rows import TimedQuestions, answers_table, questions_of
from coldlog.lookups.served_index import ServedIndex, list_warehouse_files
from coldlog.lookups.timed_answers import answer_until
from coldlog.tables.delta.as_of import find_moment_without_spark

MOST_IN_PROCESS = 100_000
"""More requests than this are answered faster by Spark's tasks, which run beside each other."""
_REQUESTS_AT_ONCE = 1_000_000
_NO_HURRY_MS = 7 * 24 * 3_600_000
_NO_HURRY_S = _NO_HURRY_MS / 1000


def answer_requests(
    requests: pa.Table, options: LookupOptions, answer: Callable[[TimedQuestions, LookupOptions], Answers]
) -> pa.Table:
    """Return answers of `LIST_OFFSETS_SCHEMA`, one per request of `REQUEST_SCHEMA`, in the same order.

    `answer` gets up to a million requests at once; their timeouts start then.
    """
    invalid = is_repeated(*(requests.column(name) for name in ("request_id", "topic", "partition")))
    answers = Answers.nothing(requests.num_rows)
    for start in range(0, requests.num_rows, _REQUESTS_AT_ONCE):
        batch = slice(start, min(start + _REQUESTS_AT_ONCE, requests.num_rows))
        timed = questions_of(
            requests.slice(start, _REQUESTS_AT_ONCE), invalid[batch], options.isolation_level, options.timeout_ms
        )
        answers.put(np.arange(batch.start, batch.stop), answer(timed, options))
    return answers_table(requests, answers)


def in_no_hurry(options: LookupOptions) -> LookupOptions:
    """The same options, but only a request's own timeout counts."""
    return replace(options, timeout_ms=_NO_HURRY_MS)


@dataclass(frozen=True, slots=True)
class ProcessEngine:
    """Answers from the tables below `uri`, as they are now or were `as_of` a moment."""

    uri: str
    as_of: str | None = None

    def answer(self, timed: TimedQuestions, options: LookupOptions) -> Answers:
        """Answer each request within its timeout, which includes the opening of the tables."""
        return answer_until(
            lambda: self._open(options)[1],
            timed.questions,
            time.time() + timed.timeouts_s,
            most_at_once=options.most_reads_at_once,
        )

    def list_partitions(self, topic: str) -> list[int]:
        """The numbers of the topic's archived partitions, ascending; empty for an unknown topic."""
        reading = Piece(lambda: self._open(LookupOptions())[0].list_partitions(topic), time.time() + _NO_HURRY_S)
        ((_, partitions),) = run_pieces([reading], 1)
        if isinstance(partitions, NoResult):
            raise RetriableError(f"the partitions in {self.uri} were not read: {partitions.value}; run again")
        return partitions

    def _open(self, options: LookupOptions) -> tuple[ServedIndex, ListOffsets]:
        moment_ms = find_moment_without_spark(self.as_of, self.uri)
        return open_lookup(list_warehouse_files(self.uri, as_of_ms=moment_ms), options)
