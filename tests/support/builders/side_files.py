"""Write the small files that a broker writes beside a segment.

| file | entry, big endian | an entry for |
|---|---|---|
| .index | int32 last offset - start, int32 position | the first batch after each `index_interval_bytes` |
| .timeindex | int64 timestamp, int32 offset - start | the same batches, and the end, if the maximum has increased |
| .txnindex | int16 0, int64 producer id, first offset, last offset, last stable offset | an abort marker |
| .snapshot | int16 1, uint32 crc32c of the rest, int32 count; 46 bytes each | a producer known after the segment |
| .leader_epoch_checkpoint | lines "0", count, "epoch start" | a leader epoch of the log up to the segment's end |

The time index holds the running maximum of the batch headers and the last offset of the batch that reached it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from crc32c import crc32c

from builders.segment_builder import NO_TIMESTAMP_MS, Batch, Segment, is_abort_marker


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An entry of the txn index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(slots=True, kw_only=True)
class Producer:
    """A broker's state of one producer."""

    producer_epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1


@dataclass(slots=True, kw_only=True)
class ProducerStates:
    """The producers of a partition, updated batch by batch."""

    producers: dict[int, Producer] = field(default_factory=dict)

    def add(self, batch: Batch) -> AbortedTransaction | None:
        """Apply the batch; return the transaction if an abort marker ends an open one."""
        if batch.producer_id < 0:
            return None
        producer = self.producers.setdefault(batch.producer_id, Producer(producer_epoch=batch.producer_epoch))
        if producer.producer_epoch != batch.producer_epoch:
            producer = Producer(
                producer_epoch=batch.producer_epoch,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_first_offset=producer.current_txn_first_offset,
            )
            self.producers[batch.producer_id] = producer
        producer.timestamp_ms = batch.max_timestamp_ms
        if batch.is_control:
            return self._end_transaction(batch, producer)
        _extend(batch, producer)
        return None

    def _end_transaction(self, marker: Batch, producer: Producer) -> AbortedTransaction | None:
        first_offset = producer.current_txn_first_offset
        producer.current_txn_first_offset = -1
        producer.coordinator_epoch = struct.unpack_from(">i", marker.records[0].value or b"", 2)[0]
        if first_offset < 0 or not is_abort_marker(marker):
            return None
        open_offsets = [p.current_txn_first_offset for p in self.producers.values() if p.current_txn_first_offset >= 0]
        return AbortedTransaction(
            producer_id=marker.producer_id,
            first_offset=first_offset,
            last_offset=marker.base_offset,
            last_stable_offset=min(open_offsets, default=marker.base_offset + 1),
        )


def _extend(batch: Batch, producer: Producer) -> None:
    producer.last_offset = batch.last_offset
    producer.offset_delta = batch.last_offset - batch.base_offset
    producer.last_sequence = (batch.base_sequence + producer.offset_delta) % (1 << 31)
    if batch.is_transactional and producer.current_txn_first_offset < 0:
        producer.current_txn_first_offset = batch.base_offset


def build_indexes(segment: Segment, batch_sizes: Sequence[int]) -> tuple[bytes, bytes]:
    """The `.index` and the `.timeindex` of a segment with batches of these sizes."""
    offset_entries: list[bytes] = []
    time_entries: list[tuple[int, int]] = []
    largest, largest_at, since_entry, position = NO_TIMESTAMP_MS, 0, 0, 0
    sized = zip(segment.batches, batch_sizes, strict=True)
    while appended := list(islice(sized, segment.batches_per_append)):
        for batch, _ in appended:
            if batch.max_timestamp_ms > largest:
                largest, largest_at = batch.max_timestamp_ms, batch.last_offset - segment.start_offset
        if since_entry > segment.index_interval_bytes:
            last = appended[-1][0].last_offset - segment.start_offset
            offset_entries.append(struct.pack(">ii", last, position))
            _append_if_risen(time_entries, largest, largest_at)
            since_entry = 0
        size_bytes = sum(size for _, size in appended)
        since_entry += size_bytes
        position += size_bytes
    _append_if_risen(time_entries, largest, largest_at)
    return b"".join(offset_entries), b"".join(struct.pack(">qi", *entry) for entry in time_entries)


def _append_if_risen(entries: list[tuple[int, int]], timestamp_ms: int, relative_offset: int) -> None:
    if timestamp_ms > (entries[-1][0] if entries else NO_TIMESTAMP_MS):
        entries.append((timestamp_ms, relative_offset))


def build_txn_index(aborted: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of a `.txnindex`."""
    return b"".join(
        struct.pack(">hqqqq", 0, one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset)
        for one in aborted
    )


def build_snapshot(states: ProducerStates) -> bytes:
    """The bytes of a `.snapshot`, producers by id."""
    entries = b"".join(
        struct.pack(
            ">qhiqiqiq",
            producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.last_offset,
            one.offset_delta,
            one.timestamp_ms,
            one.coordinator_epoch,
            one.current_txn_first_offset,
        )
        for producer_id, one in sorted(states.producers.items())
    )
    checked = struct.pack(">i", len(states.producers)) + entries
    return struct.pack(">hI", 1, crc32c(checked)) + checked


def extend_lineage(lineage: Sequence[tuple[int, int]], batches: Iterable[Batch]) -> list[tuple[int, int]]:
    """The (leader epoch, start offset) pairs after further batches."""
    longer = list(lineage)
    for batch in batches:
        if not longer or batch.leader_epoch > longer[-1][0]:
            longer.append((batch.leader_epoch, batch.base_offset))
    return longer


def build_leader_epoch_checkpoint(lineage: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of a `.leader_epoch_checkpoint`."""
    return "".join(["0\n", f"{len(lineage)}\n", *(f"{epoch} {start}\n" for epoch, start in lineage)]).encode()
