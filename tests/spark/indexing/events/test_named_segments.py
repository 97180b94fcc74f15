"""Test that events name the same segments, whether this process or tasks have decoded them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import WrittenSegment
from builders.metadata_topic import (
    DELETED,
    DELETING,
    FINISHED,
    became,
    finished,
    partition_deleted,
    partition_of,
    started,
    values_of,
)
from coldlog.indexing.events import decoded_events
from coldlog.indexing.events.decoded_events import NamedSegment, ReadHere, ReadInTasks
from coldlog.indexing.events.event_sources import RAW_SCHEMA
from coldlog.model.states import RemotePartitionDeleteState
from coldlog.runtime.spark.arrow_frames import frame_of
from worlds.tier_broker import Broker


def test_events_name_the_same_segments_here_and_in_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path)
    written: dict[str, list[WrittenSegment]] = {topic: broker.write(topic, 3) for topic in ("a", "b", "c")}
    events = [
        *finished(written["a"][0]),
        started(written["a"][1]),
        *became(written["b"][0], DELETING, DELETED),
        *became(written["b"][1], FINISHED),
        *finished(written["c"][0]),
        *partition_deleted(partition_of(written["c"][0]), RemotePartitionDeleteState.DELETE_PARTITION_MARKED),
    ]
    rows = [
        {"metadata_partition": 0, "metadata_offset": at, "value": value} for at, value in enumerate(values_of(events))
    ]
    raw = pa.Table.from_pylist(rows, schema=RAW_SCHEMA)
    here, in_tasks = ReadHere.of(raw, {}), ReadInTasks.of(frame_of(spark, raw), {})

    def named(segment: WrittenSegment, *, has_start: bool = True, is_deleted: bool = False) -> NamedSegment:
        return NamedSegment(
            topic_id=partition_of(segment).topic_id,
            segment_id=segment.segment_id,
            start_offset=segment.segment.start_offset if has_start else None,
            is_deleted=is_deleted,
        )

    expected = {
        ("a", 0): frozenset(map(named, written["a"][:2])),
        ("b", 0): frozenset(
            {
                named(written["b"][0], has_start=False, is_deleted=True),
                named(written["b"][1], has_start=False),
            }
        ),
    }
    assert here.segments() == in_tasks.segments() == expected
    monkeypatch.setattr(decoded_events, "_MOST_NAMING", len(events) - 1)
    assert in_tasks.segments() == {}
    in_tasks.forget()
