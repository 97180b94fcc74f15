"""Draw every archive that a lookup may have to answer from.

Hypothesis strategies over the builders' model. A partition is a list of segments in offset order. It may have shuffled,
equal, negative and far-future timestamps, gaps between and inside batches, batches that compaction has emptied, every
codec, LogAppendTime, delete horizons, transactions with their markers, several leader epochs. Kafka may write
everything that is drawn: headers are correct. The tests of damage use wrong headers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, starmap
from typing import Any

from hypothesis import strategies as st

from builders.archive_writer import TopicPartition
from builders.payload_codecs import Codec
from builders.segment_builder import Batch, Headers, Record, Segment, abort_marker, commit_marker

MIN_TIMESTAMP_MS = -(1 << 63)
MAX_TIMESTAMP_MS = (1 << 63) - 1
EPOCH_MS = 1_767_607_200_000
_PRODUCER_IDS = (1, 2, 4_000_000_000)


# Hypothesis checks each new strategy. Strategies are made once, because these checks took half of the time.
@cache
def timestamps_ms() -> st.SearchStrategy[int]:
    """Mostly a few values, so that some are equal and out of order; sometimes none (-1), lower, or far in the
    future."""
    return st.one_of(
        st.integers(-3, 8),
        st.integers(EPOCH_MS, EPOCH_MS + 12),
        st.integers(EPOCH_MS, EPOCH_MS + 86_400_000),
        st.sampled_from((-1, 0, MAX_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, -1_000_000)),
    )


@cache
def records() -> st.SearchStrategy[Record]:
    """Records without explicit offsets."""
    texts = st.one_of(st.none(), st.binary(max_size=12), st.just(b"x" * 700))
    headers: st.SearchStrategy[Headers] = st.lists(
        st.tuples(st.binary(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=2
    ).map(tuple)
    return st.builds(Record, timestamp_ms=timestamps_ms(), key=texts, value=texts, headers=headers)


@cache
def _one_of(*values: object) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


@cache
def _between(first: int, last: int) -> st.SearchStrategy[int]:
    return st.integers(first, last)


@cache
def _some_records(most: int) -> st.SearchStrategy[list[Record]]:
    return st.lists(records(), min_size=1, max_size=most)


_CODECS = st.sampled_from(Codec)
_BOOLEANS = st.booleans()


@cache
def _log_append_times_ms() -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), st.none(), timestamps_ms())


@st.composite
def partitions(draw: st.DrawFn, *, max_segments: int = 4, max_batches: int = 5, max_records: int = 6) -> list[Segment]:
    """The segments of one partition; each ends where the next begins."""
    course = _Course(next_offset=draw(_one_of(0, 0, 7, 1 << 40)), max_records=max_records)
    segments: list[Segment] = []
    for _ in range(draw(_between(1, max_segments))):
        start_offset = course.next_offset
        batches = tuple(draw(_batches(course)) for _ in range(draw(_between(1, max_batches))))
        segments.append(
            Segment(
                batches=batches,
                stored_start_offset=draw(st.sampled_from((batches[0].base_offset, start_offset))),
                modified_ms=draw(_one_of(EPOCH_MS + 3, EPOCH_MS + 10_000, 5)),
                index_interval_bytes=draw(_one_of(0, 256, 4096)),
                batches_per_append=draw(_one_of(1, 1, 2, 3)),
            )
        )
    return [*starmap(_ends_before, pairwise(segments)), segments[-1]]


def archives(*, max_partitions: int = 3) -> st.SearchStrategy[Mapping[TopicPartition, Sequence[Segment]]]:
    """Several partitions of topics with names that are hard to parse."""
    names = st.sampled_from(("orders", "a-b", "a.b_c-1", "_0-0"))
    keys = st.builds(TopicPartition, topic=names, partition=st.integers(0, 11))
    return st.dictionaries(keys, partitions(), min_size=1, max_size=max_partitions)


def timestamps_to_ask(segments: Sequence[Segment]) -> st.SearchStrategy[int]:
    """Timestamps of the records and of the metadata, their neighbours, and the limits of int64."""
    known = {record.timestamp_ms for segment in segments for record in segment.placed_records}
    known |= {segment.metadata_max_timestamp_ms for segment in segments}
    near = {each + shift for each in known for shift in (-1, 0, 1)} | {MIN_TIMESTAMP_MS, -1, 0, MAX_TIMESTAMP_MS}
    return st.sampled_from(sorted(each for each in near if MIN_TIMESTAMP_MS <= each <= MAX_TIMESTAMP_MS))


def log_start_offsets(segments: Sequence[Segment]) -> st.SearchStrategy[int]:
    """The partition's start, or any offset up to one after its end."""
    first, behind = segments[0].start_offset, segments[-1].end_offset + 1
    offsets = {record.offset for segment in segments for record in segment.placed_records}
    return st.one_of(st.just(first), st.sampled_from(sorted({first, behind, *offsets})), st.integers(first, behind))


