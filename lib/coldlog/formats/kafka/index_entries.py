"""Read index files with fixed-size entries as columns.

Kafka's `.index`, `.timeindex` and `.txnindex` have only big-endian entries of one size, one after another, without
header, count or checksum. A file is viewed as one numpy array of entries (no copy); the formats copy single columns
from it, in native byte order.

A broker preallocates the offset and time index of its active segment and truncates them when the segment is closed. So
a mirror of a live log directory may have files that end in zero bytes. `count_used_entries` finds the entries before
them.

Refused: a size that is not a multiple of the entry size, and entries that violate the format's rules for its columns.
Nothing else protects these files, so every entry is checked; Kafka's own sanity check reads only the last one.
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
    """The name of an index file, the layout of its entries, and the reason of its errors."""

    name: str
    entry_type: np.dtype[np.void]
    reason: Reason

    def view_entries(self, buffer: memoryview) -> Entries:
        """The whole file as an array of entries, without a copy."""
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
        """Refuse the first entry with a value outside the closed range."""
        slot = find_out_of_range(column, minimum, maximum)
        if slot is not None:
            raise self._refusal(field, column, slot, f"{minimum} to {maximum}")

    def require_ascending(self, field: str, column: Int64Column, *, equal_allowed: bool = False) -> None:
        """Refuse the first entry that is not in ascending order."""
        slot = find_not_ascending(column, equal_allowed=equal_allowed)
        if slot is not None:
            bound = "at least" if equal_allowed else "more than"
            raise self._refusal(field, column, slot, f"{bound} {int(column[slot - 1])}, the previous entry")

    def _refusal(self, field: str, column: Int64Column, slot: int, expected: str) -> ArchiveError:
        return ArchiveError(
            self.reason,
            f"{self.name} has a wrong {field} in entry {slot}",
            position=slot * self.entry_type.itemsize,
            expected=expected,
            found=str(int(column[slot])),
        )


def count_used_entries(entries: Entries) -> int:
    """The number of entries without the zero entries at the end."""
    if not len(entries) or any(entries[-1].tolist()):
        return len(entries)
    is_used = np.zeros(len(entries), dtype=np.bool_)
    for field in entries.dtype.names or ():
        is_used |= entries[field] != 0
    return len(entries) - int(is_used[::-1].argmax()) if is_used.any() else 0


def read_column(entries: Entries, field: str, *, added: int = 0) -> Int64Column:
    """One field of every entry plus `added`, as a read-only native int64 column."""
    column = entries[field].astype(np.int64) + added
    column.setflags(write=False)
    return column


def find_out_of_range(column: Int64Column, minimum: int, maximum: int) -> int | None:
    """The first entry with a value outside the closed range."""
    if not len(column):
        return None
    return _find_first((column < minimum) | (column > maximum))


def find_not_ascending(column: Int64Column, *, equal_allowed: bool = False) -> int | None:
    """The first entry that is not in ascending order."""
    if len(column) < 2:
        return None
    is_wrong = column[1:] < column[:-1] if equal_allowed else column[1:] <= column[:-1]
    before = _find_first(is_wrong)
    return None if before is None else before + 1


def _find_first(is_wrong: npt.NDArray[np.bool_]) -> int | None:
    return int(is_wrong.argmax()) if is_wrong.any() else None
