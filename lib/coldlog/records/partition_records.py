"""Read the records of a whole partition as a consumer would get them.

The served segments are read in order, directly from the archive. With READ_COMMITTED, records of aborted transactions
are skipped, and reading stops at the partition's stable offset. After it are transactions whose end is not archived
yet, so it is unknown whether they were aborted. `stop` says where and why a reading ends. Control records are never
returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import functions as F

from coldlog.archive.layouts.layout import ArchiveLayout, ListedSegment
from coldlog.errors import ArchiveError, Reason, UsageError
from coldlog.formats.kafka.record_batch import BatchHeaders, read_batch_headers
from coldlog.formats.kafka.records import Record, iter_records
from coldlog.formats.kafka.sections import SectionReader
from coldlog.formats.limits import DecodeLimits
from coldlog.model.states import IsolationLevel
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segments import SEGMENTS, listed_segment
from coldlog.tables.definitions.txn_index import TXN_INDEX
from coldlog.tables.delta.warehouse import Warehouse


class StopReason(StrEnum):
    """Why a reading ends."""

    ARCHIVE_END = "archive_end"
    OPEN_TRANSACTION = "open_transaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The offset before which a reading ends, and the reason."""

    offset: int
    reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLog:
    """A segment's log, and the offsets, inclusive, that it serves."""

    segment: ListedSegment
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """An aborted transaction of a producer. `last_offset` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReader:
    """A partition as it was served when the reader was made. It can be read several times."""

    layout: ArchiveLayout
    limits: DecodeLimits
    window_bytes: int
    logs: Sequence[ServedLog]
    aborted: Sequence[AbortedTransaction]
    stop: Stop

    def iter_records(self) -> Iterator[Record]:
        """Yield every record up to `stop`, by offset. Raise `ArchiveError` if the archive has changed since."""
        aborted = _AbortedOffsets(self.aborted)
        for log in self.logs:
            if log.from_offset >= self.stop.offset:
                return
            for window, headers, position in self._iter_windows(log.segment):
                yield from self._read_batches(window, headers, position, log, aborted)

    def _read_batches(
        self, window: memoryview, headers: BatchHeaders, position: int, log: ServedLog, aborted: _AbortedOffsets
    ) -> Iterator[Record]:
        sections = SectionReader(limits=self.limits)
        last = min(log.to_offset, self.stop.offset - 1)
        for at in range(len(headers)):
            base, end = int(headers.base_offset[at]), int(headers.last_offset[at])
            is_wanted = end >= log.from_offset and base <= last and not headers.is_control[at]
            if not is_wanted or (headers.is_transactional[at] and aborted.hold(int(headers.producer_id[at]), base)):
                continue
            for record in iter_records(window, headers.slice(at, at + 1), position, sections):
                if log.from_offset <= record.offset <= last:
                    yield record

    def _iter_windows(self, segment: ListedSegment) -> Iterator[tuple[memoryview, BatchHeaders, int]]:
        size_bytes = self.layout.log_size_bytes(segment)
        position, needed, next_offset = 0, 0, segment.start_offset
        while position < size_bytes:
            wanted = min(max(self.window_bytes, needed), size_bytes - position)
            window = self.layout.read_log_range(segment, position, wanted)
            if len(window) < wanted:
                raise ArchiveError(Reason.LOG_TRUNCATED, "log became shorter after it was listed", position=position)
            read = read_batch_headers(
                window,
                position=position,
                next_offset=next_offset,
                is_last=position + wanted == size_bytes,
                max_batch_bytes=self.limits.max_batch_bytes,
            )
            yield window, read.headers, position
            if len(read.headers):
                next_offset = int(read.headers.last_offset[-1]) + 1
            position, needed = position + read.consumed_bytes, read.needed_bytes


class _AbortedOffsets:
    """The offsets of each producer that belong to aborted transactions."""

    def __init__(self, transactions: Sequence[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in transactions:
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)

    def hold(self, producer_id: int, offset: int) -> bool:
        transactions = self._by_producer.get(producer_id, ())
        return any(each.first_offset <= offset <= each.last_offset for each in transactions)


def open_partition(
    warehouse: Warehouse,
    layout: ArchiveLayout,
    topic: str,
    partition: int,
    isolation_level: IsolationLevel,
    *,
    limits: DecodeLimits,
    window_bytes: int,
) -> PartitionReader:
    """Open the current incarnation of a partition. Raise `UsageError` if the archive does not have the partition."""
    is_same = (F.col("topic") == topic) & (F.col("partition") == partition)
    row = warehouse.read(PARTITION_METADATA).where(is_same & F.col("is_current")).head()
    if row is None:
        raise UsageError(f"the archive has no partition {topic}-{partition}")
    segments = warehouse.read(SEGMENTS).where(is_same & (F.col("topic_id") == row["topic_id"]))
    served = segments.where(F.col("served_from_offset").isNotNull())
    logs = [
        ServedLog(
            segment=listed_segment(segment),
            from_offset=segment["served_from_offset"],
            to_offset=segment["served_to_offset"],
        )
        for segment in served.orderBy("start_offset").toArrow().to_pylist()
    ]
    is_committed = isolation_level is IsolationLevel.READ_COMMITTED
    end = -1 if row["latest_tiered_offset"] is None else row["latest_tiered_offset"]
    stable = end + 1 if row["stable_offset"] is None else row["stable_offset"]
    stops_early = is_committed and stable <= end
    return PartitionReader(
        layout=layout,
        limits=limits,
        window_bytes=window_bytes,
        logs=logs,
        aborted=_read_aborted(warehouse, topic, partition, row["topic_id"]) if is_committed else (),
        stop=Stop(
            offset=stable if stops_early else end + 1,
            reason=StopReason.OPEN_TRANSACTION if stops_early else StopReason.ARCHIVE_END,
        ),
    )


def _read_aborted(warehouse: Warehouse, topic: str, partition: int, topic_id: str) -> list[AbortedTransaction]:
    is_same = (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("topic_id") == topic_id)
    served = warehouse.read(SEGMENTS).where(is_same & F.col("served_from_offset").isNotNull())
    builds = served.select("segment_id", F.col("served_build_number").alias("build_number"))
    rows = warehouse.read(TXN_INDEX).where(is_same).join(builds, builds.columns, "left_semi").collect()
    return [
        AbortedTransaction(
            producer_id=row["producer_id"], first_offset=row["first_offset"], last_offset=row["last_offset"]
        )
        for row in rows
    ]
