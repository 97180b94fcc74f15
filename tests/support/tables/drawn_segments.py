"""Draw rows of `segments`, events and a listing, as runs, builds and brokers may leave them, and as none would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

import pyarrow as pa

from coldlog.indexing.events.announced_segments import EVENT_COLUMNS, fold_events
from coldlog.indexing.scan.differences import STORED_COLUMNS, find_differences
from coldlog.indexing.scan.listed_rows import LISTED_SCHEMA, SEGMENT_COLUMNS
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row

LIFE = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
EPOCHS = [[{"leader_epoch": epoch, "start_offset": 0}] for epoch in range(2)]
_OTHER_VALUES: Row = {"state_source": "listing", "index_status": "indexed", "was_copied": False, "is_listed": True}
_AFTER_BUILDS: tuple[Row, ...] = (
    {"index_status": "quarantined"}, {"damaged_files": ["x"]}, {"txn_index_empty": False}, {"log_modified_ms": None},
    {"txn_index_empty": True, "build_number": None}, {"state_source": "events"}, {"state": LIFE[0]},
)  # fmt: skip
PARTITION_DELETED = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")


def drawn_key(random: Random, number: int) -> Row:
    """The key of a segment of that number, in some partition."""
    topic_id = random.choice(("id-1", "id-2"))
    return {"topic": "a", "partition": random.randint(0, 5), "topic_id": topic_id, "segment_id": f"segment-{number}"}


def _states(random: Random) -> list[str]:
    """Mostly those of a usual life, or of its first half; sometimes one is missing or repeated, or they are out of
    order."""
    life = list(LIFE)
    if random.random() < 0.3:
        return life[:2]
    if random.random() < 0.25:
        match random.randrange(4):
            case 0:
                del life[random.randrange(4)]
            case 1:
                life.insert(random.randrange(5), random.choice(LIFE))
            case 2:
                random.shuffle(life)
            case _:
                del life[random.randrange(1, 4) :]
    return life


def _events_of(random: Random, key: Row, start_offset: int) -> list[Row]:
    events = []
    for number, state in enumerate(_states(random)):
        event = dict.fromkeys(EVENT_COLUMNS) | key
        event |= {
            "metadata_partition": 3,
            "event_kind": "segment_update",
            "state": state,
            "event_timestamp_ms": number,
            "broker_id": random.choice((1, 2)),
            "custom_metadata": random.choice((None, b"x")),
        }
        if state == LIFE[0]:
            event |= {
                "event_kind": "segment",
                "start_offset": start_offset,
                "end_offset": start_offset + 9,
                "max_timestamp_ms": random.choice((5, 6)),
                "size_bytes": 10,
                "segment_leader_epochs": random.choice((*EPOCHS, *EPOCHS, EPOCHS[0] + EPOCHS[1], None)),
                "txn_index_empty": random.choice((None, False, True)),
            }
        events.append(event)
    if random.random() < 0.03:
        events[-1] |= random.choice(({"topic": "c"}, {"partition": 9}, {"event_kind": "tombstone", "state": None}))
    return events


def _told(random: Random, streams: list[list[Row]]) -> Iterator[Row]:
    """The events of each segment in order, between those of others; sometimes a partition is deleted meanwhile."""
    left = sum(map(len, streams))
    deletion = random.randrange(left) if random.random() < 0.5 else None
    while streams:
        at = random.randrange(len(streams))
        yield streams[at].pop(0)
        left -= 1
        if left == deletion:
            deleted = {"topic": "a", "partition": 2, "topic_id": "id-2", "metadata_partition": 3}
            for state in PARTITION_DELETED:
                yield dict.fromkeys(EVENT_COLUMNS) | deleted | {"event_kind": "partition_delete", "state": state}
        if not streams[at]:
            streams[at] = streams[-1]
            streams.pop()


def listed_row(key: Row, number: int) -> Row:
    """A segment that is listed whole."""
    return key | {
        "start_offset": number,
        "size_bytes": 10,
        "objects": [
            {"kind": "log", "name": f"{number}.log", "size_bytes": 10},
            {"kind": "offset_index", "name": f"{number}.index", "size_bytes": None},
        ],
        "missing_kinds": [],
        "log_modified_ms": 1,
        "state": LIFE[1],
        "index_status": "pending",
    }


def _other_listing(random: Random, row: Row) -> Row:
    """The same segment, listed in another way."""
    log, index = row["objects"]
    changed = random.choice(
        (
            {"size_bytes": None},
            {"size_bytes": 11},
            {"log_modified_ms": 2},
            {"log_modified_ms": None},
            {"objects": [log]},
            {"objects": [index, log]},
            {"objects": [log, index | {"size_bytes": 3}]},
            {"objects": [log | {"name": "other"}, index]},
            {"missing_kinds": ["time_index"], "index_status": "incomplete", "state": LIFE[0]},
            {"start_offset": row["start_offset"] + 20_000},
            {"partition": 7},
        )
    )
    return row | changed


def _stored(random: Random, told: list[Row], listed: list[Row]) -> list[Row]:
    """The rows that a scan of the first events has left, some of them changed, most of them by a build."""
    listed = [_other_listing(random, row) if random.random() < 0.1 else row for row in listed]
    before = find_differences(listed, fold_events(told[: -random.choice((1, 20, 400))]), [], is_mirror=False)
    stored = [{name: row.get(name) for name in STORED_COLUMNS} for row in before]
    for row in stored:
        if row["index_status"] == "pending" and random.random() < 0.9:
            row.update({"index_status": "indexed", "build_number": 3})
            if random.random() < 0.2:
                row.update(random.choice(_AFTER_BUILDS))
        if random.random() < 0.1:
            name = random.choice([name for name in STORED_COLUMNS if name not in ("objects", "missing_kinds")])
            row[name] = random.choice(stored)[name]
        if random.random() < 0.1:
            name = random.choice(list(_OTHER_VALUES))
            row[name] = _OTHER_VALUES[name]
        if random.random() < 0.2:
            row["build_number"] = 3
    twins = [row | {"start_offset": int(row["start_offset"] or 0) + 10_000} for row in stored if random.random() < 0.01]
    return stored + twins


def _gone(random: Random, keys: dict[int, Row]) -> list[Row]:
    """Rows of segments that were listed once, and no event names; some of them changed."""
    once = find_differences(
        [listed_row(keys[number], number) for number in range(1_600, 1_700)], {}, [], is_mirror=False
    )
    before = [{name: row.get(name) for name in STORED_COLUMNS} for row in once]
    gone = find_differences([], {}, before, is_mirror=False)
    stored = [{name: row.get(name) for name in STORED_COLUMNS} for row in gone]
    for row in stored:
        if random.random() < 0.2:
            name, value = random.choice([("state", LIFE[1]), ("index_status", "indexed"), ("is_listed", True)])
            row[name] = value
    return stored


def tables_of(stored: list[Row], told: list[Row], listed: Iterable[Row] = ()) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The rows of `segments`, the events, and what is listed."""
    of_segments = {each.name: each.type for each in SEGMENTS.arrow_schema}
    of_events = {each.name: each.type for each in SEGMENT_EVENTS.arrow_schema} | {"is_complete": pa.bool_()}
    names = (*EVENT_COLUMNS, "is_complete")
    return (
        pa.Table.from_pylist(stored, pa.schema([(name, of_segments[name]) for name in STORED_COLUMNS])),
        pa.Table.from_pylist(told, pa.schema([(name, of_events[name]) for name in names])),
        pa.Table.from_pylist(list(listed), pa.schema([LISTED_SCHEMA.field(name) for name in SEGMENT_COLUMNS])),
    )


