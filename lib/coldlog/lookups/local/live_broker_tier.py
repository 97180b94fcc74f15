"""Ask the brokers of a cluster for what is not archived yet.

The client is created in the thread that asks, at its first question, and kept until this thread calls `close`, or
another thread calls `close_all`. When a client is created, those of threads that have ended are closed.

- `find_offset` first takes the broker's answer, which covers its whole log including its remote tier. A broker cannot
  be told where to begin. If its answer is below `from_offset`, nothing is known about the records from `from_offset`
  on. Then these records are fetched and searched, with the rule and the code of the log directory: exact, control
  records included, and slow if the answer is far into the log.
- The broker is asked at read_uncommitted, which ends at the high watermark, so an answer may be undecided.
- Records are fetched with the isolation level of the reader. A broker names the producer and the first offset of each
  aborted transaction; the producer's next marker among the batches is its end. The leader is looked up before each
  fetch, so a topic that was created again is noticed.
- The leader epoch at an offset is found by binary search over the ends of epochs (OffsetForLeaderEpoch), with as many
  requests as the current epoch has binary digits.

Brokers before Kafka 3.6 have no tiered storage: their local log start is the log start, and they do not say what is
tiered.

Refused (`NotSupportedError`): the largest timestamp of a broker before Kafka 3.0, which has no such request.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, replace

import numpy as np

from coldlog.brokers.kafka_client import Cluster
from coldlog.brokers.offsets_client import FetchedBatches, ListedOffset, OffsetQuestion, OffsetsClient
from coldlog.errors import NotSupportedError, RetriableError
from coldlog.formats.kafka.record_batch import BatchHeaders, read_batch_headers
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.kafka.txn_index import TxnIndex
from coldlog.formats.limits import DecodeLimits
from coldlog.lookups.local.local_batches import LocalBatches
from coldlog.lookups.local.local_tier import FoundOffset, LocalLogState
from coldlog.lookups.search.window_search import find_first_in_window
from coldlog.model.list_offsets import UNKNOWN_EPOCH, SpecialTimestamp

_LIMITS = DecodeLimits(max_batch_bytes=128 << 20, max_decompressed_bytes=128 << 20)
_STARTS = (
    SpecialTimestamp.EARLIEST,
    SpecialTimestamp.EARLIEST_LOCAL,
    SpecialTimestamp.LATEST_TIERED,
    SpecialTimestamp.EARLIEST_PENDING_UPLOAD,
)
_FETCH_BYTES = 4 << 20
_EMPTY_FETCHES = 20
"""Give up after this many fetches without a record below the high watermark."""


class _Held(threading.local):
    """The client of this thread and process. A copy that is pickled to another process begins without a client."""

    client: OffsetsClient | None = None
    process_id: int = 0

    def __reduce__(self) -> tuple[type[_Held], tuple[()]]:
        return _Held, ()


class _Opened(dict[threading.Thread, tuple[int, OffsetsClient]]):
    """The clients of all threads, each with its process; a pickled copy has none."""

    def close_ended(self) -> None:
        """Close the clients of threads that have ended."""
        for thread in [each for each in list(self) if not each.is_alive()]:
            # Another thread may have taken it meanwhile.
            process_id, client = self.pop(thread, (0, None))
            if client is not None and process_id == os.getpid():
                client.close()

    def __reduce__(self) -> tuple[type[_Opened], tuple[()]]:
        return _Opened, ()


@dataclass(frozen=True, slots=True)
class LiveBrokerTier:
    """A LocalTier over the brokers of a cluster."""

    cluster: Cluster
    limits: DecodeLimits = _LIMITS
    deadline: float | None = field(default=None, compare=False)
    _held: _Held = field(default_factory=_Held, repr=False, compare=False)
    _opened: _Opened = field(default_factory=_Opened, repr=False, compare=False)

    @property
    def covers_archive(self) -> bool:
        """True: a broker also answers for its remote tier."""
        return True

    def until(self, deadline: float | None) -> LiveBrokerTier:
        """Return the same tier, over the same client, with another deadline."""
        return replace(self, deadline=deadline)

    def read_state(self, topic: str, partition: int) -> LocalLogState | None:
        """Read the state. Offsets that grow are asked for last, so that no end is before a start."""
        client = self._client()
        version = client.newest_version()
        starts = [special for special in _STARTS if special.since_version <= version]
        latest = [
            OffsetQuestion(timestamp_ms=SpecialTimestamp.LATEST, is_committed=is_committed)
            for is_committed in (True, False)
        ]
        questions = [*(OffsetQuestion(timestamp_ms=special) for special in starts), *latest]
        listed = client.list_offsets(topic, partition, questions, is_leader_asked=True)
        if listed is None:
            return None
        by_special = dict(zip(starts, listed.answers, strict=False))
        earliest = by_special[SpecialTimestamp.EARLIEST]
        tiered = by_special.get(SpecialTimestamp.LATEST_TIERED)
        pending = by_special.get(SpecialTimestamp.EARLIEST_PENDING_UPLOAD)
        return LocalLogState(
            log_start_offset=earliest.offset,
            local_log_start_offset=by_special.get(SpecialTimestamp.EARLIEST_LOCAL, earliest).offset,
            high_watermark=listed.answers[-1].offset,
            last_stable_offset=listed.answers[-2].offset,
            leader_epoch=listed.leader.leader_epoch,
            highest_tiered_offset=None if tiered is None else tiered.offset,
            earliest_pending_offset=None if pending is None else pending.offset,
            topic_id=listed.leader.topic_id,
        )

    def find_offset(
        self, topic: str, partition: int, timestamp_ms: int, from_offset: int, *, broker_compatible: bool = False
    ) -> FoundOffset | None:
        """Return the broker's answer, always by its own rule, or search the records from `from_offset` on."""
        listed = self._client().list_offsets(topic, partition, [OffsetQuestion(timestamp_ms=timestamp_ms)])
        found = None if listed is None else _found(listed.answers[0])
        if found is None or found.offset >= from_offset:
            return found
        return self._find_by_reading(topic, partition, timestamp_ms, from_offset)

    def find_max_timestamp(self, topic: str, partition: int) -> FoundOffset | None:
        """Return the largest timestamp of the broker's local segments."""
        special, client = SpecialTimestamp.MAX_TIMESTAMP, self._client()
        if client.newest_version() < special.since_version:
            raise NotSupportedError(
                f"{self.cluster.bootstrap_servers} cannot return the largest timestamp; Kafka 3.0 or later is needed"
            )
        listed = client.list_offsets(topic, partition, [OffsetQuestion(timestamp_ms=special)])
        return None if listed is None else _found(listed.answers[0])

    def leader_epoch_at(self, topic: str, partition: int, offset: int) -> int:
        """Return the lowest epoch that ends after the offset."""
        client = self._client()
        earliest = OffsetQuestion(timestamp_ms=SpecialTimestamp.EARLIEST)
        listed = client.list_offsets(topic, partition, [earliest], is_leader_asked=True)
        if listed is None or offset < listed.answers[0].offset:
            return UNKNOWN_EPOCH
        low, high = 0, listed.leader.leader_epoch
        while low < high:
            middle = (low + high) // 2
            end_offset = client.end_offset_of_epoch(topic, partition, middle)
            low, high = (low, middle) if end_offset is None or not 0 <= end_offset <= offset else (middle + 1, high)
        return high

    def read_batches(
        self, topic: str, partition: int, offset: int, max_bytes: int, *, is_committed: bool = False
    ) -> LocalBatches | None:
        """Return whole batches from the first that ends at or after `offset` on; None if the broker has none there."""
        fetched = self._client().fetch_batches(
            topic, partition, offset, max_bytes, is_committed=is_committed, is_leader_asked=True
        )
        if fetched is None or not fetched.content:
            return None
        content = memoryview(fetched.content)
        headers = read_batch_headers(
            content, position=0, next_offset=0, is_last=False, max_batch_bytes=self.limits.max_batch_bytes
        ).headers
        headers = headers.where(headers.last_offset >= offset)
        if not len(headers):
            return None
        begin, end = int(headers.position[0]), int(headers.position[-1] + headers.size_bytes[-1])
        txn_indexes = (_ended(fetched.aborted, headers),) if fetched.aborted else ()
        return LocalBatches(
            content=content[begin:end], headers=headers, txn_indexes=txn_indexes, topic_id=fetched.topic_id
        )

    def close_all(self) -> None:
        """Close the clients of all threads, which must not ask any more."""
        for process_id, client in list(self._opened.values()):
            if process_id == os.getpid():
                client.close()
        self._opened.clear()

    def close(self) -> None:
        """Close the client; the next question creates another."""
        if self._held.client is not None and self._held.process_id == os.getpid():
            self._held.client.close()
        self._held.client = None
        self._opened.pop(threading.current_thread(), None)

    def _client(self) -> OffsetsClient:
        if self._held.client is None or self._held.process_id != os.getpid():
            self._opened.close_ended()
            self._held.client, self._held.process_id = OffsetsClient(cluster=self.cluster), os.getpid()
            self._opened[threading.current_thread()] = (os.getpid(), self._held.client)
        self._held.client.deadline = self.deadline
        return self._held.client

    def _find_by_reading(self, topic: str, partition: int, timestamp_ms: int, from_offset: int) -> FoundOffset | None:
        sections = SectionReader(limits=self.limits)
        position, empty_count = from_offset, 0
        while empty_count < _EMPTY_FETCHES:
            fetched = self._client().fetch_batches(topic, partition, position, _FETCH_BYTES)
            if fetched is None or fetched.content is None:
                return None
            found, following = self._search(fetched, sections, timestamp_ms, from_offset)
            if found is not None or following >= fetched.high_watermark or position >= fetched.high_watermark:
                return found
            empty_count = 0 if following > position else empty_count + 1
            position = max(position, following)
        raise RetriableError(f"{topic}-{partition} returned no records from offset {position} on; try again")

    def _search(
        self, fetched: FetchedBatches, sections: SectionReader, timestamp_ms: int, from_offset: int
    ) -> tuple[FoundOffset | None, int]:
        """Return the answer, and the offset after the searched batches."""
        content = memoryview(fetched.content or b"")
        read = read_batch_headers(
            content, position=0, next_offset=0, is_last=False, max_batch_bytes=self.limits.max_batch_bytes
        )
        found = find_first_in_window(
            content, read.headers, 0, timestamp_ms=timestamp_ms, from_offset=from_offset, sections=sections
        )
        return found, int(read.headers.last_offset[-1]) + 1 if len(read.headers) else 0


def _ended(aborted: tuple[tuple[int, int], ...], headers: BatchHeaders) -> TxnIndex:
    """Return the transactions with the offset of their markers; of one that goes on after these batches, their last
    offset. What else an index has is unknown."""
    producers, firsts = (np.array(column, dtype=np.int64) for column in zip(*sorted(aborted), strict=True))
    lasts = np.full(len(firsts), int(headers.last_offset[-1]))
    for at, (producer_id, first) in enumerate(zip(producers.tolist(), firsts.tolist(), strict=True)):
        is_end = headers.is_control & (headers.producer_id == producer_id) & (headers.base_offset >= first)
        if is_end.any():
            lasts[at] = headers.base_offset[int(np.argmax(is_end))]
    unknown = np.full(len(firsts), -1, dtype=np.int64)
    return TxnIndex(producer_ids=producers, first_offsets=firsts, last_offsets=lasts, last_stable_offsets=unknown)


def _found(listed: ListedOffset) -> FoundOffset | None:
    if listed.offset < 0:
        return None
    return FoundOffset(offset=listed.offset, timestamp_ms=listed.timestamp_ms, leader_epoch=listed.leader_epoch)
