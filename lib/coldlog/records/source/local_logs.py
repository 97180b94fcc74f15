"""Read from a broker's log directory, for the data source, what is not archived yet.

The archive's end is the seam. Offsets below it are read from the archive alone, later ones from the directory alone;
so are the markers that abort transactions. The driver plans pieces of offsets up to the high watermark, or for readers
of committed records up to the last stable offset, that the files show. What is written later is not read.

A task reads its piece in the directory at the same path. There the partition must be of the same topic, and reach as
far as the driver's: then every marker that decides the records is there too. Otherwise it is a `RetriableError`, and so
it is if segments have left the directory meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from coldlog.errors import RetriableError, UsageError
from coldlog.formats.kafka.record_columns import RecordBounds
from coldlog.lookups.local.local_batches import LocalBatches
from coldlog.lookups.local.local_tier import LocalLogState
from coldlog.lookups.local.log_directory_tier import LogDirectoryTier
from coldlog.records.aborted_transactions import NOTHING_ABORTED, AbortedTransactions, aborted_in

_WINDOW_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPiece:
    """Offsets of one partition in the directory; `bounds` are those of their records. `reached` is the offset up to
    which the driver's directory was decided."""

    topic_id: str | None
    bounds: RecordBounds
    reached: int
    is_committed: bool
    size_bytes: int


class LocalLogs:
    """The partitions of a directory, each in the state in which it was first asked for."""

    def __init__(self, tier: LogDirectoryTier) -> None:
        self.tier = tier
        self._states: dict[tuple[str, int], LocalLogState | None] = {}

    def state(self, topic: str, partition: int) -> LocalLogState | None:
        """Return where the partition begins and ends; None if the directory does not have it."""
        place = topic, partition
        if place not in self._states:
            self._states[place] = self.tier.read_state(topic, partition)
        return self._states[place]

    def aborted_from(self, topic: str, partition: int, offset: int) -> AbortedTransactions:
        """Return the transactions that markers from the offset on aborted."""
        found = self.tier.read_batches(topic, partition, offset, 1)
        return NOTHING_ABORTED if found is None else aborted_in(found.txn_indexes).ended_from(offset)

    def plan(
        self, topic: str, partition: int, wanted: RecordBounds, task_bytes: int, *, is_committed: bool
    ) -> list[LocalPiece]:
        """Divide the offsets of the bounds into pieces of about `task_bytes`, from the first record on that may be late
        enough."""
        state, first = self.state(topic, partition), wanted.from_offset
        if wanted.from_timestamp_ms > 0:
            late = self.tier.find_offset(topic, partition, wanted.from_timestamp_ms, first)
            first = wanted.to_offset + 1 if late is None else late.offset
        if state is None or first > wanted.to_offset:
            return []
        places = self.tier.list_places(topic, partition, first)
        begins = _cut(places, first, wanted.to_offset, task_bytes)
        ends = [*(at for at, _ in begins[1:]), wanted.to_offset + 1]
        return [
            LocalPiece(
                topic_id=state.topic_id,
                bounds=replace(wanted, from_offset=begin, to_offset=end - 1),
                reached=state.high_watermark,
                is_committed=is_committed,
                size_bytes=size_bytes,
            )
            for (begin, size_bytes), end in zip(begins, ends, strict=True)
        ]


def _cut(places: list[tuple[int, int]], first: int, last: int, task_bytes: int) -> list[tuple[int, int]]:
    """Return the offsets at which pieces begin, and about how many bytes each has."""
    if not places:
        return [(first, 0)]
    offsets, positions = (np.array(column) for column in zip(*places, strict=True))
    begin = int(positions[max(0, int(np.searchsorted(offsets, first, side="right")) - 1)])
    end = int(positions[min(len(places) - 1, int(np.searchsorted(offsets, last, side="right")))])
    is_inside = (offsets > first) & (offsets <= last)
    numbers = (positions[is_inside] - begin) // task_bytes
    _, at = np.unique(numbers[numbers > 0], return_index=True)
    cuts = [first, *offsets[is_inside][numbers > 0][at].tolist()]
    bounds = [begin, *positions[is_inside][numbers > 0][at].tolist(), end]
    return [(offset, max(0, until - since)) for offset, (since, until) in zip(cuts, pairwise(bounds), strict=True)]


def iter_local_batches(tier: LogDirectoryTier, topic: str, partition: int, piece: LocalPiece) -> Iterator[LocalBatches]:
    """Yield the batches that have the offsets of a piece, in this process's directory."""
    offset = piece.bounds.from_offset
    _require(_read(tier, topic, partition, piece, piece.reached - 1, 1), tier, topic, partition, piece.reached - 1)
    while offset <= piece.bounds.to_offset:
        found = _require(_read(tier, topic, partition, piece, offset, _WINDOW_BYTES), tier, topic, partition, offset)
        yield found
        offset = int(found.headers.last_offset[-1]) + 1


def _read(
    tier: LogDirectoryTier, topic: str, partition: int, piece: LocalPiece, offset: int, max_bytes: int
) -> LocalBatches | None:
    """Return the batches; None if the directory has none, or another topic's."""
    try:
        found = tier.read_batches(topic, partition, offset, max_bytes)
    except UsageError as missing:
        raise UsageError(
            f"fetch.log_directory cannot be read on {socket.gethostname()}: {missing}. Every executor must reach the "
            "driver's directory at the same path; or leave the setting out and read the archive alone"
        ) from missing
    return None if found is None or found.topic_id != piece.topic_id else found


def _require(
    found: LocalBatches | None, tier: LogDirectoryTier, topic: str, partition: int, offset: int
) -> LocalBatches:
    if found is None:
        raise RetriableError(
            f"the log directory {tier.directory} on {socket.gethostname()} does not have offset {offset} of {topic}-"
            f"{partition}, which the driver planned to read: a segment has left it, or it is another broker's. Run the "
            "query again"
        )
    return found
