"""Draw every event that the metadata topic may contain.

Hypothesis strategies over coldlog's classes: every kind and state, names in every script, ids that begin with `-` or
`_`, numbers at the limits of their types, custom metadata that is null, empty or present. `untagged` draws events that
Kafka 4.2 can write; `events` may have additions of a later Kafka. `EVENTS` has one of each kind, for tests that count
bytes.
"""

from __future__ import annotations

from hypothesis import strategies as st

from coldlog.formats.kafka.remote_log.flexible_encoding import TaggedFields
from coldlog.formats.kafka.remote_log.remote_log_events import (
    NO_UNKNOWN_TAGS,
    Event,
    PartitionDeleteEvent,
    SegmentMetadataEvent,
    SegmentSnapshotEvent,
    SegmentUpdateEvent,
    UnknownTags,
)
from coldlog.model.ids import RemoteLogSegmentId, TopicIdPartition, uuid_text
from coldlog.model.states import RemoteLogSegmentState, RemotePartitionDeleteState

PARTITION = TopicIdPartition(topic="orders", topic_id=uuid_text(b"\xfb" * 16), partition=3)
SEGMENT_ID = RemoteLogSegmentId(topic_id_partition=PARTITION, segment_id=uuid_text(bytes(range(16))))
SEGMENT = SegmentMetadataEvent(
    remote_log_segment_id=SEGMENT_ID,
    start_offset=100,
    end_offset=199,
    broker_id=1,
    max_timestamp_ms=1_700_000_000_000,
    event_timestamp_ms=1_700_000_001_000,
    segment_leader_epochs=((4, 90), (5, 150)),
    size_bytes=4096,
    custom_metadata=b"abc",
    state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    txn_index_empty=True,
)
UPDATE = SegmentUpdateEvent(
    remote_log_segment_id=SEGMENT_ID,
    broker_id=1,
    event_timestamp_ms=1_700_000_002_000,
    custom_metadata=None,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)
DELETE = PartitionDeleteEvent(
    topic_id_partition=PARTITION,
    broker_id=1,
    event_timestamp_ms=1_700_000_003_000,
    state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
)
SNAPSHOT = SegmentSnapshotEvent(
    segment_id=SEGMENT_ID.segment_id,
    start_offset=100,
    end_offset=199,
    broker_id=1,
    max_timestamp_ms=-1,
    event_timestamp_ms=1_700_000_004_000,
    segment_leader_epochs=((4, 90),),
    size_bytes=4096,
    custom_metadata=b"",
    state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    txn_index_empty=None,
    unknown_tags=UnknownTags(event=((1, b"new"), (300, b"")), segment_leader_epochs=(((0, b"e"),),)),
)
EVENTS: tuple[Event, ...] = (SEGMENT, UPDATE, DELETE, SNAPSHOT)

_INT32 = st.one_of(st.integers(-2, 200), st.integers(-(1 << 31), (1 << 31) - 1))
_INT64 = st.one_of(st.integers(-2, 200), st.integers(-(1 << 63), (1 << 63) - 1))
_TOPICS = st.one_of(
    st.text("abcXYZ019._-", min_size=1, max_size=20),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(("größe", "主题", "🪵-log", "x" * 127, "x" * 249, "日" * 5000, "y" * 32767)),
)
_UUIDS = st.one_of(
    st.binary(min_size=16, max_size=16),
    st.sampled_from((bytes(16), b"\xff" * 16, b"\xfb\xef\xbe" * 5 + b"\xff", b"\x80" + bytes(7) + b"\x80" + bytes(7))),
).map(uuid_text)
_CUSTOM_METADATA = st.one_of(st.none(), st.just(b""), st.binary(max_size=12), st.just(b"\x80" * 200))
_SEGMENT_STATES = st.sampled_from(RemoteLogSegmentState)
_PARTITIONS = st.builds(TopicIdPartition, topic=_TOPICS, topic_id=_UUIDS, partition=_INT32)
_SEGMENT_IDS = st.builds(RemoteLogSegmentId, topic_id_partition=_PARTITIONS, segment_id=_UUIDS)
_EPOCH_COUNTS = st.sampled_from((1, 1, 1, 2, 3, 8, 127, 128, 300))


def untagged(*, txn_index_empty: st.SearchStrategy[bool | None] | None = None) -> st.SearchStrategy[Event]:
    """Events without unknown tagged fields; epochs ascend as in Kafka's map."""
    return _events(txn_index_empty or st.sampled_from((None, False, True)), st.just(NO_UNKNOWN_TAGS))


def events() -> st.SearchStrategy[Event]:
    """Events that also a later Kafka may write: with tagged fields at the end of any struct."""
    return _events(st.sampled_from((None, False, True)), _unknown_tags())


def _events(
    txn_index_empty: st.SearchStrategy[bool | None], tags: st.SearchStrategy[UnknownTags]
) -> st.SearchStrategy[Event]:
    return st.one_of(
        _segments(txn_index_empty, tags), _updates(tags), _deletes(tags), _snapshots(txn_index_empty, tags)
    )


