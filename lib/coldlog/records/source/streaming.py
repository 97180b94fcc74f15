"""Find which records of a growing archive a stream has not read yet.

A stream's position is the next offset of each partition, and the id of its topic. Spark keeps it in the checkpoint
(`stream_positions`). Each micro-batch reads the current tables, so it includes what was uploaded and indexed since, and
new partitions from their first offset on; if that is not 0, data is lost. A stream never goes back in a topic. If the
topic was created again, data is lost, or the stream begins the new topic as a new partition. If the archive ends before
the position, because the tables were created again, data is lost. If the archive has lost the end of a log, the stream
waits there: when later records are archived, the lost ones are offsets between served segments. A run that ends with
the archive (`target`) reports them when it has read all that is there.

`maxOffsetsPerTrigger` is shared among the partitions by how many offsets each still has, as in Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coldlog.errors import UsageError
from coldlog.records.source.filters import RecordFilter
from coldlog.records.source.offset_ranges import PartitionSpan
from coldlog.records.source.options import EARLIEST, Limit, SourceOptions, Strategy, Subscription, TopicPartition
from coldlog.records.source.planning import plan_reading
from coldlog.records.source.read_tasks import ReadTask
from coldlog.records.source.spans import find_spans, require_ends
from coldlog.records.source.stream_positions import Position, StreamPosition, read_position, recreated

Offsets = Mapping[TopicPartition, int]
Spans = Mapping[TopicPartition, PartitionSpan]
_SHOWN = 5


def initial_position(options: SourceOptions) -> Position:
    """Return where a stream without a checkpoint begins."""
    spans = find_spans(options)
    return StreamPosition(
        offsets={place: span.start for place, span in spans.items()}, topic_ids=_topic_ids(spans)
    ).entries()


def latest_position(
    options: SourceOptions, start: Position, *, most_offsets: int | None = None, target: Position | None = None
) -> Position:
    """Return how far a stream at `start` may read now: at most so many offsets, and at most to `target`."""
    position = read_position(start)
    # A known partition continues at its position. A new one is read from its first offset on.
    spans = find_spans(replace(options, start=Limit(offset=EARLIEST)))
    begun = _continued(options, position, _topic_ids(spans))
    gone = sorted(begun.keys() - spans.keys())
    if gone and options.fails_on_data_loss:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in gone[:_SHOWN])
        raise UsageError(
            f"the stream has read partitions that its options or the archive no longer have: {names}. Use another "
            "checkpoint, or failOnDataLoss=false to continue without them"
        )
    ended_early = sorted(place for place, offset in begun.items() if place in spans and spans[place].until < offset)
    if ended_early and options.fails_on_data_loss:
        names = ", ".join(
            f"{topic}-{partition} ends at {spans[topic, partition].until}, the stream continues at "
            f"{begun[topic, partition]}"
            for topic, partition in ended_early[:_SHOWN]
        )
        raise UsageError(
            f"the archive ends before the stream's position, maybe because a topic was created again: {names}. Use "
            "another checkpoint, or failOnDataLoss=false to wait until the archive is longer"
        )
    # The position of a stream without a checkpoint may be after the target, which Spark asks for first.
    wanted = None if target is None else read_position(target).offsets
    read = {place: span for place, span in spans.items() if wanted is None or place in wanted}
    until = {place: span.until if wanted is None else min(span.until, wanted[place]) for place, span in read.items()}
    begun = {place: span.start for place, span in read.items()} | begun
    reached = {place: max(offset, until.get(place, 0)) for place, offset in begun.items()}
    if wanted is not None and reached == begun:
        require_ends(read)
    topic_ids = {**position.topic_ids, **_topic_ids(read)}
    return StreamPosition(
        offsets=reached if most_offsets is None else _share(begun, reached, most_offsets),
        topic_ids={place: topic_id for place, topic_id in topic_ids.items() if place in reached},
    ).entries()


def require_progress(start: Position, end: Position) -> None:
    """Raise `UsageError` if a partition goes back from `start` to `end`, or is missing there."""
    begun, until = read_position(start), read_position(end)
    again = begun.find_recreated(until.topic_ids)
    goes_on = {place: offset for place, offset in begun.offsets.items() if place not in again}
    if back := sorted(place for place, offset in goes_on.items() if until.offsets.get(place, -1) < offset):
        names = ", ".join(f"{topic}-{partition}" for topic, partition in back[:_SHOWN])
        raise UsageError(
            f"the archive ends before the stream's position in {names}, maybe because a topic was created again or "
            "deleted. Use another checkpoint; before Spark 4.2 a stream that was started again cannot wait"
        )


def plan_micro_batch(options: SourceOptions, start: Position, end: Position) -> list[ReadTask]:
    """Return the tasks between two positions."""
    position, reached = read_position(start), read_position(end)
    until, topic_ids = reached.offsets, {**position.topic_ids, **reached.topic_ids}
    begun = _continued(options, position, topic_ids)
    new = {place: offset for place, offset in until.items() if place not in begun}
    if new:
        spans = find_spans(_of_partitions(options, new, topic_ids, start=Limit(offset=EARLIEST)))
        _require_from_zero(options, spans)
        begun |= {place: span.start for place, span in spans.items()}
    moved = {place: offset for place, offset in until.items() if begun.get(place, offset) < offset}
    if not moved:
        return []
    starts = Limit(offsets={place: begun[place] for place in moved})
    grown = _of_partitions(options, moved, topic_ids, start=starts)
    return plan_reading(replace(grown, end=Limit(offsets=moved)), RecordFilter())


def _continued(
    options: SourceOptions, position: StreamPosition, topic_ids: Mapping[TopicPartition, str]
) -> dict[TopicPartition, int]:
    """Return the offsets of the position without those in topics that were created again: these are read as new ones.
    Raise `UsageError` for such topics if the options say so."""
    again = position.find_recreated(topic_ids)
    if again and options.fails_on_data_loss:
        raise recreated(again, position.topic_ids, topic_ids)
    return {place: offset for place, offset in position.offsets.items() if place not in again}


def _topic_ids(spans: Spans) -> dict[TopicPartition, str]:
    """Return the ids that are known."""
    return {place: span.topic_id for place, span in spans.items() if span.topic_id}


def _require_from_zero(options: SourceOptions, spans: Spans) -> None:
    """Raise `UsageError` if the first offsets of a new partition expired before the stream has read them."""
    late = sorted(place for place, span in spans.items() if span.start > 0)
    if late and options.fails_on_data_loss:
        names = ", ".join(
            f"{topic}-{partition} at {spans[topic, partition].start}" for topic, partition in late[:_SHOWN]
        )
        raise UsageError(
            f"partitions that are new to the stream do not begin at offset 0, so records may be missing: {names}; "
            "failOnDataLoss=false reads what there is"
        )


def _of_partitions(
    options: SourceOptions, places: Offsets, topic_ids: Mapping[TopicPartition, str], *, start: Limit
) -> SourceOptions:
    chosen = Subscription(strategy=Strategy.ASSIGN, partitions=frozenset(places), topic_ids=topic_ids)
    return replace(options, subscription=chosen, start=start)


def _share(begun: Offsets, reached: Offsets, most_offsets: int) -> Offsets:
    remaining = {place: reached[place] - begun[place] for place in reached}
    total = sum(remaining.values())
    if total <= most_offsets:
        return reached
    # Rounded up, so that every partition advances and the last offsets are reached.
    return {place: begun[place] + min(count, -(-count * most_offsets // total)) for place, count in remaining.items()}
