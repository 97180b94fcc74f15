"""Keep the read quota in what reads an archive outside of pools: builds, DataFrames, replays, fetchers.

`paced_opener` opens the archive of the settings so that its reads wait for `remote.log.manager.fetch.max.bytes.per.
second`. All readers of a process share one pace. With `fetch.share_quota` all processes and executors keep the quota
together. A read is never divided. Without a quota the archive is opened as always, and nothing waits.

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

from coldlog.runtime.open_layout import layout_opener
from coldlog.runtime.settings import Settings
from coldlog.tiering.rules.quota_config import NO_QUOTA

if TYPE_CHECKING:
    from coldlog.archive.layouts.layout import ArchiveLayout
    from coldlog.tiering.process_pace import ProcessPace


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPace:
    """The pace at which each process that has this reads. `shared_uri`: the warehouse in which they share it."""

    bytes_per_second: int
    shared_uri: str | None = None

    def wait_for(self, size_bytes: int) -> None:
        """Return when this process may read so many bytes."""
        _pace_of_process(self).wait_for(size_bytes)


def paced_opener(settings: Settings) -> Callable[[], ArchiveLayout]:
    """As `layout_opener`, within the read quota of the settings."""
    fetch, opener = settings.fetch, layout_opener(settings)
    if fetch.max_bytes_per_second >= NO_QUOTA:
        return opener
    shared_uri = settings.warehouse_uri if fetch.share_quota else None
    return partial(_open_paced, opener, ReadPace(bytes_per_second=fetch.max_bytes_per_second, shared_uri=shared_uri))


def _open_paced(opener: Callable[[], ArchiveLayout], pace: ReadPace) -> ArchiveLayout:
    # Imported here, as all below: most readers have no quota, and some answer faster than these are imported.
    from coldlog.archive.layouts.paced_layout import PacedLayout

    return PacedLayout(layout=opener(), pace=pace)


_paces: dict[tuple[int, ReadPace], ProcessPace] = {}
_opening = threading.Lock()


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