def placed(told: Iterable[Row]) -> list[Row]:
    """Give events the places of a metadata partition of which nothing is missing."""
    return [event | {"metadata_offset": offset, "is_complete": True} for offset, event in enumerate(told)]


def _now_listed(random: Random, key: Row, number: int) -> Iterator[Row]:
    """Usually one row; sometimes without the facts of the log, or in two directories."""
    row = listed_row(key, number)
    if random.random() < 0.03:
        row |= {"log_modified_ms": None, "size_bytes": random.choice((None, 10))}
    yield row
    if random.random() < 0.03:
        yield row | {"partition": 8}


def draw_with_events(random: Random) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Rows of `segments`, events, and a listing, where most segments have events."""
    keys = {number: drawn_key(random, number) for number in range(1_700)}
    # The last two hundred were never announced: only events tell that they do not belong to their partition.
    announced = [number for number in range(1_500) if random.random() < 0.95]
    streams = {number: _events_of(random, keys[number], number) for number in announced}
    halves = {number for number, events in streams.items() if len(events) == 2 and random.random() < 0.9}
    listed = [
        row
        for number, key in keys.items()
        if 1_500 <= number < 1_600 or number in halves or random.random() < 0.1
        for row in _now_listed(random, key, number)
    ]
    told = placed(_told(random, list(streams.values())))
    return tables_of(_stored(random, told, listed) + _gone(random, keys), told, listed)


def draw_without_events(random: Random) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The same without an event."""
    keys = {number: drawn_key(random, number) for number in range(1_700)}
    listed = [
        row
        for number, key in keys.items()
        if number < 1_500 and random.random() < 0.9
        for row in _now_listed(random, key, number)
    ]
    return tables_of(_stored(random, [], listed) + _gone(random, keys), [], listed)
