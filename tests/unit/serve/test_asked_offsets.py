"""Test which errors ListOffsets and OffsetForLeaderEpoch give, and in which order they are looked for, as at a broker.

The rules are those of Kafka's ReplicaManager, Partition and LeaderEpochFileCache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asked_endpoint import asked, part
from coldlog.serve.context import Context
from worlds.named_topics import END, EPOCH, START, named_topics, rights_to

COUNTS = {"a": 1, "b": 2}
UNKNOWN, UNAUTHORIZED, UNSUPPORTED, INVALID, FENCED, UNKNOWN_EPOCH = 3, 29, 35, 42, 74, 75
SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
NAMES = st.sampled_from([*COUNTS, "c"])
NUMBERS = st.integers(-1, 2)
EPOCHS = st.integers(-1, EPOCH + 2)
RIGHTS = st.none() | st.frozensets(NAMES)
Question = tuple[str, int, int, int]
"""Topic, partition, timestamp or epoch, and the client's current leader epoch."""


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    with named_topics(tmp_path_factory.mktemp("topics"), COUNTS) as made:
        yield made


def _partition_error(visible: frozenset[str] | None, name: str, number: int, epoch: int) -> int:
    if visible is not None and name not in visible:
        return UNAUTHORIZED
    if not 0 <= number < COUNTS.get(name, 0):
        return UNKNOWN
    if epoch == -1:
        return 0
    return FENCED if epoch < EPOCH else UNKNOWN_EPOCH if epoch > EPOCH else 0


@given(
    visible=RIGHTS,
    questions=st.lists(st.tuples(NAMES, NUMBERS, st.integers(-8, -1), EPOCHS), max_size=6),
    version=st.integers(1, 11),
)
def test_the_first_reason_for_which_a_broker_refuses_a_question_is_answered(
    context: Context, visible: frozenset[str] | None, questions: Sequence[Question], version: int
) -> None:
    def topic(name: str, number: int, timestamp: int, epoch: int) -> object:
        fields = {"partition_index": number, "timestamp": timestamp}
        fields |= {"current_leader_epoch": epoch} if version >= 4 else {}
        partitions = (part(2, version, "ListOffsetsPartition", **fields),)
        return part(2, version, "ListOffsetsTopic", name=name, partitions=partitions)

    fields: dict[str, object] = {"isolation_level": 0} if version >= 2 else {}
    fields |= {"timeout": timedelta(0)} if version >= 10 else {}
    topics = tuple(topic(*each) for each in questions)
    answer = asked(
        context, part(2, version, "ListOffsetsRequest", replica_id=-1, topics=topics, **fields), rights_to(visible)
    )
    places = Counter((name, number) for name, number, *_ in questions)
    for (name, number, timestamp, epoch), topic_answer in zip(questions, answer.topics, strict=True):
        (found,) = topic_answer.partitions
        error = _partition_error(visible, name, number, epoch if version >= 4 else -1)
        if error != UNAUTHORIZED:
            if places[name, number] > 1:
                error = INVALID
            elif version < SINCE.get(timestamp, 99):
                error = UNSUPPORTED
        assert (topic_answer.name, found.partition_index, int(found.error_code)) == (name, number, error)
        if error:
            assert (found.offset, found.timestamp) == (-1, -1)
        elif timestamp in (-1, -2):
            assert found.offset == (END if timestamp == -1 else START)


@given(
    visible=RIGHTS,
    questions=st.lists(st.tuples(NAMES, NUMBERS, st.integers(-2, EPOCH + 2), EPOCHS), max_size=6),
    version=st.integers(2, 4),
)
def test_the_end_of_an_epoch_is_that_of_the_largest_known_one_up_to_it(
    context: Context, visible: frozenset[str] | None, questions: Sequence[Question], version: int
) -> None:
    def topic(name: str, number: int, epoch: int, current: int) -> object:
        fields = {"partition": number, "leader_epoch": epoch, "current_leader_epoch": current}
        partitions = (part(23, version, "OffsetForLeaderPartition", **fields),)
        return part(23, version, "OffsetForLeaderTopic", topic=name, partitions=partitions)

    fields = {"replica_id": -2} if version >= 3 else {}
    topics = tuple(topic(*each) for each in questions)
    answer = asked(
        context, part(23, version, "OffsetForLeaderEpochRequest", topics=topics, **fields), rights_to(visible)
    )
    for (name, number, epoch, current), topic_answer in zip(questions, answer.topics, strict=True):
        (found,) = topic_answer.partitions
        error = _partition_error(visible, name, number, current)
        expected = (-1, -1)
        if not error and epoch == EPOCH:
            expected = EPOCH, END
        elif not error and 0 <= epoch < EPOCH:  # No entry at or before it: where the first known one begins.
            expected = epoch, 0
        assert (topic_answer.topic, int(found.error_code)) == (name, error)
        assert (found.leader_epoch, found.end_offset) == expected
