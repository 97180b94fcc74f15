"""Find the first record of a batch, or of an interval of a log, at or after a timestamp.

For segments that are indexed at batch depth: the tables name the one batch that has the answer. Exactly this batch is
read from the archive, with one ranged read, and decoded. At sidecar depth they name an interval (`interval_lookup`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.archive.layouts.paced_layout import PacedLayout
from coldlog.errors import RetriableError, UsageError
from coldlog.formats.limits import DecodeLimits
from coldlog.index.changed_logs import replaced_batch, require_leader_epoch, shorter_log
from coldlog.index.leader_epoch_lineage import EpochStart
from coldlog.lookups.local.local_tier import FoundOffset
from coldlog.lookups.search.interval_lookup import IntervalSearch
from coldlog.lookups.served_index import FoundBatch, FoundInterval
from coldlog.tables.definitions.segments import leader_epochs, listed_segment, required_integer

if TYPE_CHECKING:
    from coldlog.formats.kafka.record_batch import Int64Column

_BATCH = bytes.fromhex(
    "000000000000000000000038000000000227190a0400000000000000000000000000000000000000000000"
    "ffffffffffffffffffffffffffff000000010c000000010000"
)
"""One record without key and value, at offset and time 0."""


@dataclass(frozen=True, slots=True)
class BatchStairs:
    """The records of a batch whose timestamp is higher than that of every earlier record of the batch."""

    timestamps_ms: Int64Column
    offsets: Int64Column
    leader_epoch: int

    def first_at_or_after(self, timestamp_ms: int) -> FoundOffset | None:
        """Return the first record at or after the timestamp."""
        at = int(np.searchsorted(self.timestamps_ms, timestamp_ms))
        if at == len(self.timestamps_ms):
            return None
        return FoundOffset(
            offset=int(self.offsets[at]), timestamp_ms=int(self.timestamps_ms[at]), leader_epoch=self.leader_epoch
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReader:
    """Reads batches of one archive. Can be pickled. `open_layout` is called only when a batch has to be read."""

    open_layout: Callable[[], ArchiveLayout]
    limits: DecodeLimits

    def until(self, deadline: float | None) -> BatchReader:
        """The same reader, whose reads do not wait for the read quota beyond the deadline, in seconds of time.time(),
        but raise `AnsweredTooLateError`."""
        return self if deadline is None else replace(self, open_layout=partial(_open_until, self.open_layout, deadline))

    def read_stairs(self, segment: Mapping[str, object], batch: FoundBatch) -> BatchStairs:
        """Read the stairs of a batch, from the offset on at which its segment is served. `segment` is a row of
        `segments`.

        Raise `ArchiveError` for damage and for another batch than the indexed one, `RetriableError` if the archive does
        not answer.
        """
        window = self._opened().read_log_range(listed_segment(segment), batch.position, batch.size_bytes)
        return _find_stairs(window, batch, self.limits, leader_epochs(segment))

    def search_interval(
        self, segment: Mapping[str, object], interval: FoundInterval, timestamps_ms: Sequence[int]
    ) -> Iterator[FoundOffset]:
        """Yield the first record of each timestamp, which ascend, in an interval and the rest of its log; the last
        timestamps may have none. `segment` is a row of `segments`.

        Raise `ArchiveError` for damage and for other batches than the indexed ones, `RetriableError` if the archive
        does not answer.
        """
        return IntervalSearch(
            layout=self._opened(),
            segment=listed_segment(segment),
            log_bytes=required_integer(segment["size_bytes"]),
            limits=self.limits,
            leader_epochs=leader_epochs(segment),
            interval=interval,
            timestamps_ms=timestamps_ms,
        ).run()

    def _opened(self) -> ArchiveLayout:
        try:
            return self.open_layout()
        except UsageError as unusable:
            raise RetriableError(f"the archive cannot be opened: {unusable}") from unusable


def load_decoder() -> None:
    """Load what reading an archive takes, before processes are forked: each of them would need a second for it."""
    import coldlog.archive.open_archive  # noqa: F401 - loads the layouts

    batch = FoundBatch(position=0, size_bytes=len(_BATCH), base_offset=0, counted_from_offset=0)
    _find_stairs(memoryview(_BATCH), batch, DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20))


def _find_stairs(
    window: memoryview, batch: FoundBatch, limits: DecodeLimits, epochs: Sequence[EpochStart] = ()
) -> BatchStairs:
    # Imported here, because compiled functions take longer to import than most answers.
    from coldlog.formats.kafka.record_batch import read_batch_headers
    from coldlog.formats.kafka.sections import SectionReader
    from coldlog.index.stairs import RunningMaximum, find_stairs

    read = read_batch_headers(
        window, position=batch.position, next_offset=0, is_last=True, max_batch_bytes=limits.max_batch_bytes
    )
    _require_indexed(batch, len(window), [int(each) for each in read.headers.base_offset])
    leader_epoch = int(read.headers.leader_epoch[0])
    require_leader_epoch(epochs, batch.position, batch.base_offset, leader_epoch)
    running = RunningMaximum(counted_from_offset=batch.counted_from_offset)
    for sections in SectionReader(limits=limits).iter_sections(window, read.headers, batch.position):
        stairs, _ = find_stairs(sections, read.headers, running)
        return BatchStairs(stairs.timestamp_ms, stairs.offset, leader_epoch)
    return BatchStairs(np.empty(0, np.int64), np.empty(0, np.int64), -1)


def _open_until(open_layout: Callable[[], ArchiveLayout], deadline: float) -> ArchiveLayout:
    layout = open_layout()
    return layout.until(deadline) if isinstance(layout, PacedLayout) else layout


def _require_indexed(batch: FoundBatch, found_bytes: int, base_offsets: list[int]) -> None:
    """Raise if the log was cut or replaced since: then the batch says nothing about the answer."""
    if found_bytes < batch.size_bytes:
        raise shorter_log(
            batch.position + found_bytes,
            f"{batch.size_bytes} bytes from byte {batch.position} on",
            f"{found_bytes} bytes",
        )
    if base_offsets != [batch.base_offset]:
        raise replaced_batch(
            batch.position,
            f"a batch with base offset {batch.base_offset}",
            f"base offsets {', '.join(map(str, base_offsets))}",
        )
