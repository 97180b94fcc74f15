"""Make one attempt at a fetch, from the tables to the records.

An attempt has two steps, so that a quota can be applied between them: `plan` finds from the tables which bytes to read,
`read` reads them. Both raise `RetriableError` for failures that a later attempt may not have: a store that does not
answer, an archive that cannot be reached, a table file that was vacuumed (the next attempt opens the tables again). If
a log is missing, it is looked up in the newest tables, once. If they still name it, the answer is OFFSET_OUT_OF_RANGE.

Threads of a process share the tables; each thread has its own layout. A thread that must not wait gets what is in
memory, or `WouldWaitError` (`without_waiting`). A source that is closed, or was opened before this process was forked,
is refused with `UsageError`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.stores.without_waiting import check_may_wait
from coldlog.errors import ArchiveError, Reason, RetriableError, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.damage.damaged_segments import DamagedSegment, damage_of
from coldlog.lookups.local.local_tier import FoundOffset
from coldlog.lookups.transactions import SegmentQuestions
from coldlog.model.arguments import check_partition
from coldlog.model.fetch import FetchAnswer, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.records.fetch.archive_tables import ArchiveTables, list_fetch_files
from coldlog.records.fetch.interval_slices import PassedSlice
from coldlog.records.fetch.local_tail import LocalTail, StaleArchive
from coldlog.records.fetch.slice_reader import DamagedSlice, FetchedBatches, damaged, read_batches, read_slice
from coldlog.records.fetch.slices import LogSlice, plan_slice, range_text, starting_at
from coldlog.records.fetch.stored_slices import CheckedRanges
from coldlog.runtime.opened_here import OpenedHere

_Found = TypeVar("_Found")
_Read = Callable[[ArchiveLayout, DecodeLimits, LogSlice], _Found | PassedSlice | DamagedSlice]
_Report = Callable[[Sequence[DamagedSegment]], None]


class RecordSource:
    """Makes attempts at fetches from the warehouse at `uri`, as of now or of `as_of_ms`, and the archive that
    `open_layout` opens."""

    def __init__(
        self,
        uri: str,
        open_layout: Callable[[], ArchiveLayout],
        limits: DecodeLimits,
        *,
        as_of_ms: int | None = None,
        local: LocalTail | None = None,
        report: _Report | None = None,
    ) -> None:
        """Raise `UsageError` if there is no warehouse or no archive. `local` answers from the archive's end on.
        `report` is called with damage that is found; it must return at once."""
        self._uri = uri
        self.as_of_ms = as_of_ms
        self._open_layout = open_layout
        self._limits = limits
        self._local = local
        self._report = report
        self._checked = CheckedRanges()
        self._per_thread = threading.local()
        self._per_thread.layout = open_layout()
        self._refreshing = threading.Lock()
        self._is_stale = False
        self._tables = ArchiveTables(list_fetch_files(uri, as_of_ms))
        self._segments = SegmentQuestions(uri, as_of_ms)
        self._opened = OpenedHere(f"the fetcher of {uri}")

    @property
    def tables(self) -> ArchiveTables:
        """Return the version of the tables that answers."""
        return self._tables

    @property
    def rows_read(self) -> int:
        """Return how many table rows were read from storage; rows kept in memory do not count."""
        return self._tables.rows_read + self._segments.rows_read

    @property
    def segments(self) -> SegmentQuestions:
        """Return what answers about segments and aborted transactions."""
        self._opened.check()
        return self._segments

    def refresh(self) -> None:
        """Answer from the newest version, or that of `as_of_ms`, from now on. If it is the same, what is kept in memory
        stays."""
        self._opened.check()
        check_may_wait()
        with self._refreshing:
            files = list_fetch_files(self._uri, self.as_of_ms)
            if files.states != self._tables.states or self._is_stale:
                before, self._tables = self._tables, ArchiveTables(files)
                before.close()
            self._is_stale = False
            self._segments.refresh()

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        """Return where a partition begins and ends; None if the archive does not know it."""
        self._opened.check()
        check_partition(topic, partition)
        archived = self._tables.partition(topic, partition)
        if self._local is not None:
            return self._local.ends(topic, partition, archived)
        return None if archived is None else archived.ends

    def find_later_offset(self, topic: str, partition: int, timestamp_ms: int) -> FoundOffset | None:
        """Return the first record at or after a time that is not archived yet; None if there is none."""
        self._opened.check()
        if self._local is None:
            return None
        return self._local.find_offset(topic, partition, timestamp_ms, self._tables.partition(topic, partition))

    def plan(self, request: FetchRequest) -> LogSlice | FetchAnswer:
        """Return what is to be read, or the answer if there is nothing to read."""
        self._opened.check()
        if self._is_stale:
            self._refresh_again()
        found = self._plan(request)
        if isinstance(found, StaleArchive):
            self._refresh_again()
            found = self._plan(request)
        return found.failure if isinstance(found, StaleArchive) else found

    def _plan(self, request: FetchRequest) -> LogSlice | FetchAnswer | StaleArchive:
        try:
            archived = self._tables.partition(request.topic, request.partition)
            planned = plan_slice(self._tables, request)
        except RetriableError:
            self._is_stale = True
            raise
        if self._local is None:
            return planned
        check_may_wait()
        return self._local.go_on(request, archived, planned)

    def read(self, log_slice: LogSlice) -> FetchAnswer:
        """Read the slice and return the answer."""
        return self._read_where_it_is(log_slice, read_slice)

    def read_batches(self, log_slice: LogSlice, *, as_files: bool = False) -> FetchedBatches | FetchAnswer:
        """Read the slice and return its batches as the log has them, with `as_files` as bytes of a file if they can be
        sent from it."""
        checked = self._checked if as_files else None
        return self._read_where_it_is(log_slice, partial(read_batches, checked=checked))

    def _read_where_it_is(self, log_slice: LogSlice, read: _Read[_Found]) -> _Found | FetchAnswer:
        while True:
            found = self._read_here(log_slice, read)
            if not isinstance(found, PassedSlice):
                return found
            passed = found.log_slice
            planned = self.plan(replace(passed.request, offset=passed.next_offset))
            if not isinstance(planned, LogSlice):
                return planned
            log_slice = planned

    def _read_here(self, log_slice: LogSlice, read: _Read[_Found]) -> _Found | FetchAnswer | PassedSlice:
        self._opened.check()
        try:
            return self._read(log_slice, read)
        except ArchiveError:
            self._refresh_again()
        planned = self.plan(log_slice.request)
        if not isinstance(planned, LogSlice):
            return planned
        try:
            return self._read(planned, read)
        except ArchiveError as gone:
            return _gone(planned, gone, self._tables)

    def close(self) -> None:
        """Close the files of the tables; the source cannot be used after that."""
        if not self._opened.is_forked:
            self._opened.close()
            self._tables.close()
            self._segments.close()
            if self._local is not None:
                self._local.close()

    def _read(self, log_slice: LogSlice, read: _Read[_Found]) -> _Found | FetchFailure | PassedSlice:
        """Read a slice. Raise `ArchiveError` only if its log is missing."""
        try:
            layout: ArchiveLayout | None = getattr(self._per_thread, "layout", None)
            if layout is None:
                layout = self._per_thread.layout = self._open_layout()
            found = read(layout, self._limits, log_slice)
        except UsageError as unreachable:
            raise RetriableError(f"the archive cannot be read: {unreachable}") from unreachable
        except ArchiveError as wrong:
            if wrong.reason is Reason.OBJECT_MISSING:
                raise
            found = DamagedSlice(log_slice=log_slice, wrong=wrong)
        if not isinstance(found, DamagedSlice):
            return found
        served = found.log_slice.served
        damage = damage_of(served.segment, served.build_number, found.wrong)
        if damage is not None and self._report is not None:
            self._report([damage])
        return damaged(found)

    def _refresh_again(self) -> None:
        """Refresh the tables. They existed before, so a failure is retriable."""
        try:
            self.refresh()
        except UsageError as unreachable:
            raise RetriableError(f"the tables cannot be read: {unreachable}") from unreachable


def _gone(log_slice: LogSlice, gone: ArchiveError, tables: ArchiveTables) -> FetchFailure:
    """Answer for a log that the tables name but the archive does not have. If it was the partition's first log, the
    partition now starts after it."""
    served, request, ends = log_slice.served, log_slice.request, log_slice.ends
    archived = tables.partition(request.topic, request.partition)
    if archived is not None and archived.segments and archived.segments[0] == served:
        ends = starting_at(ends, served.to_offset + 1)
    return FetchFailure(
        error=FetchErrorCode.OFFSET_OUT_OF_RANGE,
        message=f"{request}: segment {served.segment.segment_id} with offsets {served.from_offset} to "
        f"{served.to_offset} is missing: {gone}; {range_text(ends)}, "
        f"the next archived offset is {served.to_offset + 1}",
        ends=ends,
        resume_offset=served.to_offset + 1,
    )
