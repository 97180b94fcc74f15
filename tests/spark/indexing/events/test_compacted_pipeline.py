"""Test the whole pipeline on metadata topics that were truncated or compacted (KIP-1266, both drafts)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from builders.archive_writer import TopicPartition, WrittenSegment, write_archive
from builders.compacted_topic import DELETED, DELETING, FINISHED, STARTED, Draft, KeyedLog, Upload
from builders.metadata_topic import became, started
from builders.segment_builder import Batch, Record, Segment
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.formats.kafka.remote_log.remote_log_metadata import encode_event
from coldlog.indexing.events.read_events import read_events
from coldlog.lookups.offset_lookup import find_offsets_for_timestamps
from coldlog.lookups.requests.rows import requests_from_rows
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.segments import SEGMENTS
from contents.problems_view import problems_of
from worlds.golden_warehouse import log_segments_source, run_pipeline

KEY_A_STATE, KEY_FOR_UPDATES, TRUNCATED = "key.a.state", "key.for.updates", "truncated"


def _segment(start: int) -> Segment:
    """Eight records; the timestamp is 1,000 ms plus the offset."""
    records = tuple(Record(timestamp_ms=1_000 + offset, value=b"v") for offset in range(start, start + 8))
    return Segment(batches=(Batch(base_offset=start, records=records),), index_interval_bytes=0)


def _append(log: KeyedLog, draft: Draft, upload: Upload, *states: RemoteLogSegmentState) -> None:
    for state in states:
        log.append(upload.key(state, draft), encode_event(upload.event(state, draft)))
        if state is DELETED:
            for key in upload.tombstone_keys(draft):
                log.append(key, None)


def _compacted_log(draft: Draft, segments: Sequence[WrittenSegment]) -> KeyedLog:
    """The first segment is deleted, two are copied, the fourth is being copied."""
    deleted, second, third, copying = (Upload(first=started(each)) for each in segments)
    log = KeyedLog()
    _append(log, draft, deleted, STARTED, FINISHED)
    _append(log, draft, second, STARTED, FINISHED, FINISHED)
    _append(log, draft, third, STARTED)
    if draft is Draft.KEY_FOR_UPDATES:
        # Of a failed upload of the same offsets in the same leader epoch; it came late and hides the first event.
        log.append(third.key(STARTED, draft), None)
    _append(log, draft, third, FINISHED)
    _append(log, draft, deleted, DELETING, DELETED)
    log.roll()
    _append(log, draft, copying, STARTED)
    log.compact()
    if draft is Draft.KEY_A_STATE:
        log.compact(is_long_after=True)
    return log


def _truncated_log(segments: Sequence[WrittenSegment]) -> KeyedLog:
    """Retention removed both events of the first segment and the first event of the second one."""
    log = KeyedLog()
    for number, written in enumerate(segments):
        log.append(None, encode_event(started(written)))
        if number == 1:
            log.roll()
        log.append(None, encode_event(became(written, FINISHED)[0]))
    log.remove_oldest_segment()
    return log


@pytest.mark.timeout(1200)
def test_archive_is_indexed_from_a_compacted_or_truncated_topic(spark: SparkSession, tmp_path: Path) -> None:
    archive, topic = tmp_path / "archive", tmp_path / "topic"
    starts = {KEY_A_STATE: (0, 8, 16, 24), KEY_FOR_UPDATES: (0, 8, 16, 24), TRUNCATED: (0, 8, 16)}
    written: dict[str, list[WrittenSegment]] = {}
    for name, offsets in starts.items():
        written[name] = write_archive(archive, {TopicPartition(topic=name, partition=0): list(map(_segment, offsets))})
    for name in (KEY_A_STATE, KEY_FOR_UPDATES):
        for path in written[name][0].stem.parent.glob(f"{written[name][0].stem.name}.*"):
            path.unlink()
    logs = [
        _compacted_log(Draft.KEY_A_STATE, written[KEY_A_STATE]),
        _compacted_log(Draft.KEY_FOR_UPDATES, written[KEY_FOR_UPDATES]),
        _truncated_log(written[TRUNCATED]),
    ]
    assert [record.offset for record in logs[0].records] == [2, 4, 5, 6, 13]
    assert any(record.value is None for record in logs[1].records)
    for partition, log in enumerate(logs):
        log.write(topic, partition)

    warehouse = run_pipeline(spark, archive, tmp_path / "warehouse", metadata=topic)
    rows = warehouse.read(SEGMENTS).orderBy("topic", "start_offset").collect()
    facts = [(row["topic"], row["start_offset"], row["state"], row["index_status"]) for row in rows]
    finished, copying = (FINISHED.name, "indexed"), (STARTED.name, "incomplete")
    assert {fact for fact in facts if fact[2] != DELETED.name} == {
        *((name, 8 * at, *finished) for name in (KEY_A_STATE, KEY_FOR_UPDATES) for at in (1, 2)),
        *((name, 24, *copying) for name in (KEY_A_STATE, KEY_FOR_UPDATES)),
        *((TRUNCATED, 8 * at, *finished) for at in (0, 1, 2)),
    }
    placed = {(row["topic"], row["start_offset"]): row["announced_start_offset"] for row in rows}
    assert {place for place, start in placed.items() if start is None} == {
        (KEY_FOR_UPDATES, 16), (TRUNCATED, 0), (TRUNCATED, 8),
    }  # fmt: skip
    asked = [(KEY_A_STATE, 1_009), (KEY_FOR_UPDATES, 1_017), (KEY_FOR_UPDATES, 1_024), (TRUNCATED, 1_001)]
    answers = find_offsets_for_timestamps(warehouse, requests_from_rows([(name, 0, at) for name, at in asked]))
    assert answers.column("offset").to_pylist() == [9, 17, None, 1]

    problems = problems_of(warehouse).collect()
    assert sorted((row["topic"], row["start_offset"], row["kind"]) for row in problems) == [
        (METADATA_TOPIC, 2, "events_lost"),
        (KEY_A_STATE, 24, "copy_unfinished"),
        (KEY_FOR_UPDATES, 16, "announcement_lost"),
        (KEY_FOR_UPDATES, 24, "copy_unfinished"),
        (TRUNCATED, 0, "announcement_lost"),
        (TRUNCATED, 8, "announcement_lost"),
    ]

    # Retention takes what was read too: nothing is lost by it, and it is the same topic.
    emptied = KeyedLog(segment_starts=[logs[2].next_offset], next_offset=logs[2].next_offset)
    (topic / f"{METADATA_TOPIC}-2").rename(tmp_path / "before")
    emptied.write(topic, 2)
    again = read_events(warehouse, log_segments_source(topic))
    assert (again.new_event_count, again.missing_offset_count, again.lost_partitions) == (0, 0, ())
