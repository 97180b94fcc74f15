"""Test the fold of events against a state machine of the tests, also with sequences that no broker writes."""

from __future__ import annotations

from random import Random

from builders.event_sequences import announced_row, draw_events
from builders.metadata_cache import MetadataCache
from coldlog.formats.kafka.remote_log.remote_log_metadata import encode_event
from coldlog.indexing.events.announced_segments import fold_events
from coldlog.indexing.events.event_rows import TOMBSTONE, event_row
from coldlog.model.states import RemoteLogSegmentState
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS

_SEQUENCES = 2_000


def test_events_are_folded_as_kafkas_cache_does() -> None:
    random = Random(6)
    states = []
    for number in range(_SEQUENCES):
        events, is_complete = draw_events(random, number), bool(number % 2)
        cache, rows = MetadataCache(is_complete=is_complete), []
        for offset, event in enumerate(events):
            cache.take(event)
            rows.append(_row(offset, is_complete, event_row(encode_event(event))))
            known = sorted(cache.in_cache)
            if number % 3 == 0 and known and random.random() < 0.2:
                cache.take_tombstone(known[0])
                named = {name: rows[-1][name] for name in ("topic_id", "partition")}
                # Where an event has the place of a tombstone, the tombstone is behind it.
                tombstone = {"event_kind": TOMBSTONE, "segment_id": known[0], **named}
                rows.append(_row(offset, is_complete, tombstone) | {"metadata_offset": offset + 0.5})
        random.shuffle(rows)

        found = {key[3]: row for key, row in fold_events(rows).items()}
        wanted = {segment_id: announced_row(known) for segment_id, known in cache.remembered.items()}
        assert found.keys() == wanted.keys()
        for segment_id, want in wanted.items():
            assert {name: found[segment_id][name] for name in want} == want, (number, segment_id)
        states += [row["announced_state"] for row in found.values()]
    assert all(states.count(name) > 50 for name in (None, *(state.name for state in RemoteLogSegmentState)))


def _row(offset: int, is_complete: bool, event: dict[str, object]) -> dict[str, object]:
    empty: dict[str, object] = dict.fromkeys(SEGMENT_EVENTS.column_names)
    return empty | {"metadata_partition": 0, "metadata_offset": offset, "is_complete": is_complete} | event
