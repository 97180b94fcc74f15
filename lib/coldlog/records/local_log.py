"""Open what has the records that are not archived yet, as `fetch.log_directory` names it."""

from __future__ import annotations

from coldlog.errors import UsageError
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.runtime.open_layout import decode_limits
from coldlog.runtime.settings import Settings


def open_local_log(settings: Settings) -> LogDirectoryTier | None:
    """Return the log directory of the settings; None if there is none. Raise `UsageError` beside
    `warehouse.as_of`."""
    directory = settings.fetch.log_directory
    if directory is None:
        return None
    if settings.warehouse.as_of is not None:
        raise UsageError(
            "warehouse.as_of reads the index of a past time, but fetch.log_directory is always of now: unset one of "
            "them"
        )
    return LogDirectoryTier(directory=directory, limits=decode_limits(settings))
