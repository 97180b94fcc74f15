"""Say where a partition begins and ends for its reader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where a partition begins and ends for its reader. `is_open`: it ends at an open transaction. `archive_end`: where
    the archive ends; `archive_stable`: up to which offset it knows what was aborted. `local_first`: the directory's
    first offset; None: only the archive is read."""

    first: int
    end: int
    is_open: bool
    archive_end: int
    archive_stable: int
    local_first: int | None = None

    @property
    def description(self) -> str:
        """Describe the range for an error message."""
        if self.end <= self.first:
            return f"no offset can be read, the next one is {self.first}"
        if self.is_open:
            return f"offsets {self.first} to {self.end - 1} can be read, then a transaction is open"
        where = "the archive has" if self.local_first is None else "the archive and the log directory have"
        return f"{where} offsets {self.first} to {self.end - 1}"

    @property
    def gap(self) -> tuple[int, int] | None:
        """Return the offsets between the archive's end and the directory's first: they were archived since the index
        was built, or are lost."""
        if self.local_first is None or self.local_first <= self.archive_end:
            return None
        return self.archive_end, self.local_first

    def local_range(self, start: int, until: int) -> tuple[int, int] | None:
        """Return the first offset to read from the directory, and the one after the last; None if there are none."""
        if self.local_first is None:
            return None
        first, end = max(start, self.archive_end, self.local_first), min(until, self.end)
        return (first, end) if first < end else None
