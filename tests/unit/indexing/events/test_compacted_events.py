"""Test that compacted (KIP-1266) or truncated metadata topics fold to the states of the whole topic, without Spark.

The fold is the tests' `MetadataCache`; test_announced_segments compares it with the fold of the library.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.compacted_topic import Draft, KeyedLog, KeyedRecord, write_lives
from builders.metadata_cache import DELETED, DELETING, FINISHED, STARTED, Known, MetadataCache
from coldlog.archive.metadata_log import list_metadata_partitions
from coldlog.archive.metadata_log_reader import iter_metadata_records
from coldlog.archive.stores.local_store import LocalStore
from coldlog.formats.kafka.remote_log.remote_log_events import Event
from coldlog.formats.kafka.remote_log.remote_log_keys import decode_event_key
from coldlog.formats.kafka.remote_log.remote_log_metadata import decode_event
from coldlog.formats.limits import DecodeLimits
from coldlog.model.states import RemoteLogSegmentState

SEEDS = st.integers(0, (1 << 64) - 1)
LEFT_OF: dict[Draft, dict[RemoteLogSegmentState, set[RemoteLogSegmentState | None]]] = {
    Draft.KEY_A_STATE: {
        STARTED: {STARTED}, FINISHED: {FINISHED}, DELETING: {DELETING}, DELETED: {DELETED, None},
    },
    # Uploads of one end offset in one leader epoch share a key, so the first event of a failed one may be removed; and
    # the tombstone of a first event may be missing when that of the updates has removed them.
    Draft.KEY_FOR_UPDATES: {
        STARTED: {STARTED, None}, FINISHED: {FINISHED}, DELETING: {DELETING, None}, DELETED: {DELETED, None, STARTED},
    },
}  # fmt: skip
"""By the true state of a segment: the states that a compacted topic may show. None: the topic has no event of it."""


def _fold(events: Iterable[Event], *, is_complete: bool) -> dict[str, Known]:
    cache = MetadataCache(is_complete=is_complete)
    for event in events:
        cache.take(event)
    return cache.remembered


def _fold_records(records: Iterable[KeyedRecord]) -> dict[str, Known]:
    cache = MetadataCache(is_complete=False)
    for record in records:
        if record.value is not None:
            cache.take(decode_event(record.value))
        elif record.key is not None and (segment_id := decode_event_key(record.key).segment_id) is not None:
            cache.take_tombstone(segment_id)
    return cache.remembered


def _state(known: dict[str, Known], segment_id: str) -> RemoteLogSegmentState | None:
    return known[segment_id].state if segment_id in known else None


@pytest.mark.parametrize("draft", Draft)
@given(seed=SEEDS)
def test_compacted_topic_folds_to_the_states_of_the_complete_topic(draft: Draft, seed: int) -> None:
    random = Random(seed)
    events, log = write_lives(random, draft)
    true = _fold(events, is_complete=True)
    passes = random.randint(0, 3)
    for _ in range(passes):
        log.roll()
        log.compact(is_long_after=random.random() < 0.5)
    left = _fold_records(log.records)
    for segment_id, known in true.items():
        assert known.state is not None
        state = _state(left, segment_id)
        assert state in LEFT_OF[draft][known.state]
        if state is FINISHED and known.state is FINISHED:
            _assert_same_facts(left[segment_id], known, is_placed=draft is Draft.KEY_A_STATE)
    assert left.keys() <= true.keys()


def _assert_same_facts(left: Known, true: Known, *, is_placed: bool) -> None:
    assert left.last == true.last
    if left.is_placed or is_placed:
        assert left.first == true.first
    else:
        assert left.first is not None
        assert true.first is not None
        assert left.first.end_offset == true.first.end_offset


@given(seed=SEEDS, share=st.floats(0, 1))
def test_truncated_topic_folds_to_the_true_state_of_every_segment_it_still_names(seed: int, share: float) -> None:
    events, _ = write_lives(Random(seed), Draft.KEY_A_STATE)
    true = _fold(events, is_complete=True)
    left = _fold(events[int(share * len(events)) :], is_complete=False)
    assert {segment_id: known.state for segment_id, known in left.items()} == {
        segment_id: true[segment_id].state for segment_id in left
    }


def test_generated_topics_cover_every_case() -> None:
    """The properties above say little if a case is missing."""
    met = set()
    for seed in range(200):
        random = Random(seed)
        draft = list(Draft)[seed % 2]
        events, log = write_lives(random, draft)
        for _ in range(seed % 3):
            log.roll()
            log.compact(is_long_after=True)
        true, left = _fold(events, is_complete=True), _fold_records(log.records)
        for segment_id, known in true.items():
            is_placed = segment_id in left and left[segment_id].is_placed
            met.add((draft, known.state, _state(left, segment_id), is_placed))
    finished_without_facts = (Draft.KEY_FOR_UPDATES, FINISHED, FINISHED, False)
    assert {(draft, FINISHED, FINISHED, True) for draft in Draft} | {finished_without_facts} <= met
    assert {(draft, true, left) for draft, true, left, _ in met} == {
        (draft, true, left) for draft, states in LEFT_OF.items() for true, lefts in states.items() for left in lefts
    }


def test_cleaner_keeps_the_newest_of_a_key_and_tombstones_for_a_while_and_the_active_segment_whole() -> None:
    log = KeyedLog()
    for key, value in ((b"a", b"1"), (b"b", b"1"), (None, b"no key"), (b"a", b"2"), (b"b", None)):
        log.append(key, value)
    log.compact()
    assert [record.offset for record in log.records] == [0, 1, 2, 3, 4], "all of it is the active segment"
    log.roll()
    log.append(b"a", b"3")
    log.compact(is_long_after=True)
    assert [(record.offset, record.key) for record in log.records] == [(3, b"a"), (4, b"b"), (5, b"a")]
    log.compact()
    assert [record.offset for record in log.records] == [3, 4, 5]
    log.compact(is_long_after=True)
    assert [record.offset for record in log.records] == [3, 5]
    log.remove_oldest_segment()
    assert ([record.offset for record in log.records], log.segment_starts) == ([5], [5])


@pytest.mark.parametrize("draft", Draft)
def test_log_of_a_compacted_topic_is_read_with_its_holes(draft: Draft, tmp_path: Path) -> None:
    random = Random(5)
    _, log = write_lives(random, draft, partition_count=6)
    log.roll()
    log.compact()
    assert len(log.segment_starts) > 3
    assert len(log.records) < log.next_offset
    assert any(record.value is None for record in log.records)
    store = LocalStore(root=str(log.write(tmp_path / "topic")), uri="topic")
    (partition,) = list_metadata_partitions(store)
    limits = DecodeLimits(max_batch_bytes=1 << 20, max_decompressed_bytes=1 << 20)
    read = [(each.offset, each.key, each.value) for each in iter_metadata_records(store, partition, 0, limits)]
    assert read == [(each.offset, each.key, each.value) for each in log.records]
