"""Read the batches of a log file from a position on, and find the end of a log that a broker still writes.

A file is read in windows of bounded size. Each window has the headers of its whole batches; a batch is read at most
once. The end of a log that a broker still writes may be incomplete: zeros (preallocated), a batch that is cut by the
end of the file, or a batch whose last bytes are still zeros. This is the end of the log, not damage, unless a whole
batch with a correct checksum follows: then the bytes before that batch are damaged. Kafka's recovery is similar: it
truncates a log at its first bad batch.

Damage is an `ArchiveError` with object and position, raised after the window of the batches before it. If a complete
log is shorter than listed, the error is LOG_SIZE_DIFFERS; a log that is still written ends at its current end.
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
"""Most answers are shortly after the position in an index; later windows are larger, up to `window_bytes`."""
_SEARCHED_TAIL_BYTES = 1 << 20


class RangeReader(Protocol):
    """The part of an ObjectStore that this module uses."""

    def read_range(self, name: str, position: int, length: int) -> memoryview:
        """See ObjectStore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A log file, as listed; `is_active`: a broker may be writing to it."""

    name: str
    size_bytes: int
    base_offset: int
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWindow:
    """At least one batch; `content` begins at `position` of the log."""

    content: memoryview
    position: int
    headers: BatchHeaders


def iter_log_windows(
    store: RangeReader, log: LogFile, *, from_position: int, limits: DecodeLimits, window_bytes: int
) -> Iterator[LogWindow]:
    """The batches at and after `from_position`, at which a batch must begin."""
    position, next_offset, needed, wanted = from_position, log.base_offset, 0, FIRST_WINDOW_BYTES
    while position < log.size_bytes:
        length = min(max(min(wanted, window_bytes), needed), log.size_bytes - position)
        content = store.read_range(log.name, position, length)
        if len(content) < length and not log.is_active:
            raise _shortened(log, position + len(content))
        is_last = len(content) < length or position + length == log.size_bytes
        read, damage = _read_batches(content, position, next_offset, limits, must_end=is_last and not log.is_active)
        if len(read.headers):
            yield LogWindow(content=content, position=position, headers=read.headers)
            next_offset = int(read.headers.last_offset[-1]) + 1
        tail = content[read.consumed_bytes :]
        if damage is not None or (is_last and tail.nbytes):
            _require_end(store, log, position + read.consumed_bytes, damage)
        if damage is not None or is_last:
            return
        position, needed, wanted = position + read.consumed_bytes, read.needed_bytes, wanted * 4


def find_log_end(store: RangeReader, log: LogFile, *, limits: DecodeLimits, window_bytes: int) -> int:
    """The position after the last whole batch: the log's size, or less if the log `is_active`."""
    end = 0
    for window in iter_log_windows(store, log, from_position=0, limits=limits, window_bytes=window_bytes):
        end = int(window.headers.position[-1]) + int(window.headers.size_bytes[-1])
    return end


def _read_batches(
    content: memoryview, position: int, next_offset: int, limits: DecodeLimits, *, must_end: bool
) -> tuple[WindowHeaders, ArchiveError | None]:
    """The batches before the first bad batch, and the error of that batch."""
    options = {"position": position, "next_offset": next_offset, "max_batch_bytes": limits.max_batch_bytes}
    try:
        return read_batch_headers(content, **options, is_last=must_end), None
    except ArchiveError as damage:
        before = content[: max(0, damage.position - position)]
        return read_batch_headers(before, **options, is_last=True), damage


def _require_end(store: RangeReader, log: LogFile, position: int, damage: ArchiveError | None) -> None:
    """Raise an error unless `position` is the end of a log that is still written."""
    if not log.is_active:
        if damage is None:
            damage = ArchiveError(Reason.LOG_TRUNCATED, "log ends inside a batch", position=position)
        raise damage.with_object_name(log.name) from damage
    tail = store.read_range(log.name, position, min(_SEARCHED_TAIL_BYTES, max(0, log.size_bytes - position)))
    for start in iter_whole_batches(tail):
        raise ArchiveError(
            Reason.BATCH_LENGTH_INVALID if damage is None else damage.reason,
            "a bad batch is followed by good ones" if damage is None else damage.message,
            object_name=log.name,
            position=position,
            expected=f"the log's end, or a batch that ends before byte {position + start}",
            found=f"{int.from_bytes(tail[8:12], 'big')} bytes" if damage is None else damage.found,
        )


def iter_whole_batches(tail: memoryview) -> Iterator[int]:
    """Positions in `tail`, after its first byte, at which a whole batch of magic 2 with a correct checksum begins."""
    content = np.frombuffer(tail, dtype=np.uint8)
    for start in (np.flatnonzero(content[MAGIC_POSITION:] == 2)).tolist():
        size = int.from_bytes(tail[start + 8 : start + 12], "big") + LENGTH_PREFIX_BYTES
        if start and HEADER_BYTES <= size <= len(tail) - start:
            stored = int.from_bytes(tail[start + 17 : start + CRC_START], "big")
            if batch_crc(tail, start, size) == stored:
                yield start


def _shortened(log: LogFile, size_bytes: int) -> ArchiveError:
    return ArchiveError(
        Reason.LOG_SIZE_DIFFERS,
        "log is shorter than when it was listed",
        object_name=log.name,
        position=size_bytes,
        expected=f"{log.size_bytes} bytes",
        found=f"{size_bytes} bytes",
    )
