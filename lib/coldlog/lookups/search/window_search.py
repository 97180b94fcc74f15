"""Find the first record of several batches at or after a timestamp.

Only batches that may hold it by their header are decoded. Control records and records of aborted transactions count.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coldlog.formats.kafka.record_batch import BatchHeaders
from coldlog.formats.kafka.sections import SectionReader
from coldlog.index.stairs import RunningMaximum, find_stairs
from coldlog.lookups.local.local_tier import FoundOffset


def find_first_in_window(
    content: memoryview,
    headers: BatchHeaders,
    position: int,
    *,
    timestamp_ms: int,
    from_offset: int,
    sections: SectionReader,
) -> FoundOffset | None:
    """Return the lowest such offset from `from_offset` on. `content` begins at `position`, as do the headers."""
    may_hold = (headers.max_timestamp_ms >= timestamp_ms) & (headers.last_offset >= from_offset)
    for batch in np.flatnonzero(may_hold & (headers.record_count > 0)).tolist():
        running = RunningMaximum(counted_from_offset=from_offset)
        for stair in iter_stairs(content, headers.slice(batch, batch + 1), position, sections, running):
            if stair.timestamp_ms >= timestamp_ms:
                return stair
    return None


def iter_stairs(
    content: memoryview, batch: BatchHeaders, position: int, sections: SectionReader, running: RunningMaximum
) -> Iterator[FoundOffset]:
    """Yield the records of a batch that are later than all earlier ones; advances `running`."""
    for section in sections.iter_sections(content, batch, position):
        stairs, _ = find_stairs(section, batch, running)
        for offset, timestamp_ms in zip(stairs.offset.tolist(), stairs.timestamp_ms.tolist(), strict=True):
            yield FoundOffset(offset=offset, timestamp_ms=timestamp_ms, leader_epoch=int(batch.leader_epoch[0]))
