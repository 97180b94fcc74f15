"""Read the metadata topic of a running cluster.

One task reads each partition, from the wanted offset to the end that it had when the read began. It reads uncommitted,
as the broker's own reader does. It joins no consumer group and commits nothing: the table of events shows where a read
stopped. The end is looked up once, so records that arrive meanwhile are read in the next run.

If the topic begins after the wanted offset (retention), a row has the offset up to which records are lost. A task that
gets no answer, or is refused, adds a last row with this reason to its partition.

Refused with `UsageError`: a topic that the cluster does not have; a partition that ends before the last offset read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from coldlog.brokers.kafka_client import Cluster, LiveRecord, OffsetSpec, describe_topics, iter_records, list_offsets
from coldlog.errors import RetriableError, UsageError
from coldlog.indexing.digests import digest_of
from coldlog.indexing.events.event_sources import NO_ANSWER, RAW_DDL, RAW_SCHEMA, REFUSED, lost_before


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets [from_offset, end_offset) of a partition; `is_cut`: earlier offsets were wanted too, but are lost."""

    partition: int
    from_offset: int
    end_offset: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEnds:
    """The id of a topic, and the earliest and the latest offset of each of its partitions."""

    topic_id: str
    earliest: Mapping[int, int]
    latest: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """The metadata topic of a running cluster."""

    cluster: Cluster
    topic: str
    _read_ends: list[TopicEnds] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def uri(self) -> str:
        return f"topic {self.topic} at {self.cluster.bootstrap_servers}"

    def digest(self) -> str:
        """A digest of the topic's id and of the ends of its partitions, as the last `read` found them."""
        ends = self._read_ends[0] if self._read_ends else self.ask_ends()
        return digest_of([ends.topic_id, sorted(ends.earliest.items()), sorted(ends.latest.items())])

    def read(self, spark: SparkSession, from_offsets: Mapping[int, int]) -> DataFrame:
        """Read with one task per partition of the topic; the ends are looked up on the driver."""
        planned = self.plan_ranges(from_offsets)
        ranges = [wanted for wanted in planned if wanted.is_cut or wanted.from_offset < wanted.end_offset]

        def read_ranges(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from _range_batches(self, ranges[index])

        return spark.range(0, len(ranges), 1, max(1, len(ranges))).mapInArrow(read_ranges, schema=RAW_DDL)

    def plan_ranges(self, from_offsets: Mapping[int, int]) -> list[OffsetRange]:
        """Find the offsets to read of each partition."""
        ends = self.ask_ends()
        self._read_ends[:] = [ends]
        for partition, offset in from_offsets.items():
            if ends.latest.get(partition, 0) <= offset:
                raise UsageError(
                    f"partition {partition} of {self.uri} ends before offset {offset}, which was read before: the "
                    "topic was created again or belongs to another cluster; correct metadata.bootstrap_servers, or use "
                    "a new warehouse"
                )
        return [
            OffsetRange(
                partition=partition,
                from_offset=max(from_offsets.get(partition, 0), earliest),
                end_offset=ends.latest[partition],
                is_cut=earliest > from_offsets.get(partition, 0),
            )
            for partition, earliest in ends.earliest.items()
        ]

    def ask_ends(self) -> TopicEnds:
        """Ask the brokers."""
        topic = describe_topics(self.cluster, [self.topic]).get(self.topic)
        if topic is None:
            raise UsageError(
                f"the brokers {self.cluster.bootstrap_servers} have no topic {self.topic}; correct metadata.topic or "
                "metadata.bootstrap_servers"
            )
        places = [(self.topic, partition) for partition in topic.partitions]
        latest = list_offsets(self.cluster, places, OffsetSpec.LATEST)
        earliest = list_offsets(self.cluster, places, OffsetSpec.EARLIEST)
        return TopicEnds(
            topic_id=topic.topic_id,
            earliest={place[1]: earliest[place] for place in places},
            latest={place[1]: latest[place] for place in places},
        )


def _range_batches(source: TopicSource, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    partition = wanted.partition
    if wanted.is_cut:
        yield pa.RecordBatch.from_pylist([lost_before(partition, wanted.from_offset)], schema=RAW_SCHEMA)
    if wanted.from_offset == wanted.end_offset:
        return
    try:
        for records in iter_records(source.cluster, source.topic, partition, wanted.from_offset, wanted.end_offset):
            yield _record_batch(partition, records)
    except (RetriableError, UsageError) as failed:
        reason = NO_ANSWER if isinstance(failed, RetriableError) else REFUSED
        row = {"metadata_partition": partition, "reason": reason, "message": str(failed)}
        yield pa.RecordBatch.from_pylist([row], schema=RAW_SCHEMA)


def _record_batch(partition: int, records: list[LiveRecord]) -> pa.RecordBatch:
    rows = [
        {
            "metadata_partition": partition,
            "metadata_offset": record.offset,
            "record_timestamp_ms": record.timestamp_ms,
            "record_key": record.key,
            "value": record.value,
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RAW_SCHEMA)
