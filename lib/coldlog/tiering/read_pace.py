"""Keep the read quota in what reads an archive outside of pools: builds, DataFrames, replays, fetchers, lookups.

`paced_opener` opens the archive of the settings so that its reads wait for `remote.log.manager.fetch.max.bytes.per.
second`. All readers of a process share one pace. `ForkedReads` does the same for a process that lets forked ones read:
they share its pace, which a process of its own keeps (`pace_keeper`). With `fetch.share_quota` all processes and
executors keep the quota together. A read is never divided. Without a quota the archive is opened as always, and nothing
waits.

A pool keeps the quota by its queue, in which no worker is blocked; it opens the archive without this.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from coldlog.errors import RetriableError
from coldlog.runtime.open_layout import layout_opener
from coldlog.runtime.settings import Settings
from coldlog.tiering.rules.quota_config import NO_QUOTA
from coldlog.tiering.rules.throttled_reads import ThrottledReads

if TYPE_CHECKING:
    from coldlog.archive.layouts.layout import ArchiveLayout
    from coldlog.archive.layouts.paced_layout import Pace
    from coldlog.tiering.pace_keeper import PaceKeeper
    from coldlog.tiering.process_pace import ProcessPace


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPace:
    """The pace at which each process that has this reads. `shared_uri`: the warehouse in which they share it."""

    bytes_per_second: int
    shared_uri: str | None = None

    def wait_for(self, size_bytes: int, until_s: float | None = None) -> None:
        """Return when this process may read so many bytes."""
        _pace_of_process(self).wait_for(size_bytes, until_s)

    def take_throttled(self) -> ThrottledReads:
        """Return the reads of this process that waited since the last call."""
        pace = _pace_of_process(self)
        taken, pace.throttled = pace.throttled, ThrottledReads()
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedPace:
    """The pace at which a process and those that are forked from it read together. Its keeper begins where this is
    unpickled, or with `ForkedReads.begin`: before the forks."""

    pace: ReadPace

    def __reduce__(self) -> tuple[Callable[[ReadPace], ForkedPace], tuple[ReadPace]]:
        return _forked_pace, (self.pace,)

    def wait_for(self, size_bytes: int, until_s: float | None = None) -> None:
        """Return when so many bytes may be read."""
        _keeper_of(self.pace).wait_for(size_bytes, until_s)


def paced_opener(settings: Settings) -> Callable[[], ArchiveLayout]:
    """As `layout_opener`, within the read quota of the settings."""
    opener, pace = layout_opener(settings), _pace_of(settings)
    return opener if pace is None else partial(_open_paced, opener, pace)


class ForkedReads:
    """The reads of a job whose work is done by processes that this one, or a task of Spark, forks."""

    def opener(self, settings: Settings) -> Callable[[], ArchiveLayout]:
        """As `paced_opener`, for all of these processes together."""
        opener, pace = layout_opener(settings), _pace_of(settings)
        return opener if pace is None else partial(_open_paced, opener, ForkedPace(pace=pace))

    def begin(self, settings: Settings) -> None:
        """Start the process that keeps the quota, if there is one, before others are forked."""
        pace = _pace_of(settings)
        if pace is not None:
            _keeper_of(pace)

    def figures(self, settings: Settings) -> dict[str, object]:
        """Return what was read within the quota since `begin`, for `job_runs`; nothing if that was not called, or
        the keeper has ended."""
        keeper = _keepers.get(pace) if (pace := _pace_of(settings)) is not None else None
        if keeper is None:
            return {}
        try:
            read_bytes, reads = keeper.figures()
        except RetriableError:  # it was killed, after the answers that it was asked for
            return {}
        return {
            "read_bytes": read_bytes,
            "throttled_reads": reads.count,
            "throttle_ms": reads.total_ms,
            "throttle_longest_ms": reads.longest_ms,
        }


def take_throttled(layout: ArchiveLayout) -> ThrottledReads:
    """Return the reads of this process, through a layout of `paced_opener`, that waited since the last call."""
    pace = getattr(layout, "pace", None)
    return pace.take_throttled() if isinstance(pace, ReadPace) else ThrottledReads()


def _pace_of(settings: Settings) -> ReadPace | None:
    fetch = settings.fetch
    if fetch.max_bytes_per_second >= NO_QUOTA:
        return None
    shared_uri = settings.warehouse_uri if fetch.share_quota else None
    return ReadPace(bytes_per_second=fetch.max_bytes_per_second, shared_uri=shared_uri)


def _open_paced(opener: Callable[[], ArchiveLayout], pace: Pace) -> ArchiveLayout:
    # Imported here, as all below: most readers have no quota, and some answer faster than these are imported.
    from coldlog.archive.layouts.paced_layout import PacedLayout

    return PacedLayout(layout=opener(), pace=pace)


def _forked_pace(pace: ReadPace) -> ForkedPace:
    _keeper_of(pace)
    return ForkedPace(pace=pace)


_paces: dict[tuple[int, ReadPace], ProcessPace] = {}
_keepers: dict[ReadPace, PaceKeeper] = {}
_opening = threading.Lock()


def _keeper_of(pace: ReadPace) -> PaceKeeper:
    """Return the keeper of this process, or of the one that it was forked from."""
    found = _keepers.get(pace)
    if found is None:
        from coldlog.tiering.pace_keeper import PaceKeeper

        found = _keepers[pace] = PaceKeeper(partial(_open_pace, pace))
    return found


def _pace_of_process(pace: ReadPace) -> ProcessPace:
    """Return this process's own; a process that is forked begins with none."""
    place = (os.getpid(), pace)
    found = _paces.get(place)
    if found is None:
        with _opening:
            found = _paces.get(place)
            if found is None:
                found = _paces[place] = _open_pace(pace)
                atexit.register(_close_in, place[0], found)
    return found


def _open_pace(pace: ReadPace) -> ProcessPace:
    from coldlog.tiering.process_pace import ProcessPace
    from coldlog.tiering.system_clock import SystemClock

    clock, shared = SystemClock(), None
    if pace.shared_uri is not None:
        from coldlog.tiering.rules.read_allowances import ReadAllowances
        from coldlog.tiering.shared_quota import READERS, SharedQuota

        quota = SharedQuota.below(pace.shared_uri, READERS, pace.bytes_per_second, clock)
        shared = ReadAllowances(pace.bytes_per_second, clock, quota)
    return ProcessPace(pace.bytes_per_second, clock, shared)


def _close_in(process_id: int, pace: ProcessPace) -> None:
    """Close the pace in the process that made it, and not in one that was forked from it."""
    if os.getpid() == process_id:
        pace.close()
