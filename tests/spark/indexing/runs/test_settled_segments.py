"""Test that a comparison without the segments that have ended or stand finds the same differences, over rows at
random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

import pyarrow as pa
import pytest

from coldlog.indexing.events.announced_here import EVENT_COLUMNS, fold_events
from coldlog.indexing.scan.differences import STORED_COLUMNS
from coldlog.indexing.scan.differences_here import differences_here
from coldlog.indexing.scan.listing import LISTED_SCHEMA, SEGMENT_COLUMNS
from coldlog.indexing.scan.settled_segments import Compared, without_settled
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row

_LIFE = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED")
_EPOCHS = [[{"leader_epoch": epoch, "start_offset": 0}] for epoch in range(2)]
_OTHER_VALUES: Row = {"state_source": "listing", "index_status": "indexed", "was_copied": False, "is_listed": True}
_AFTER_BUILDS: tuple[Row, ...] = (
    {"index_status": "quarantined"}, {"damaged_files": ["x"]}, {"txn_index_empty": False}, {"log_modified_ms": None},
    {"txn_index_empty": True, "build_number": None}, {"state_source": "events"}, {"state": _LIFE[0]},
)  # fmt: skip
_PARTITION_DELETED = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")


def _key(random: Random, number: int) -> Row:
    topic_id = random.choice(("id-1", "id-2"))
    return {"topic": "a", "partition": random.randint(0, 5), "topic_id": topic_id, "segment_id": f"segment-{number}"}


def _states(random: Random) -> list[str]:
    """Mostly those of a usual life, or of its first half; sometimes one is missing or repeated, or they are out of
    order."""
    life = list(_LIFE)
    if random.random() < 0.3:
        return life[:2]
    if random.random() < 0.25:
        match random.randrange(4):
            case 0:
                del life[random.randrange(4)]
            case 1:
                life.insert(random.randrange(5), random.choice(_LIFE))
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
        if state == _LIFE[0]:
            event |= {
                "event_kind": "segment",
                "start_offset": start_offset,
                "end_offset": start_offset + 9,
                "max_timestamp_ms": random.choice((5, 6)),
                "size_bytes": 10,
                "segment_leader_epochs": random.choice((*_EPOCHS, *_EPOCHS, _EPOCHS[0] + _EPOCHS[1], None)),
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
            for state in _PARTITION_DELETED:
                yield dict.fromkeys(EVENT_COLUMNS) | deleted | {"event_kind": "partition_delete", "state": state}
        if not streams[at]:
            streams[at] = streams[-1]
            streams.pop()


def _listed(key: Row, number: int) -> Row:
    return key | {
        "start_offset": number,
        "size_bytes": 10,
        "objects": [
            {"kind": "log", "name": f"{number}.log", "size_bytes": 10},
            {"kind": "offset_index", "name": f"{number}.index", "size_bytes": None},
        ],
        "missing_kinds": [],
        "log_modified_ms": 1,
        "state": _LIFE[1],
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
            {"missing_kinds": ["time_index"], "index_status": "incomplete", "state": _LIFE[0]},
            {"start_offset": row["start_offset"] + 20_000},
            {"partition": 7},
        )
    )
    return row | changed


def _stored(random: Random, told: list[Row], listed: list[Row]) -> list[Row]:
    """The rows that a scan of the first events has left, some of them changed, most of them by a build."""
    listed = [_other_listing(random, row) if random.random() < 0.1 else row for row in listed]
    before = differences_here(listed, fold_events(told[: -random.choice((1, 20, 400))]), [], is_mirror=False)
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
    once = differences_here([_listed(keys[number], number) for number in range(1_600, 1_700)], {}, [], is_mirror=False)
    before = [{name: row.get(name) for name in STORED_COLUMNS} for row in once]
    gone = differences_here([], {}, before, is_mirror=False)
    stored = [{name: row.get(name) for name in STORED_COLUMNS} for row in gone]
    for row in stored:
        if random.random() < 0.2:
            name, value = random.choice([("state", _LIFE[1]), ("index_status", "indexed"), ("is_listed", True)])
            row[name] = value
    return stored


def _tables(stored: list[Row], told: list[Row], listed: Iterable[Row] = ()) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The rows of `segments`, the events, and what is listed."""
    of_segments = {each.name: each.type for each in SEGMENTS.arrow_schema}
    of_events = {each.name: each.type for each in SEGMENT_EVENTS.arrow_schema} | {"is_complete": pa.bool_()}
    names = (*EVENT_COLUMNS, "is_complete")
    return (
        pa.Table.from_pylist(stored, pa.schema([(name, of_segments[name]) for name in STORED_COLUMNS])),
        pa.Table.from_pylist(told, pa.schema([(name, of_events[name]) for name in names])),
        pa.Table.from_pylist(list(listed), pa.schema([LISTED_SCHEMA.field(name) for name in SEGMENT_COLUMNS])),
    )


def _placed(told: Iterable[Row]) -> list[Row]:
    return [event | {"metadata_offset": offset, "is_complete": True} for offset, event in enumerate(told)]


def _now_listed(random: Random, key: Row, number: int) -> Iterator[Row]:
    """Usually one row; sometimes without the facts of the log, or in two directories."""
    row = _listed(key, number)
    if random.random() < 0.03:
        row |= {"log_modified_ms": None, "size_bytes": random.choice((None, 10))}
    yield row
    if random.random() < 0.03:
        yield row | {"partition": 8}


