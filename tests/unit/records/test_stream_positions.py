"""Test how a checkpoint keeps the position of a stream, and that topics which were created again are noticed."""

from __future__ import annotations

from coldlog.records.source.stream_positions import Position, StreamPosition, read_position

FIRST, SECOND = "Wm3kTq9xRk2fN1bZ0yQvHg", "9-_kTq9xRk2fN1bZ0yQvHg"


def test_position_is_kafkas_with_entries_for_the_ids_of_topics() -> None:
    """Spark's Kafka source finds no partition in these entries."""
    position = StreamPosition(
        offsets={("orders", 10): 3, ("orders", 2): 0, ("a.b_c-1", 0): 7, ("orders", 0): 23},
        topic_ids={("orders", 10): SECOND, ("orders", 2): FIRST, ("orders", 0): FIRST},
    )
    entries: Position = {
        "a.b_c-1": {"0": 7},
        "orders": {"0": 23, "2": 0, "10": 3},
        f"orders/{SECOND}/10": {},
        f"orders/{FIRST}/0,2": {},
    }
    assert list(position.entries().items()) == list(entries.items())
    assert read_position(entries) == position


def test_checkpoint_of_kafkas_source_has_no_topic_ids() -> None:
    position = read_position({"orders": {"0": 23}})
    assert position == StreamPosition(offsets={("orders", 0): 23})
    assert position.find_recreated({("orders", 0): SECOND}) == []


def test_only_topics_with_another_id_were_created_again() -> None:
    position = StreamPosition(
        offsets={("orders", 0): 23, ("orders", 1): 5}, topic_ids={("orders", 0): FIRST, ("orders", 1): FIRST}
    )
    assert position.find_recreated({("orders", 0): SECOND, ("orders", 1): FIRST}) == [("orders", 0)]
    assert position.find_recreated({("orders", 0): "", ("orders", 2): SECOND}) == []
