"""record_source: how does one attempt at a fetch go, from the tables to the records?

In two steps, so that a quota can stand between them: `plan` knows from the tables which bytes are to be read, `read`
reads them. Whatever may succeed later is a `RetriableError`: a store that does not answer, an archive that cannot be
reached, a file of a table that was vacuumed (the next attempt opens the tables anew). A log that is gone is looked for
in the newest tables, once; if they still name it, that is OFFSET_OUT_OF_RANGE.

For all threads of a process: each has a layout of its own, the tables are shared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.errors import ArchiveError, Reason, RetriableError, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.model.fetch import FetchAnswer, FetchErrorCode, FetchFailure, FetchRequest, PartitionEnds
from coldlog.records.fetch.archive_tables import ArchiveTables, list_fetch_files
from coldlog.records.fetch.slice_reader import damaged, read_slice
from coldlog.records.fetch.slices import LogSlice, plan_slice, range_text, starting_at


class RecordSource:
    """Attempts at fetches over the warehouse at `uri` and the archive that `open_layout` opens."""

    def __init__(self, uri: str, open_layout: Callable[[], ArchiveLayout], limits: DecodeLimits) -> None:
        """A place that holds no warehouse, or no archive, is a `UsageError`."""
        self._uri = uri
        self._open_layout = open_layout
        self._limits = limits
        self._per_thread = threading.local()
        self._per_thread.layout = open_layout()
        self._refreshing = threading.Lock()
        self._is_stale = False
        self._tables = ArchiveTables(list_fetch_files(uri))

    @property
    def tables(self) -> ArchiveTables:
        """The version of the tables that is answered from."""
        return self._tables

    def refresh(self) -> None:
        """Answers from the newest version from now on; what is kept stays if there is no newer one."""
        with self._refreshing:
            files = list_fetch_files(self._uri)
            if files.version != self._tables.version or self._is_stale:
                before, self._tables = self._tables, ArchiveTables(files)
                before.close()
            self._is_stale = False

    def partition_ends(self, topic: str, partition: int) -> PartitionEnds | None:
        """Where a partition begins and ends; None: the archive does not know it."""
        own = self._tables.partition(topic, partition)
        return None if own is None else own.ends

    def plan(self, request: FetchRequest) -> LogSlice | FetchAnswer:
        """What is to be read; an answer where nothing is."""
        if self._is_stale:
            self._refresh_again()
        try:
            return plan_slice(self._tables, request)
        except RetriableError:
            self._is_stale = True
            raise

    def read(self, log_slice: LogSlice) -> FetchAnswer:
        """The answer."""
        try:
            return self._read(log_slice)
        except ArchiveError:
            self._refresh_again()
        planned = self.plan(log_slice.request)
        if not isinstance(planned, LogSlice):
            return planned
        try:
            return self._read(planned)
        except ArchiveError as gone:
            return _gone(planned, gone, self._tables)

    def close(self) -> None:
        """Closes files."""
        self._tables.close()

    def _read(self, log_slice: LogSlice) -> FetchAnswer:
        """An `ArchiveError` is of a log that is gone."""
        try:
            layout: ArchiveLayout | None = getattr(self._per_thread, "layout", None)
            if layout is None:
                layout = self._per_thread.layout = self._open_layout()
            return read_slice(layout, self._limits, log_slice)
        except UsageError as unreachable:
            raise RetriableError(f"the archive cannot be read: {unreachable}") from unreachable
        except ArchiveError as wrong:
            if wrong.reason is not Reason.OBJECT_MISSING:
                return damaged(log_slice, wrong)
            raise

    def _refresh_again(self) -> None:
        """`refresh` of tables that were there before."""
        try:
            self.refresh()
        except UsageError as unreachable:
            raise RetriableError(f"the tables cannot be read: {unreachable}") from unreachable


def _gone(log_slice: LogSlice, gone: ArchiveError, tables: ArchiveTables) -> FetchFailure:
    """Of a log that the tables name and the archive has not. Of the first one, the log begins behind it."""
    served, request, ends = log_slice.served, log_slice.request, log_slice.ends
    own = tables.partition(request.topic, request.partition)
    if own is not None and own.segments and own.segments[0] == served:
        ends = starting_at(ends, served.to_offset + 1)
    return FetchFailure(
        error=FetchErrorCode.OFFSET_OUT_OF_RANGE,
        message=f"{request}: segment {served.segment.segment_id}, which had offsets {served.from_offset} to "
        f"{served.to_offset}, is gone: {gone}; {range_text(ends)}, archived offsets go on at {served.to_offset + 1}",
        ends=ends,
        resume_offset=served.to_offset + 1,
    )