def _compared(left: Compared, *, is_mirror: bool) -> list[str]:
    found = differences_here(
        left.listed.to_pylist(),
        fold_events(left.events.to_pylist()),
        left.stored.to_pylist(),
        is_mirror=is_mirror,
        governed=left.governed,
    )
    return sorted(map(str, found))


def _all(stored: pa.Table, events: pa.Table, listed: pa.Table) -> Compared:
    return Compared(stored=stored, events=events, listed=listed, governed=frozenset(), some_stand=False)


@pytest.mark.parametrize("seed", range(12))
def test_a_comparison_without_settled_segments_finds_the_same(seed: int) -> None:
    random = Random(seed)
    keys = {number: _key(random, number) for number in range(1_700)}
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
    told = _placed(_told(random, list(streams.values())))
    rows, events, listing = _tables(_stored(random, told, listed) + _gone(random, keys), told, listed)
    left = without_settled(rows, events, listing)
    expected = _compared(_all(rows, events, listing), is_mirror=seed % 2 == 1)
    assert _compared(left, is_mirror=seed % 2 == 1) == expected
    assert len(expected) > 100
    stand = len(listing) - len(left.listed)
    assert left.some_stand
    assert stand > 50
    left_ids, named = set(left.stored["segment_id"].to_pylist()), set(events["segment_id"].to_pylist())
    without_events = len(set(rows["segment_id"].to_pylist()) - left_ids - named)
    left_out = len(rows) - len(left.stored)
    assert left_out - stand > 200
    assert without_events > 50
    assert len(events) - len(left.events) == 4 * (left_out - without_events) - 2 * stand


@pytest.mark.parametrize("seed", range(4))
def test_without_events_a_comparison_without_settled_segments_finds_the_same(seed: int) -> None:
    random = Random(seed)
    keys = {number: _key(random, number) for number in range(1_700)}
    listed = [
        row
        for number, key in keys.items()
        if number < 1_500 and random.random() < 0.9
        for row in _now_listed(random, key, number)
    ]
    rows, events, listing = _tables(_stored(random, [], listed) + _gone(random, keys), [], listed)
    left = without_settled(rows, events, listing)
    expected = _compared(_all(rows, events, listing), is_mirror=seed % 2 == 1)
    assert _compared(left, is_mirror=seed % 2 == 1) == expected
    assert len(expected) > 100
    assert len(listing) - len(left.listed) > 800
    assert left.governed == frozenset()


def _ended(key: Row) -> tuple[list[Row], list[Row]]:
    """The events of a usual life, and the row that they lead to."""
    life = [
        dict.fromkeys(EVENT_COLUMNS) | key | {"metadata_partition": 3, "event_kind": "segment_update", "state": state}
        for state in _LIFE
    ]
    life[0] |= {"event_kind": "segment", "start_offset": 1, "segment_leader_epochs": _EPOCHS[0]}
    told = _placed(event | {"event_timestamp_ms": 7} for event in life)
    before = differences_here([], fold_events(told), [], is_mirror=False)
    return told, [{name: row.get(name) for name in STORED_COLUMNS} for row in before]


def test_where_all_segments_have_ended_an_unannounced_one_is_an_orphan() -> None:
    key = _key(Random(1), 1)
    told, stored = _ended(key)
    other = _listed(key | {"segment_id": "other"}, 2)
    left = without_settled(*_tables(stored, told, [other]))
    assert (len(left.stored), len(left.events), len(left.listed)) == (0, 0, 1)
    (found,) = differences_here([other], {}, [], is_mirror=False, governed=left.governed)
    assert found["index_status"] == "orphan"


@pytest.mark.parametrize("column", ["topic", "partition", "topic_id"])
def test_events_of_two_partitions_are_compared(column: str) -> None:
    told, stored = _ended(_key(Random(1), 1))
    told[2][column] = 9 if column == "partition" else "other"
    left = without_settled(*_tables(stored, told))
    assert (len(left.stored), len(left.events)) == (1, 4)


def test_a_segment_whose_partition_was_deleted_is_compared() -> None:
    """The partition of the metadata topic in which its deletion lies may be another one."""
    key = _key(Random(1), 1)
    told, stored = _ended(key)
    deletion = {name: key[name] for name in ("topic", "partition", "topic_id")} | {"event_kind": "partition_delete"}
    told = [dict.fromkeys(EVENT_COLUMNS) | deletion | {"metadata_partition": 2, "state": _PARTITION_DELETED[0]}, *told]
    left = without_settled(*_tables(stored, _placed(told)))
    assert (len(left.stored), len(left.events)) == (1, 5)


def test_a_segment_that_was_indexed_before_it_was_deleted_is_left_out() -> None:
    """A build knows more of its transaction index than the event."""
    told, stored = _ended(_key(Random(1), 1))
    stored[0] |= {"build_number": 3, "txn_index_empty": False}
    assert len(without_settled(*_tables(stored, told)).stored) == 0


def test_a_log_whose_size_is_no_longer_known_is_compared() -> None:
    """A listing without the size of a log keeps the size that a build read only if it has the log's time."""
    listed = _listed(_key(Random(1), 1), 1) | {"log_modified_ms": None}
    (before,) = differences_here([listed], {}, [], is_mirror=False)
    stored = {name: before.get(name) for name in STORED_COLUMNS} | {"index_status": "indexed", "build_number": 3}
    for size_bytes in (10, None):
        assert len(without_settled(*_tables([stored], [], [listed | {"size_bytes": size_bytes}])).stored) == 1
    timed = {"log_modified_ms": 1}
    assert len(without_settled(*_tables([stored | timed], [], [listed | timed | {"size_bytes": None}])).stored) == 0
