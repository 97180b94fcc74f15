"""Ask the tables and the archive what a client wants to know.

All calls here may read files, and run in threads of a pool. A reader of offsets works for one thread at a time, and is
kept for the next one. All answers come from the table versions that were newest at the last `refresh`.

Topics have the names of `offered_topics`. Partitions of which nothing is archived, between others of their topic, are
known and empty: clients expect numbers from 0 without gaps.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from base64 import urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

from coldlog.archive.stores.without_waiting import check_may_wait
from coldlog.errors import ColdlogError, RetriableError
from coldlog.lookups.kept_times import Found, KeptTimes
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.questions import Answers
from coldlog.model.fetch import FetchedRecords, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.model.list_offsets import ErrorCode as LookupCode
from coldlog.reader import OffsetReader
from coldlog.records.fetch.archive_tables import ArchivedPartition, ArchiveTables
from coldlog.records.fetch.record_source import RecordSource
from coldlog.records.fetch.slice_reader import FetchedBatches
from coldlog.records.fetch.slices import LogSlice
from coldlog.records.source.archived_log import Incarnation
from coldlog.serve.offered_topics import OfferedTopics, list_topics
from coldlog.serve.threads import check_wanted

_MOST_GAPS = 1000
"""A fetch passes over so many gaps at most."""
_MOST_IDLE_READERS = 32
_MOST_KNOWN = 100_000
_UNDEFINED = -1
_GREATEST = (1 << 63) - 1
_Found = TypeVar("_Found")
_EMPTY = PartitionEnds(log_start_offset=0, end_offset=0, last_stable_offset=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPartition:
    """What clients may know of a partition. `is_archived`: the tables have a row of it."""

    is_archived: bool
    ends: PartitionEnds
    lineage: tuple[tuple[int, int], ...] = ()
    log_end_offset: int | None = None
    """Where the log ends, with the offsets at its end that no segment serves; None: it is not known."""
    size_bytes: int = 0
    """Of the logs that serve it."""

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch; -1 if none is known."""
        return self.lineage[-1][0] if self.lineage else _UNDEFINED

    def is_lost(self, offset: int) -> bool:
        """Whether the log has this offset, or ends with it, after those that its segments serve."""
        return self.log_end_offset is not None and self.ends.end_offset < offset <= self.log_end_offset

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to this one, and the offset at which it ends, as Kafka's LeaderEpochFileCache
        does; (-1, -1) if it is unknown.

        The newest epoch ends with the log, also if that cannot be read: a client whose position is after the end goes
        back, and reads records again."""
        epochs = [known for known, _ in self.lineage]
        if epoch < 0 or not epochs or epoch > epochs[-1]:
            return _UNDEFINED, _UNDEFINED
        if epoch == epochs[-1]:
            return epoch, _GREATEST if self.log_end_offset is None else max(self.ends.end_offset, self.log_end_offset)
        above = bisect_right(epochs, epoch)
        return epochs[above - 1] if above else epoch, self.lineage[above][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuestion:
    """One partition of a ListOffsets, whose version allows the timestamp. `topic` is the name that clients use."""

    topic: str
    partition: int
    timestamp_ms: int
    leader_epoch: int
    is_committed: bool
    version: int


@dataclass(slots=True, kw_only=True)
class _Known:
    """What was read from one version of the tables, and answers without a read."""

    tables: object
    partitions: dict[tuple[str, int], ServedPartition] = field(default_factory=dict)
    times: KeptTimes = field(default_factory=KeptTimes)


class ArchiveView:
    """The topics of one warehouse and one archive."""

    def __init__(
        self, uri: str, source: RecordSource, options: LookupOptions, *, prefix: str = "", skips_gaps: bool = False
    ) -> None:
        self._uri = uri
        self._source = source
        self._options = options
        self._prefix = prefix
        self._skips_gaps = skips_gaps
        self._idle_readers: list[tuple[object, OffsetReader]] = []
        self._turn = threading.Lock()
        self._refreshed = weakref.ref(source.tables)
        self._looking = threading.Lock()
        self._looks = self._last_look = 0
        """How many looks for newer tables have begun, and the number of the last one that succeeded."""
        self._topics: tuple[object, OfferedTopics | None] = None, None
        self._known = _Known(tables=source.tables)
        digest = hashlib.sha256(uri.encode()).digest()
        self.cluster_id = urlsafe_b64encode(digest[:16]).decode().rstrip("=")

    def offered(self) -> OfferedTopics:
        """Return the topics, by the names that clients use."""
        (tables, topics), newest = self._topics, self._source.tables
        if topics is None or tables is not newest:
            topics = list_topics(self._from_newest(self._incarnations), self._prefix)
            self._topics = newest, topics
        return topics

    def topics(self) -> Mapping[str, int]:
        """Return the number of partitions of each topic, by the name that clients use."""
        return self.offered().counts

    def topic_id(self, name: str) -> UUID | None:
        """Return the id of a topic; None if its partitions have several, or it is not known."""
        return self.offered().ids.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the topic that has this id; None if there is none."""
        return self.offered().names.get(topic_id)

    def known_name_of(self, topic_id: UUID) -> str | None:
        """Return the topic of this id without reading anything; None also if the topics were not read yet."""
        tables, topics = self._topics
        return topics.names.get(topic_id) if topics is not None and tables is self._source.tables else None

    def is_known(self, name: str, partition: int) -> bool:
        """Whether the topics that were read last have this partition; this reads nothing."""
        _, topics = self._topics
        return topics is not None and 0 <= partition < topics.counts.get(name, 0)

    def partition(self, name: str, partition: int) -> ServedPartition | None:
        """Return what is known of a partition; None if there is no such partition."""
        if (kept := self.known_partition(name, partition)) is not None:
            return kept
        if not 0 <= partition < self.topics().get(name, 0):
            return None
        known = self._known_now()
        archived = self._archived(name, partition)
        if archived is None:
            return ServedPartition(is_archived=False, ends=_EMPTY)
        # A segment with holes is there in several parts.
        sizes = {each.segment.segment_id: each.size_bytes or 0 for each in archived.segments}
        found = ServedPartition(
            is_archived=True,
            ends=archived.ends,
            lineage=archived.lineage,
            log_end_offset=archived.log_end_offset,
            size_bytes=sum(sizes.values()),
        )
        if known.tables is self._source.tables:
            if len(known.partitions) >= _MOST_KNOWN:
                known.partitions = {}
            known.partitions[name, partition] = found
        return found

    def plan(self, request: FetchRequest) -> LogSlice | FetchedRecords | FetchFailure:
        """Return what is to be read for a fetch, or its answer if there is nothing to read. The topic of the request
        is that of the archive."""
        asked, gaps = request, 0
        while True:
            planned = _twice(lambda: self._source.plan(request))  # noqa: B023 - called at once
            if not isinstance(planned, FetchFailure):
                return planned
            ends, following = planned.ends, planned.resume_offset
            if self._skips_gaps and ends is not None and request.offset == ends.end_offset:
                # What is damaged there may be served one day; until then the archive ends before it.
                return FetchedRecords(records=(), next_offset=request.offset, ends=ends, read_bytes=0)
            gaps += 1
            if not self._skips_gaps or following is None or following <= request.offset or gaps == _MOST_GAPS:
                return self._in_log(planned, asked)
            request = replace(request, offset=following)

    def at_lost_end(self, failure: FetchFailure, offset: int) -> FetchedRecords | FetchFailure:
        """Return what a fetch gets whose offset the log has lost at its end: damage, or, if gaps are passed over,
        nothing yet."""
        if self._skips_gaps and failure.ends is not None:
            return FetchedRecords(records=(), next_offset=offset, ends=failure.ends, read_bytes=0)
        return replace(failure, error=FetchErrorCode.CORRUPT_MESSAGE)

    def read(
        self, log_slice: LogSlice, looks: int | None = None, *, as_files: bool = False
    ) -> FetchedBatches | FetchedRecords | FetchFailure:
        """Read a slice that was planned; with `as_files` it may be bytes of a file. A damaged batch is passed over if
        gaps are.

        What seems to be damaged is planned again with the newest tables, because its log may have been replaced since;
        not without `looks`, which had begun when the request arrived."""
        while True:
            tables = self._source.tables
            found = _twice(lambda: self._source.read_batches(log_slice, as_files=as_files))  # noqa: B023 - called at once
            if not isinstance(found, FetchFailure):
                return found
            request, following = log_slice.request, found.resume_offset
            is_damage = found.error is FetchErrorCode.CORRUPT_MESSAGE
            if is_damage and looks is not None and self._has_newer(tables, looks):
                following, looks = request.offset, None
            elif not self._skips_gaps or following is None or following <= request.offset:
                return self._in_log(found, request)
            planned = self.plan(replace(request, offset=following))
            if not isinstance(planned, LogSlice):
                return planned
            log_slice = planned

    def archive_name(self, name: str) -> str:
        """Return the archive's name of a topic."""
        return name.removeprefix(self._prefix)

    def list_offsets(self, questions: Sequence[OffsetQuestion], looks: int) -> list[Answers]:
        """Answer each question. At batch and sidecar depth this reads the archive.

        A log that the tables name may be gone or another one, because its segment expired or was replaced since. So
        what seems to be damaged is asked again of the newest tables; `looks` had begun when the request arrived."""
        tables = self._source.tables
        found = self._from_newest(lambda: self._answer_each(questions))
        damaged = [at for at, each in enumerate(found) if each.errors[0] == LookupCode.CORRUPT_MESSAGE]
        if damaged and self._has_newer(tables, looks):
            again = self._from_newest(lambda: self._answer_each([questions[at] for at in damaged]))
            for at, each in zip(damaged, again, strict=True):
                found[at] = each
        return found

    def known_partition(self, name: str, partition: int) -> ServedPartition | None:
        """Return what is known of a partition without reading anything; None if that would have to be read."""
        known = self._known
        return known.partitions.get((name, partition)) if known.tables is self._source.tables else None

    def known_offset(self, question: OffsetQuestion) -> Found | None:
        """Return the answer to a time without reading anything; None if something would have to be read."""
        known = self._known
        if known.tables is not self._source.tables:
            return None
        return known.times.find(
            self.archive_name(question.topic),
            question.partition,
            question.timestamp_ms,
            is_committed=question.is_committed,
            leader_epoch=question.leader_epoch,
            version=question.version,
        )

    def refresh(self) -> bool:
        """Open the newest versions of the tables; return whether they are newer than those of the last call. Requests
        may have opened them since."""
        self._source.refresh()
        before, self._refreshed = self._refreshed(), weakref.ref(self._source.tables)
        return self._source.tables is not before

    @property
    def looks(self) -> int:
        """How many looks for newer tables have begun. For a request, to be read when it arrives."""
        return self._looks

    def look_again(self, before: int) -> None:
        """Open the newest tables, unless that was done by a look which began after the first `before` ones. Raise
        `ColdlogError` if they cannot be opened."""
        check_may_wait()
        with self._looking:
            check_wanted()
            if self._last_look <= before:
                self._looks += 1
                self._source.refresh()
                self._last_look = self._looks

    def _has_newer(self, tables: ArchiveTables, looks: int) -> bool:
        """Look for newer tables than these; return whether there are any. If they cannot be opened, what was found
        stands."""
        with suppress(ColdlogError):
            self.look_again(looks)
        return self._source.tables is not tables

    def _in_log(self, failure: FetchFailure, asked: FetchRequest) -> FetchFailure:
        """Return the failure with the ends of the log, and as damage if the log has the offset.

        These are the ends in the newest tables that are open: to miss a log opens them, and the log start may have
        moved."""
        archived = self._from_newest(lambda: self._source.tables.partition(asked.topic, asked.partition))
        if archived is None:
            return failure
        ends = archived.ends
        is_in_log = ends.log_start_offset <= asked.offset < ends.end_offset
        return replace(failure, ends=ends, error=FetchErrorCode.CORRUPT_MESSAGE if is_in_log else failure.error)

    def _answer_each(self, questions: Sequence[OffsetQuestion]) -> list[Answers]:
        with self._reader() as (reader, times):
            return [_answer(reader, times, self.archive_name(each.topic), each) for each in questions]

    def _incarnations(self) -> list[Incarnation]:
        return self._source.tables.incarnations()

    def _archived(self, name: str, partition: int) -> ArchivedPartition | None:
        return self._from_newest(lambda: self._source.tables.partition(self.archive_name(name), partition))

    def _from_newest(self, call: Callable[[], _Found]) -> _Found:
        """Repeat a call that failed, after a look for newer tables: the files of older ones may have been vacuumed."""
        try:
            return call()
        except RetriableError:
            check_wanted()
            self._source.refresh()
            return call()

    def _known_now(self) -> _Known:
        """Return what is known of the newest tables; begin anew if they have changed."""
        tables = self._source.tables
        known = self._known
        if known.tables is not tables:
            known = self._known = _Known(tables=tables)
        return known

    @contextmanager
    def _reader(self) -> Iterator[tuple[OffsetReader, KeptTimes]]:
        """Lend a reader of the versions that fetches are planned from, or newer ones, and what keeps its answers."""
        known = self._known_now()
        tables = known.tables
        with self._turn:
            outdated = [each for each in self._idle_readers if each[0] is not tables]
            self._idle_readers = [each for each in self._idle_readers if each[0] is tables]
            found = self._idle_readers.pop()[1] if self._idle_readers else None
        for _, each in outdated:
            each.close()
        reader = found or OffsetReader(self._uri, self._options, as_of_ms=self._source.as_of_ms)
        try:
            yield reader, known.times
        finally:
            with self._turn:
                is_kept = len(self._idle_readers) < _MOST_IDLE_READERS
                if is_kept:
                    self._idle_readers.append((tables, reader))
            if not is_kept:
                reader.close()


def _answer(reader: OffsetReader, times: KeptTimes, topic: str, question: OffsetQuestion) -> Answers:
    check_wanted()
    answers = reader.answer_one(
        topic,
        question.partition,
        question.timestamp_ms,
        is_committed=question.is_committed,
        leader_epoch=question.leader_epoch,
        version=question.version,
    )
    with suppress(ColdlogError):  # What cannot be kept is looked up again.
        reader.keep_times(times, topic, question.partition, question.timestamp_ms)
    return answers


def _twice(call: Callable[[], _Found]) -> _Found:
    """Repeat a call that failed: the source opens the newest tables for the second attempt."""
    try:
        return call()
    except RetriableError:
        check_wanted()
        return call()
