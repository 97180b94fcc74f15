"""Report the damage that readers of this process find to the next build, without making any of them wait.

A report is a row of `damage_reports`. A thread writes it, and ends when nothing is left to write. A process reports a
segment once per build of its index, and at most 100 segments an hour: if a reader has the wrong archive, every segment
looks damaged. What is wrong is logged, one line a segment, by the logger of this module, which without a handler
prints to standard error; an endpoint and the jobs write it with their console (`tell`).

A reader may have no right to write. That changes no answer: it is logged once, and tried again after ten minutes, with
the damage that is found then. At the end of the process, `wait_for_reports` waits a few seconds for what is not written
yet. A process that was forked has reports of its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress

from coldlog.errors import ColdlogError
from coldlog.lookups.damage.damaged_segments import DamagedSegment
from coldlog.runtime.console import counted

MOST_REPORTS = 100
"""Segments that are reported in an hour."""
_HOUR_S = 3600.0
_PAUSE_S = 600.0
"""So long nothing is tried after a failure."""
_MOST_KNOWN = 10_000
_END_S = 5.0
_Key = tuple[str, int, int, str, int]
_log = logging.getLogger(__name__).warning


class DamageReports:
    """The reports of one process to the warehouse at `uri`. All threads may use it. `clock` gives seconds."""

    def __init__(self, uri: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._uri = uri
        self.tell: Callable[[str], None] = _log
        self._clock = clock
        self._changed = threading.Condition()
        self._known: OrderedDict[_Key, bool] = OrderedDict()
        """The segments that were found, and whether each needs no report any more."""
        self._waiting: list[DamagedSegment] = []
        self._is_writing = self._has_failed = False
        self._hour_began, self._in_hour = clock(), 0
        self._not_before = clock()

    def add(self, damages: Iterable[DamagedSegment]) -> None:
        """Let the segments be reported that are not known yet, and return at once."""
        with self._changed:
            for damage in damages:
                if self._is_wanted(damage):
                    self._waiting.append(damage)
            if self._waiting and not self._is_writing:
                self._is_writing = True
                try:
                    threading.Thread(target=self._write_all, name="coldlog-damage", daemon=True).start()
                except RuntimeError as failed:  # the process ends, or has too many threads
                    self._is_writing = False
                    reported, self._waiting = self._waiting, []
                    self._note_failure(reported, failed)

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written or has failed; return False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_writing, seconds)

    def _is_wanted(self, damage: DamagedSegment) -> bool:
        key, now = _key(damage), self._clock()
        is_new, may_write = key not in self._known, now >= self._not_before
        if self._known.get(key) or not (is_new or may_write):
            return False
        if now >= self._hour_began + _HOUR_S:
            self._hour_began, self._in_hour = now, 0
        if self._in_hour >= MOST_REPORTS:
            return False
        self._in_hour += 1
        if is_new:
            self._say(damage.text)
        self._known[key] = may_write
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return may_write

    def _write_all(self) -> None:
        while True:
            with self._changed:
                reported, self._waiting = self._waiting, []
                if not reported:
                    self._is_writing = False
                    self._changed.notify_all()
                    return
            try:
                _write(self._uri, reported)
            except BaseException as failed:  # noqa: BLE001 - whatever it is, also a panic of delta-rs, readers go on
                self._note_failure(reported, failed)
            else:
                self._say(reported_text(len(reported)))

    def _say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads standard error any more
            self.tell(text)

    def _note_failure(self, reported: list[DamagedSegment], failed: BaseException) -> None:
        with self._changed:
            self._known.update(dict.fromkeys(map(_key, reported), False))
            self._not_before = self._clock() + _PAUSE_S
            is_first, self._has_failed = not self._has_failed, True
        if is_first:
            why = failed.text_with_notes if isinstance(failed, ColdlogError) else f"{type(failed).__name__}: {failed}"
            self._say(unreported_text(why))


def unreported_text(why: str) -> str:
    """Say that damage is not reported, and what to do."""
    return (
        f"damage is not reported to the next run of run_pipeline: {why}; answers do not depend on it; ask again where "
        "the warehouse may be written, or set warehouse.report_damage=false"
    )


_of_process: dict[tuple[int, str], DamageReports] = {}


def reports_to(uri: str) -> DamageReports:
    """Return the reports of this process to the warehouse at `uri`."""
    key = os.getpid(), uri.rstrip("/")
    found = _of_process.get(key)
    if found is None:
        found = _of_process.setdefault(key, DamageReports(uri))
    return found


def wait_for_reports(seconds: float = _END_S) -> bool:
    """Wait for the reports of this process; return False if not all are written in time."""
    until = time.monotonic() + seconds
    mine = [reports for (process, _), reports in list(_of_process.items()) if process == os.getpid()]
    return all(reports.wait(max(0.0, until - time.monotonic())) for reports in mine)


atexit.register(wait_for_reports)


def _key(damage: DamagedSegment) -> _Key:
    return damage.topic, damage.partition, damage.start_offset, damage.segment_id, damage.build_number


def reported_text(count: int) -> str:
    """Say how many segments are reported."""
    return f"{counted(count, 'damaged segment')} reported to the next run of run_pipeline (table damage_reports)"


def _write(uri: str, damages: list[DamagedSegment]) -> None:
    # Imported here, because few readers find damage.
    from coldlog.tables.damage_reports import add_damage_reports

    moment_ms = time.time_ns() // 1_000_000
    add_damage_reports(uri, [damage.row(moment_ms) for damage in damages])