@dataclass(slots=True, kw_only=True)
class _Course:
    """The end of the partition so far."""

    next_offset: int
    max_records: int
    leader_epoch: int = 0
    producer_epochs: dict[int, int] = field(default_factory=dict)


@st.composite
def _batches(draw: st.DrawFn, course: _Course) -> Batch:
    course.next_offset += draw(_one_of(0, 0, 0, 1, 5))
    course.leader_epoch += draw(_one_of(0, 0, 0, 0, 1, 3))
    kinds = (_data_batches, _data_batches, _data_batches, _empty_batches, _markers)
    batch: Batch = draw(draw(_one_of(*kinds))(course))
    course.next_offset = batch.last_offset + 1
    return batch


@st.composite
def _data_batches(draw: st.DrawFn, course: _Course) -> Batch:
    drawn = draw(_some_records(course.max_records))
    placed, offset = [], course.next_offset
    for record in drawn:
        offset += draw(_one_of(0, 0, 0, 2))
        placed.append(replace(record, offset=offset))
        offset += 1
    producer_id = draw(_one_of(-1, *_PRODUCER_IDS))
    return Batch(
        base_offset=course.next_offset,
        records=tuple(placed),
        leader_epoch=course.leader_epoch,
        codec=draw(_CODECS),
        log_append_time_ms=draw(_log_append_times_ms()),
        is_transactional=producer_id >= 0 and draw(_BOOLEANS),
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else course.producer_epochs.setdefault(producer_id, 0),
        base_sequence=-1 if producer_id < 0 else draw(_between(0, 1 << 31)) % (1 << 31),
        last_offset_delta=offset - 1 - course.next_offset + draw(_one_of(0, 0, 0, 4)),
        delete_horizon_ms=draw(_one_of(None, None, None, EPOCH_MS, -1)),
    )


@st.composite
def _empty_batches(draw: st.DrawFn, course: _Course) -> Batch:
    """A batch whose records compaction removed; the header keeps its offsets and maximum."""
    return Batch(
        base_offset=course.next_offset,
        leader_epoch=course.leader_epoch,
        producer_id=1,
        producer_epoch=course.producer_epochs.setdefault(1, 0),
        base_sequence=0,
        last_offset_delta=draw(_between(0, 4)),
        stored_max_timestamp_ms=draw(timestamps_ms()),
    )


@st.composite
def _markers(draw: st.DrawFn, course: _Course) -> Batch:
    producer_id = draw(_one_of(*_PRODUCER_IDS))
    make_marker = draw(_one_of(commit_marker, abort_marker))
    marker: Batch = make_marker(
        offset=course.next_offset,
        timestamp_ms=draw(timestamps_ms()),
        producer_id=producer_id,
        producer_epoch=course.producer_epochs.setdefault(producer_id, 0),
        leader_epoch=course.leader_epoch,
    )
    return marker


def _ends_before(segment: Segment, following: Segment) -> Segment:
    return replace(segment, stored_end_offset=following.start_offset - 1)
