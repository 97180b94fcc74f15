"""Test requests and answers as arrays: which are grouped, which are refused, and what an answer without a value is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.lookups.index_rows import NOTHING
from coldlog.lookups.questions import (
    ANSWER_COLUMNS,
    Answers,
    AskedPartitions,
    PartitionQuestions,
    Questions,
    is_unsupported,
)
from coldlog.model.list_offsets import NEWEST_VERSION, ErrorCode, SpecialTimestamp

Asked = tuple[str, int, int, int]
"""Topic, partition, timestamp and version."""
ASKED = st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(-8, 9), st.integers(-1, NEWEST_VERSION + 1))


def questions(*asked: Asked) -> Questions:
    count = len(asked)
    return Questions(
        topics=pa.array([each[0] for each in asked], pa.string()),
        partitions=np.array([each[1] for each in asked], dtype=np.int64),
        timestamps_ms=np.array([each[2] for each in asked], dtype=np.int64),
        leader_epochs=np.full(count, -1),
        is_committed=np.zeros(count, dtype=np.bool_),
        versions=np.array([each[3] for each in asked], dtype=np.int64),
        is_invalid=np.zeros(count, dtype=np.bool_),
    )


@given(st.lists(ASKED, max_size=12), st.data())
def test_requests_of_each_partition_come_together_by_ascending_timestamp(
    asked: list[Asked], data: st.DataObject
) -> None:
    among = sorted(data.draw(st.sets(st.sampled_from(range(len(asked)))))) if asked else []
    partitions = AskedPartitions.of(questions(*asked), np.array(among, dtype=np.intp))
    found = [
        (partitions.topics[number], partitions.numbers[number], partitions.requests_of(number).tolist())
        for number in range(len(partitions))
    ]
    assert found == sorted(found, key=lambda each: each[:2])
    assert len({each[:2] for each in found}) == len(found)
    assert sorted(at for _, _, where in found for at in where) == among
    for topic, partition, where in found:
        assert {asked[at][:2] for at in where} == {(topic, partition)}
        times = [asked[at][2] for at in where]
        assert times == sorted(times)


FIRST_VERSIONS = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""The first version of ListOffsetsRequest with each special timestamp, from Kafka's ListOffsetsRequest.json."""


@pytest.mark.parametrize("timestamp_ms", range(-8, 3))
def test_special_timestamp_is_supported_from_its_version_on_and_others_are_not(timestamp_ms: int) -> None:
    versions = range(-1, NEWEST_VERSION + 2)
    first = 1 if timestamp_ms >= 0 else FIRST_VERSIONS.get(timestamp_ms, NEWEST_VERSION + 1)
    flags = is_unsupported(questions(*(("a", 0, timestamp_ms, version) for version in versions)))
    assert flags.tolist() == [not first <= version <= NEWEST_VERSION for version in versions]


def test_special_timestamps_of_a_partition_are_listed_once() -> None:
    asked = questions(*(("a", 0, timestamp_ms, NEWEST_VERSION) for timestamp_ms in (-3, -3, -1, 0, 7)))
    special = PartitionQuestions.at(asked, np.arange(5)).specials
    assert special == [SpecialTimestamp.MAX_TIMESTAMP, SpecialTimestamp.LATEST]


def test_fields_of_an_answer_are_independent() -> None:
    for name in ANSWER_COLUMNS:
        answers = Answers.nothing(2)
        getattr(answers, name)[1] = 77
        changed = {each: getattr(answers, each)[1] for each in ANSWER_COLUMNS if getattr(answers, each)[1] == 77}
        assert list(changed) == [name]


def test_refused_answer_has_the_error_and_no_offset() -> None:
    answers = Answers.nothing(1)
    assert answers.found(0) is None
    answers.offsets[0], answers.timestamps_ms[0], answers.leader_epochs[0], answers.routes[0] = 0, 5, 3, 2
    found = answers.found(0)
    assert found is not None
    assert (found.offset, found.timestamp_ms, found.leader_epoch) == (0, 5, 3)
    answers.refuse(np.array([0]), ErrorCode.STALE_INDEX)
    assert answers.found(0) is None
    assert [int(getattr(answers, name)[0]) for name in ANSWER_COLUMNS] == [
        10_003, -1, NOTHING, -1, 2, -1, -1, -1, -1,
    ]  # fmt: skip
