"""Test which directory names are those of a topic-partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldlog.archive.layouts.layout import PartitionDirectory
from coldlog.archive.layouts.local_tiered_storage import find_partition_directory
from coldlog.model.ids import uuid_text

TOPIC_ID = "-_AAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("orders-0", "orders", 0),
        ("orders-1-0", "orders-1", 0),
        ("a.b_c-d-2147483647", "a.b_c-d", 2147483647),
        ("-5", "", None),
        ("--5", "-", 5),
        ("...-7", "...", 7),
        ("1-2-3", "1-2", 3),
        ("orders-00", "", None),
        ("orders-01", "", None),
        ("orders-2147483648", "", None),
        ("orders-99999999999999999999", "", None),
        ("orders-٣", "", None),
        ("orders--", "", None),
        ("orders", "", None),
        (".-1", "", None),
        ("..-1", "", None),
        ("or ders-1", "", None),
        ("ördérs-1", "", None),
        ("o" * 249 + "-1", "o" * 249, 1),
        ("o" * 250 + "-1", "", None),
    ],
)
def test_directory_names_are_parsed_from_the_right(name: str, topic: str, partition: int | None) -> None:
    found = find_partition_directory(f"{name}-{TOPIC_ID}")
    if partition is None:
        assert found is None
    else:
        expected = PartitionDirectory(name=f"{name}-{TOPIC_ID}", topic=topic, topic_id=TOPIC_ID, partition=partition)
        assert found == expected


@pytest.mark.parametrize("topic_id", ["", TOPIC_ID[:-1], TOPIC_ID + "A", TOPIC_ID[:-1] + "B", TOPIC_ID[:-1] + "\n"])
def test_impossible_uuids_are_not_recognized(topic_id: str) -> None:
    assert find_partition_directory(f"orders-0-{topic_id}") is None


@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True),
    st.integers(0, 2**31 - 1),
    st.binary(min_size=16, max_size=16),
)
def test_every_directory_name_of_kafka_is_parsed(topic: str, partition: int, raw_id: bytes) -> None:
    found = find_partition_directory(f"{topic}-{partition}-{uuid_text(raw_id)}")
    if topic in (".", ".."):
        assert found is None
    else:
        assert found is not None
        assert (found.topic, found.partition, found.topic_id) == (topic, partition, uuid_text(raw_id))
