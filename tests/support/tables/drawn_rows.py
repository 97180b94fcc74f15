"""Draw a segment as a listing, events and earlier runs may have it."""

from __future__ import annotations

from random import Random

from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS
from coldlog.indexing.scan.listed_rows import LISTED_COLUMNS
from coldlog.model.states import IndexStatus, RemoteLogSegmentState

_STATES = [state.name for state in RemoteLogSegmentState]
_LISTED_STATUS = (IndexStatus.PENDING.value, IndexStatus.INCOMPLETE.value)
_OBJECTS = [[{"kind": "log", "name": f"log-{number}", "size_bytes": 10}] for number in range(2)]
_MISSING: list[list[str]] = [[], ["offset_index"], ["time_index", "offset_index"], ["log"], ["producer_snapshot"]]
EPOCHS = [[{"leader_epoch": epoch, "start_offset": 0}] for epoch in range(2)]


def draw_listed(random: Random, key: dict[str, object], start_offset: int) -> dict[str, object]:
    """A row of the listing."""
    return {
        **key,
        "start_offset": start_offset,
        "size_bytes": random.choice((None, 10, 11)),
        "objects": random.choice(_OBJECTS),
        "missing_kinds": random.choice(_MISSING),
        "log_modified_ms": random.choice((None, 1, 2)),
        "state": random.choice(_STATES[:2]),
        "index_status": random.choice(_LISTED_STATUS),
    }


def draw_announced(random: Random, key: dict[str, object], start_offset: int) -> dict[str, object]:
    """What the fold of events says."""
    is_placed = random.random() < 0.8
    return {
        **key,
        "announced_state": random.choice((*_STATES, _STATES[1], _STATES[1], None)),
        "announced_start_offset": start_offset if is_placed else None,
        "announced_end_offset": random.choice((None, 20)),
        "announced_max_timestamp_ms": random.choice((5, 6)) if is_placed else None,
        "announced_size_bytes": random.choice((10, 11)) if is_placed else None,
        "announced_leader_epochs": random.choice(EPOCHS) if is_placed else None,
        "announced_txn_index_empty": random.choice((None, False, True)),
        "copy_started_ms": random.choice((None, 6, 7)),
        "broker_id": random.choice((1, 2)),
        "event_timestamp_ms": random.choice((7, 8)),
        "custom_metadata": random.choice((None, b"", b"x")),
        "was_copied": random.choice((False, True)),
        "dropped_event_count": random.choice((0, 1)),
    }


def draw_stored(
    random: Random, key: dict[str, object], start_offset: int, listed: dict[str, object], announced: dict[str, object]
) -> dict[str, object]:
    """A row as an earlier scan and build may have left it; often of what is listed and announced now."""
    is_listed, is_announced = random.random() < 0.8, random.random() < 0.6
    if random.random() < 0.5:
        listed = draw_listed(random, key, start_offset)
    if random.random() < 0.5:
        announced = draw_announced(random, key, start_offset)
    state = str(announced["announced_state"] or _STATES[0]) if is_announced else listed["state"]
    return {
        **key,
        "start_offset": start_offset,
        **{name: listed[name] for name in LISTED_COLUMNS},
        "is_listed": is_listed,
        "state": state,
        "state_source": "events" if is_announced else "listing",
        "index_status": random.choice([each.value for each in IndexStatus]),
        "txn_index_empty": random.choice((None, None, True)),
        **{name: announced[name] if is_announced else None for name in ANNOUNCED_COLUMNS},
        "build_number": random.choice((None, 3)),
        "index_depth": random.choice((None, "record", "record")),
        "damaged_files": random.choice((None, None, ["damage"])),
    }