@st.composite
def _segments(
    draw: st.DrawFn, txn_index_empty: st.SearchStrategy[bool | None], unknown: st.SearchStrategy[UnknownTags]
) -> SegmentMetadataEvent:
    start_offset, end_offset = sorted(draw(st.tuples(_offsets(), _offsets())))
    epochs, tags = _draw_epochs(draw), draw(unknown)
    return SegmentMetadataEvent(
        remote_log_segment_id=draw(_SEGMENT_IDS),
        start_offset=start_offset,
        end_offset=end_offset,
        broker_id=draw(_INT32),
        max_timestamp_ms=draw(_INT64),
        event_timestamp_ms=draw(_INT64),
        segment_leader_epochs=epochs,
        size_bytes=draw(_INT32),
        custom_metadata=draw(_CUSTOM_METADATA),
        state=draw(_SEGMENT_STATES),
        txn_index_empty=draw(txn_index_empty),
        unknown_tags=UnknownTags(
            event=_above_zero(tags.event),
            remote_log_segment_id=tags.remote_log_segment_id,
            topic_id_partition=tags.topic_id_partition,
            segment_leader_epochs=_for_each(epochs, tags),
        ),
    )


@st.composite
def _snapshots(
    draw: st.DrawFn, txn_index_empty: st.SearchStrategy[bool | None], unknown: st.SearchStrategy[UnknownTags]
) -> SegmentSnapshotEvent:
    epochs, tags = _draw_epochs(draw), draw(unknown)
    return SegmentSnapshotEvent(
        segment_id=draw(_UUIDS),
        start_offset=draw(_INT64),
        end_offset=draw(_INT64),
        broker_id=draw(_INT32),
        max_timestamp_ms=draw(_INT64),
        event_timestamp_ms=draw(_INT64),
        segment_leader_epochs=epochs,
        size_bytes=draw(_INT32),
        custom_metadata=draw(_CUSTOM_METADATA),
        state=draw(_SEGMENT_STATES),
        txn_index_empty=draw(txn_index_empty),
        unknown_tags=UnknownTags(event=_above_zero(tags.event), segment_leader_epochs=_for_each(epochs, tags)),
    )


def _updates(unknown: st.SearchStrategy[UnknownTags]) -> st.SearchStrategy[SegmentUpdateEvent]:
    return st.builds(
        SegmentUpdateEvent,
        remote_log_segment_id=_SEGMENT_IDS,
        broker_id=_INT32,
        event_timestamp_ms=_INT64,
        custom_metadata=_CUSTOM_METADATA,
        state=_SEGMENT_STATES,
        unknown_tags=unknown.map(
            lambda tags: UnknownTags(
                event=tags.event,
                remote_log_segment_id=tags.remote_log_segment_id,
                topic_id_partition=tags.topic_id_partition,
            )
        ),
    )


def _deletes(unknown: st.SearchStrategy[UnknownTags]) -> st.SearchStrategy[PartitionDeleteEvent]:
    return st.builds(
        PartitionDeleteEvent,
        topic_id_partition=_PARTITIONS,
        broker_id=_INT32,
        event_timestamp_ms=_INT64,
        state=st.sampled_from(RemotePartitionDeleteState),
        unknown_tags=unknown.map(
            lambda tags: UnknownTags(event=tags.event, topic_id_partition=tags.topic_id_partition)
        ),
    )


def _offsets() -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, 1000), st.integers(0, (1 << 63) - 1))


def _draw_epochs(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    count, epoch, offset = draw(_EPOCH_COUNTS), draw(st.integers(0, 1 << 30)), draw(st.integers(-5, 1 << 50))
    steps = draw(st.tuples(st.integers(1, 1 << 20), st.integers(-3, 1 << 40)))
    return tuple((epoch + number * steps[0], offset + number * steps[1]) for number in range(count))


def _tagged_fields() -> st.SearchStrategy[TaggedFields]:
    # Kafka cannot write the largest int32 as a tag: it uses it for "no more tags".
    tags = st.one_of(st.integers(0, 3), st.integers(0, (1 << 31) - 2))
    contents = st.one_of(st.binary(max_size=4), st.just(b"t" * 130))
    return st.dictionaries(tags, contents, max_size=3).map(lambda fields: tuple(sorted(fields.items())))


def _unknown_tags() -> st.SearchStrategy[UnknownTags]:
    struct_tags = st.one_of(st.just(()), _tagged_fields())
    return st.builds(
        UnknownTags,
        event=struct_tags,
        remote_log_segment_id=struct_tags,
        topic_id_partition=struct_tags,
        segment_leader_epochs=st.lists(struct_tags, max_size=3).map(tuple),
    )


def _above_zero(fields: TaggedFields) -> TaggedFields:
    # Tag 0 of a segment is known.
    return tuple(field for field in fields if field[0] > 0)


def _for_each(epochs: tuple[tuple[int, int], ...], tags: UnknownTags) -> tuple[TaggedFields, ...]:
    if not any(tags.segment_leader_epochs[: len(epochs)]):
        return ()
    missing = max(0, len(epochs) - len(tags.segment_leader_epochs))
    return (*tags.segment_leader_epochs, *((),) * missing)[: len(epochs)]
