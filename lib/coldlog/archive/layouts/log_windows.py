"""log_windows: which batches does a log file hold from a position on, and where does one that is written to end?

A file is read in windows of bounded size, each with the headers of the batches that lie whole in it; a batch is read
once at most. The log that a broker writes to ends in what it has not written yet: zeros (preallocated), a batch that
the end of the file cuts, a batch of which the last bytes are still zeros. That is the end of the log and no damage,
unless a whole batch with a true checksum follows: then the bytes between are damaged. So does Kafka's own recovery,
which cuts a log at its first bad batch.

Damage is an `ArchiveError` with object and position, raised behind the window of the batches before it. A log that is
complete and is shorter than it was listed is LOG_SIZE_DIFFERS; one that is written to ends where it ends now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.crc import CRC_START, batch_crc
from coldlog.formats.kafka.record_batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_POSITION,
    BatchHeaders,
    WindowHeaders,
    read_batch_headers,
)
from coldlog.formats.limits import DecodeLimits

FIRST_WINDOW_BYTES = 64 << 10
"""Most answers lie close behind what an index names; later windows are larger, up to `window_bytes`."""
_LOOKED_THROUGH_BYTES = 1 << 20


class RangeReader(Protocol):
    """What of an ObjectStore is needed here."""

    def read_range(self, name: str, position: int, length: int) -> memoryview:
        """As an ObjectStore's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A log file as it was listed; `is_active`: a broker may be writing to it."""

    name: str
    size_bytes: int
    base_offset: int
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWindow:
    """One batch or more; `content` begins at `position` of the log."""

    content: memoryview
    position: int
    headers: BatchHeaders


def iter_log_windows(
    store: RangeReader, log: LogFile, *, from_position: int, limits: DecodeLimits, window_bytes: int
) -> Iterator[LogWindow]:
    """The batches that begin at `from_position`, where one must begin, and behind it."""
    position, next_offset, needed, wanted = from_position, log.base_offset, 0, FIRST_WINDOW_BYTES
    while position < log.size_bytes:
        length = min(max(min(wanted, window_bytes), needed), log.size_bytes - position)
        content = store.read_range(log.name, position, length)
        if len(content) < length and not log.is_active:
            raise _shortened(log, position + len(content))
        is_last = len(content) < length or position + length == log.size_bytes
        read, wrong = _read_batches(content, position, next_offset, limits, must_end=is_last and not log.is_active)
        if len(read.headers):
            yield LogWindow(content=content, position=position, headers=read.headers)
            next_offset = int(read.headers.last_offset[-1]) + 1
        tail = content[read.consumed_bytes :]
        if wrong is not None or (is_last and tail.nbytes):
            _require_end(store, log, position + read.consumed_bytes, wrong)
        if wrong is not None or is_last:
            return
        position, needed, wanted = position + read.consumed_bytes, read.needed_bytes, wanted * 4


def find_log_end(store: RangeReader, log: LogFile, *, limits: DecodeLimits, window_bytes: int) -> int:
    """Where the whole batches of a log end: its size, or less where it `is_active`."""
    end = 0
    for window in iter_log_windows(store, log, from_position=0, limits=limits, window_bytes=window_bytes):
        end = int(window.headers.position[-1]) + int(window.headers.size_bytes[-1])
    return end


def _read_batches(
    content: memoryview, position: int, next_offset: int, limits: DecodeLimits, *, must_end: bool
) -> tuple[WindowHeaders, ArchiveError | None]:
    """The batches before the first bad one, and what is wrong with that."""
    options = {"position": position, "next_offset": next_offset, "max_batch_bytes": limits.max_batch_bytes}
    try:
        return read_batch_headers(content, **options, is_last=must_end), None
    except ArchiveError as wrong:
        before = content[: max(0, wrong.position - position)]
        return read_batch_headers(before, **options, is_last=True), wrong


def _require_end(store: RangeReader, log: LogFile, position: int, wrong: ArchiveError | None) -> None:
    """What begins at `position` must be the end of a log that is written to."""
    if not log.is_active:
        if wrong is None:
            wrong = ArchiveError(Reason.LOG_TRUNCATED, "log ends inside a batch", position=position)
        raise wrong.with_object_name(log.name) from wrong
    behind = store.read_range(log.name, position, min(_LOOKED_THROUGH_BYTES, max(0, log.size_bytes - position)))
    for at in iter_whole_batches(behind):
        raise ArchiveError(
            Reason.BATCH_LENGTH_INVALID if wrong is None else wrong.reason,
            "a bad batch is followed by good ones" if wrong is None else wrong.message,
            object_name=log.name,
            position=position,
            expected=f"the log's end, or a batch that ends before byte {position + at}",
            found=f"{int.from_bytes(behind[8:12], 'big')} bytes" if wrong is None else wrong.found,
        )


def iter_whole_batches(tail: memoryview) -> Iterator[int]:
    """Where in `tail`, behind its first byte, a whole batch of magic 2 with a true checksum lies."""
    content = np.frombuffer(tail, dtype=np.uint8)
    for place in (np.flatnonzero(content[MAGIC_POSITION:] == 2)).tolist():
        size = int.from_bytes(tail[place + 8 : place + 12], "big") + LENGTH_PREFIX_BYTES
        if place and HEADER_BYTES <= size <= len(tail) - place:
            stored = int.from_bytes(tail[place + 17 : place + CRC_START], "big")
            if batch_crc(tail, place, size) == stored:
                yield place


def _shortened(log: LogFile, size_bytes: int) -> ArchiveError:
    return ArchiveError(
        Reason.LOG_SIZE_DIFFERS,
        "log is shorter than when it was listed",
        object_name=log.name,
        position=size_bytes,
        expected=f"{log.size_bytes} bytes",
        found=f"{size_bytes} bytes",
    )
