"""Look up offsets in milliseconds from a service or a notebook, without Spark.

    from coldlog.reader import OffsetReader
    reader = OffsetReader("/data/coldlog")
    reader.offset_for_timestamp("orders", 0, 1_767_607_200_000)   # FoundOffset(offset=..., ...) or None
    reader.list_offsets([("orders", 0, SpecialTimestamp.LATEST_TIERED)])

The reader uses the same Delta tables as the SQL functions, with delta-rs and PyArrow. It reads only the row groups that
may hold an answer and keeps them in memory. It answers from the table versions that it opened; `refresh` opens the
newest. Questions about segments and aborted transactions open their tables when the first of them is asked. Use one
reader per thread. Only `list_offsets` has deadlines. A reader belongs to the process that opened it: in a process that
is forked from it, questions are refused.

If it reads damaged bytes of the archive (depths `batch` and `sidecar`), a thread adds the segment to the table
`damage_reports`, once, so that the next run of run_pipeline reads that log completely. No answer waits for that or
fails by it. `LookupOptions(report_damage=False)` writes nothing; `as_of_ms` does not either.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from numbers import Integral, Real
from os import PathLike, fspath

import pyarrow as pa

from coldlog.errors import ColdlogError, RetriableError, UsageError
from coldlog.lookups.damage.reported_damage import reports_to
from coldlog.lookups.kept_times import KeptTimes
from coldlog.lookups.list_offsets import ListOffsets, LookupOptions, open_lookup
from coldlog.lookups.local.local_tier import FoundOffset
from coldlog.lookups.questions import NOT_EXACT, Answers, is_repeated
from coldlog.lookups.requests.rows import answers_table, questions_of, requests_from_rows
from coldlog.lookups.served_index import ServedIndex, list_warehouse_files
from coldlog.lookups.timed_answers import answer_in_threads
from coldlog.lookups.transactions import SegmentQuestions
from coldlog.model.arguments import check_partition, check_topic, whole_number
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.model.states import IsolationLevel
from coldlog.model.transactions import AbortedTransaction, FoundSegment, FoundTxnSegment
from coldlog.runtime.opened_here import OpenedHere

Request = tuple[object, ...]
"""(topic, partition, timestamp_ms), optionally followed by current_leader_epoch, isolation_level, timeout_ms, version
and request_id, as in `coldlog.lookups.requests.requests_file.REQUEST_SCHEMA`."""


class OffsetReader:
    """Answer from the warehouse at `uri`, and from the further sources in `options`."""

    def __init__(
        self, uri: str | PathLike[str], options: LookupOptions | None = None, *, as_of_ms: int | None = None
    ) -> None:
        """Open the warehouse; `UsageError` if there is none at `uri`."""
        self._uri = _text_of(uri)
        self._options = options or LookupOptions()
        self._as_of_ms = None if as_of_ms is None else whole_number("as_of_ms", as_of_ms, 0, 2**63)
        self._is_committed = self._options.isolation_level is IsolationLevel.READ_COMMITTED
        self._rows_read_before = 0
        self._segments = SegmentQuestions(self._uri, self._as_of_ms)
        self._open()
        self._opened = OpenedHere(f"the reader of {self._uri}")

    def _open(self) -> None:
        self._files = list_warehouse_files(self._uri, as_of_ms=self._as_of_ms)
        self._index, self._lookup = self._open_lookup()

    def _open_lookup(self) -> tuple[ServedIndex, ListOffsets]:
        # Tables of the past name builds that may be replaced since.
        is_reported = self._options.report_damage and self._as_of_ms is None
        return open_lookup(self._files, self._options, reports_to(self._uri).add if is_reported else None)

    def refresh(self) -> None:
        """Open the newest version of the tables. If that fails, the version before it goes on answering."""
        self._opened.check()
        before = self._index
        self._open()
        self._segments.refresh()
        before.close()

    def resize(self, most_reads_at_once: int) -> None:
        """From the next question on, read or ask so many partitions at the same time."""
        count = whole_number("most_reads_at_once", most_reads_at_once, 1, 1025)
        self._options = replace(self._options, most_reads_at_once=count)

    def close(self) -> None:
        """Close the files; the reader cannot be used after that."""
        if not self._opened.is_forked:
            self._opened.close()
            self._index.close()
            self._segments.close()

    def __enter__(self) -> OffsetReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rows_read(self) -> int:
        """The number of table rows read from storage so far; rows answered from memory do not count."""
        return self._rows_read_before + self._index.rows_read + self._segments.rows_read

    def partitions(self, topic: str) -> list[int]:
        """The numbers of the topic's archived partitions, ascending; empty for an unknown topic."""
        self._opened.check()
        check_topic(topic)
        return self._index.list_partitions(topic)

    def answer_table(self, requests: pa.Table, *, timeout_ms: int | None = None) -> pa.Table:
        """Answers of `LIST_OFFSETS_SCHEMA` to requests of `REQUEST_SCHEMA`, in the same order; `timeout_ms` as for
        `list_offsets`."""
        self._opened.check()
        if timeout_ms is not None:
            timeout_ms = whole_number("timeout_ms", timeout_ms, 1, 2**31)
        invalid = is_repeated(*(requests.column(name) for name in ("request_id", "topic", "partition")))
        options = self._options
        timed = questions_of(requests, invalid, options.isolation_level, timeout_ms or options.timeout_ms)
        if timeout_ms is None:
            return answers_table(requests, self._lookup.answer(timed.questions))
        answers, is_usable = answer_in_threads(
            self._lookup, timed.questions, time.time() + timed.timeouts_s, most_at_once=options.most_reads_at_once
        )
        if not is_usable:
            # A thread still reads these tables. Open the same files again, and leave it to itself.
            self._rows_read_before += self._index.rows_read
            self._index, self._lookup = self._open_lookup()
        return answers_table(requests, answers)

    def list_offsets(self, requests: Iterable[Request], *, timeout_ms: int | None = None) -> list[dict[str, object]]:
        """One answer per request, in the order of the requests, with the columns of `LIST_OFFSETS_SCHEMA`.

        With `timeout_ms`, a request that is not answered within its own timeout, or else within this one, is
        REQUEST_TIMED_OUT; without, there are no deadlines.

        Values with other types than in `REQUEST_SCHEMA` are a `UsageError`.
        """
        requests = list(requests)
        try:
            table = _requests_table(requests)
        except _UNFIT:
            number = _first_unfit(requests)
            try:
                _requests_table([requests[number]])
            except _UNFIT as unfit:
                raise UsageError(
                    f"request {number} is not (topic, partition, timestamp_ms): {requests[number]!r}: {unfit}; for "
                    "special timestamps use the numbers of coldlog.model.list_offsets.SpecialTimestamp"
                ) from unfit
            raise
        rows: list[dict[str, object]] = self.answer_table(table, timeout_ms=timeout_ms).to_pylist()
        return rows

    def answer_one(
        self, topic: str, partition: int, timestamp_ms: int, *, is_committed: bool, leader_epoch: int, version: int
    ) -> Answers:
        """Answer one request, as arrays of one entry; for a caller that has checked the values and that the version
        allows the timestamp."""
        self._opened.check()
        return self._lookup.answer_one(
            topic, partition, timestamp_ms, is_committed=is_committed, leader_epoch=leader_epoch, version=version
        )

    def keep_times(self, kept: KeptTimes, topic: str, partition: int, timestamp_ms: int) -> None:
        """Let `kept` answer this time and others near it from now on, without this reader."""
        self._opened.check()
        kept.learn(self._index, topic, partition, timestamp_ms)

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> FoundOffset | None:
        """The first record at or after a time, and whether that is exact; None if no archived record is.

        Raises `UsageError` for an unknown partition or a negative time, `RetriableError` if the archive does not answer
        (depths `batch` and `sidecar`), and otherwise another `ColdlogError`. If there is no record, but offsets that no
        segment serves may hold one, that is an error too.
        """
        whole_ms = whole_number("timestamp_ms", timestamp_ms, -(2**63), 2**63)
        if whole_ms < 0:
            raise UsageError(f"not a time: {whole_ms}; use list_offsets for special timestamps")
        return self._find(topic, partition, whole_ms)

    def max_timestamp(self, topic: str, partition: int) -> FoundOffset | None:
        """The partition's largest archived timestamp and the lowest offset with it; None if nothing is archived."""
        return self._find(topic, partition, SpecialTimestamp.MAX_TIMESTAMP)

    def earliest_offset(self, topic: str, partition: int) -> int | None:
        """The log start offset, as far as the archive has it."""
        found = self._find(topic, partition, SpecialTimestamp.EARLIEST)
        return None if found is None else found.offset

    def latest_tiered_offset(self, topic: str, partition: int) -> int | None:
        """The last archived offset; None if nothing is archived."""
        found = self._find(topic, partition, SpecialTimestamp.LATEST_TIERED)
        return None if found is None else found.offset

    def next_segment_with_txn_index(
        self, topic: str, partition: int, leader_epoch: int | None, offset: int
    ) -> FoundTxnSegment | None:
        """The first segment from an offset on that may hold aborted transactions, in this leader epoch or, with None,
        of the partition; as Kafka's RemoteLogMetadataManager.nextSegmentWithTxnIndex."""
        self._opened.check()
        return self._segments.next_segment_with_txn_index(topic, partition, leader_epoch, offset)

    def segment_for_offset(
        self, topic: str, partition: int, leader_epoch: int | None, offset: int
    ) -> FoundSegment | None:
        """The segment that has an offset, in this leader epoch or, with None, in any; as Kafka's
        RemoteLogMetadataManager.remoteLogSegmentMetadata."""
        self._opened.check()
        return self._segments.segment_for_offset(topic, partition, leader_epoch, offset)

    def aborted_transactions(
        self, topic: str, partition: int, fetch_offset: int, upper_bound_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions that a fetch from an offset to before a bound meets, by first offset."""
        self._opened.check()
        return self._segments.aborted_transactions(topic, partition, fetch_offset, upper_bound_offset)

    def _find(self, topic: str, partition: int, timestamp_ms: int) -> FoundOffset | None:
        self._opened.check()
        number = check_partition(topic, partition)
        answers = self._lookup.answer_one(topic, number, int(timestamp_ms), is_committed=self._is_committed)
        error, where = ErrorCode(int(answers.errors[0])), f"partition {number} of topic {topic!r}"
        if error in (ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED):
            found = answers.found(0)
            if found is None and answers.exactness[0] == NOT_EXACT:
                raise _incomplete(where, answers)
            return found
        if error is ErrorCode.ARCHIVE_INCOMPLETE:
            raise _incomplete(where, answers)
        if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UsageError(f"no {where} in the warehouse {self._uri}; its table partition_metadata lists all")
        if error in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT):
            raise RetriableError(f"the archive does not answer for {where}: {error.name}")
        raise ColdlogError(f"no offset of {where} for {timestamp_ms}: {answers.error_text(0)}")


def _text_of(uri: str | PathLike[str]) -> str:
    try:
        text: object = fspath(uri)
    except TypeError as no_path:
        raise UsageError(f"not the uri of a warehouse: {uri!r}") from no_path
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"not the uri of a warehouse: {uri!r}")
    if not text:
        raise UsageError("the uri of the warehouse is empty; give its folder or s3://bucket/prefix")
    return text


def _incomplete(where: str, answers: Answers) -> ColdlogError:
    first, last = int(answers.passed_from[0]), int(answers.passed_to[0])
    passed = f"offsets from {first} on" if last < 0 else f"offsets {first} to {last}"
    return ColdlogError(
        f"{passed} of {where} may hold it, but no segment serves them; see the table segments for the reason, or "
        "call list_offsets for the answer without them"
    )


_REQUIRED = ("topic", "partition", "timestamp_ms")
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


def _first_unfit(requests: Sequence[Request]) -> int:
    """Return the number of the first request that is unfit, by halves: one by one a million takes a minute."""
    first, end = 0, len(requests)
    while end - first > 1:
        middle = (first + end) // 2
        try:
            _requests_table(requests[first:middle])
            first = middle
        except _UNFIT:
            end = middle
    return first


def _requests_table(requests: Sequence[Request]) -> pa.Table:
    for request in requests:
        if len(request) < len(_REQUIRED):
            raise ValueError("a value is missing")
        if any(isinstance(value, Real | Decimal) and not isinstance(value, Integral) for value in request):
            raise TypeError("a number with a fraction")  # Arrow would drop the fraction
    table = requests_from_rows(requests)
    if any(table.column(name).null_count for name in _REQUIRED):
        raise ValueError("a value is missing")
    return table
