"""index_entries: how is an index file of fixed-size entries read as columns?

Kafka's `.index`, `.timeindex` and `.txnindex` are nothing but big-endian entries of one size, one after another, with
no header, count or checksum. A file is viewed as one numpy array of entries (no copy); the formats copy single columns
out of it, in native byte order.

A broker preallocates the offset and time index of its active segment and cuts them when the segment closes, so a mirror
of a live log directory may hold files whose tail is zero bytes. `count_used_entries` finds where that tail begins.

Refused: a size that is no multiple of the entry size, and whatever a format declares of its columns. Nothing else
guards these files, so every entry is looked at, where Kafka's own sanity check looks at the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coldlog.errors import ArchiveError, Reason

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Int64Column = npt.NDArray[np.int64]
Entries = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFileFormat:
    """What an index file is called, how an entry is laid out, and the reason its refusals carry."""

    name: str
    entry_type: np.dtype[np.void]
    reason: Reason

    def view_entries(self, buffer: memoryview) -> Entries:
        """The whole file as an array of entries over the same memory."""
        remainder = buffer.nbytes % self.entry_type.itemsize
        if remainder:
            raise ArchiveError(
                self.reason,
                f"{self.name} ends inside an entry",
                position=buffer.nbytes - remainder,
                expected=f"a multiple of {self.entry_type.itemsize} bytes",
                found=f"{buffer.nbytes} bytes",
            )
        return np.frombuffer(buffer, dtype=self.entry_type)

    def require_range(self, field: str, column: Int64Column, minimum: int, maximum: int) -> None:
        """Refuses the first entry whose value lies outside the closed range."""
        slot = find_out_of_range(column, minimum, maximum)
        if slot is not None:
            raise self._refusal(field, column, slot, f"{minimum} to {maximum}")

    def require_ascending(self, field: str, column: Int64Column, *, equal_allowed: bool = False) -> None:
        """Refuses the first entry that does not follow its predecessor in ascending order."""
        slot = find_not_ascending(column, equal_allowed=equal_allowed)
        if slot is not None:
            bound = "at least" if equal_allowed else "above"
            raise self._refusal(field, column, slot, f"{bound} {int(column[slot - 1])}, the entry before")

    def _refusal(self, field: str, column: Int64Column, slot: int, expected: str) -> ArchiveError:
        return ArchiveError(
            self.reason,
            f"{self.name} has a wrong {field} in entry {slot}",
            position=slot * self.entry_type.itemsize,
            expected=expected,
            found=str(int(column[slot])),
        )


def count_used_entries(entries: Entries) -> int:
    """How many entries come before the trailing ones that are all zero."""
    is_used = np.zeros(len(entries), dtype=np.bool_)
    for field in entries.dtype.names or ():
        is_used |= entries[field] != 0
    return len(entries) - int(is_used[::-1].argmax()) if is_used.any() else 0


def read_column(entries: Entries, field: str, *, added: int = 0) -> Int64Column:
    """One field of every entry as native int64 plus `added`, read-only."""
    column = entries[field].astype(np.int64) + added
    column.setflags(write=False)
    return column


def find_out_of_range(column: Int64Column, minimum: int, maximum: int) -> int | None:
    """The first entry whose value lies outside the closed range."""
    return _find_first((column < minimum) | (column > maximum))


def find_not_ascending(column: Int64Column, *, equal_allowed: bool = False) -> int | None:
    """The first entry that does not follow its predecessor in ascending order."""
    is_wrong = column[1:] < column[:-1] if equal_allowed else column[1:] <= column[:-1]
    before = _find_first(is_wrong)
    return None if before is None else before + 1


def _find_first(is_wrong: npt.NDArray[np.bool_]) -> int | None:
    return int(is_wrong.argmax()) if is_wrong.any() else None
