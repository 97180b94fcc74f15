"""Test that few segments are compared and chosen in the driver as many are by Spark, over rows at random."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from coldlog.errors import Reason
from coldlog.indexing.builds import build_work
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.build_work import iter_pending_work, survey_builds
from coldlog.indexing.events.announced_segments import ANNOUNCED_COLUMNS
from coldlog.indexing.scan.differences import STORED_COLUMNS, differences, expected_segments, without_unknown
from coldlog.indexing.scan.differences_here import differences_here
from coldlog.indexing.scan.differences_here import without_unknown as without_unknown_here
from coldlog.indexing.scan.listing import LISTED_COLUMNS, SEGMENT_COLUMNS
from coldlog.model.states import IndexStatus, RemoteLogSegmentState
from coldlog.runtime.spark.arrow_frames import frame_of
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.reconcile import reconcile
from planning import as_large_tables

_SEGMENTS = 6_000
_KEY = ("topic", "partition", "topic_id", "segment_id")
_STATES = [state.name for state in RemoteLogSegmentState]
_LISTED_STATUS = (IndexStatus.PENDING.value, IndexStatus.INCOMPLETE.value)
_OBJECTS = [[{"kind": "log", "name": f"log-{number}", "size_bytes": 10}] for number in range(2)]
_MISSING: list[list[str]] = [[], ["offset_index"], ["time_index", "offset_index"], ["log"], ["producer_snapshot"]]
_EPOCHS = [[{"leader_epoch": epoch, "start_offset": 0}] for epoch in range(2)]
_UNLISTED: list[dict[str, object]] = [
    {"topic": "a", "partition": 1, "topic_id": ""},
    {"topic": "b", "partition": 0, "topic_id": "id-1"},
]


def _listed(random: Random, key: dict[str, object], start_offset: int) -> dict[str, object]:
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


def _announced(random: Random, key: dict[str, object], start_offset: int) -> dict[str, object]:
    is_placed = random.random() < 0.8
    return {
        **key,
        "announced_state": random.choice((*_STATES, _STATES[1], _STATES[1], None)),
        "announced_start_offset": start_offset if is_placed else None,
        "announced_end_offset": random.choice((None, 20)),
        "announced_max_timestamp_ms": random.choice((5, 6)) if is_placed else None,
        "announced_size_bytes": random.choice((10, 11)) if is_placed else None,
        "announced_leader_epochs": random.choice(_EPOCHS) if is_placed else None,
        "announced_txn_index_empty": random.choice((None, False, True)),
        "copy_started_ms": random.choice((None, 6, 7)),
        "broker_id": random.choice((1, 2)),
        "event_timestamp_ms": random.choice((7, 8)),
        "custom_metadata": random.choice((None, b"", b"x")),
        "was_copied": random.choice((False, True)),
        "dropped_event_count": random.choice((0, 1)),
    }


def _stored(
    random: Random, key: dict[str, object], start_offset: int, listed: dict[str, object], announced: dict[str, object]
) -> dict[str, object]:
    """A row as an earlier scan and build may have left it; often of what is listed and announced now."""
    is_listed, is_announced = random.random() < 0.8, random.random() < 0.6
    if random.random() < 0.5:
        listed = _listed(random, key, start_offset)
    if random.random() < 0.5:
        announced = _announced(random, key, start_offset)
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


def _rows(random: Random) -> tuple[list[dict[str, object]], list[dict[str, object]], list[dict[str, object]]]:
    """What is listed, announced and stored; each segment is in some of the three."""
    listed, announced, stored = list[dict[str, object]](), list[dict[str, object]](), list[dict[str, object]]()
    for number in range(_SEGMENTS):
        key: dict[str, object] = {
            "topic": random.choice("ab"),
            "partition": random.randint(0, 60),
            "topic_id": random.choice(("id-1", "id-2")),
            "segment_id": f"segment-{number}",
        }
        rows = _listed(random, key, number), _announced(random, key, number)
        if random.random() < 0.7:
            listed.append(rows[0])
        if int(str(key["partition"])) % 3 and random.random() < 0.7:
            announced.append(rows[1])
        if random.random() < 0.7:
            stored.append(_stored(random, key, number, *rows))
    return listed, announced, stored


def _table(rows: list[dict[str, object]], names: tuple[str, ...]) -> pa.Table:
    known = {field.name: field.type for field in SEGMENTS.arrow_schema} | {"announced_state": pa.string()}
    return pa.Table.from_pylist(rows, pa.schema([(name, known[name]) for name in names]))


@pytest.mark.parametrize("is_mirror", [False, True])
def test_the_driver_finds_what_spark_finds(spark: SparkSession, is_mirror: bool) -> None:
    listed, announced, stored = _rows(Random(29))
    expected = expected_segments(
        frame_of(spark, _table(listed, SEGMENT_COLUMNS)),
        frame_of(spark, _table(announced, (*_KEY, "announced_state", *ANNOUNCED_COLUMNS))),
        {},
    )
    by_spark = differences(expected, frame_of(spark, _table(stored, STORED_COLUMNS)), is_mirror=is_mirror)
    of_events = {tuple(row[name] for name in _KEY): row for row in announced}
    here = differences_here(listed, of_events, stored, is_mirror=is_mirror)  # type: ignore[arg-type]

    wanted = {row["segment_id"]: row for row in by_spark.toArrow().to_pylist()}
    found = {row["segment_id"]: row for row in here}
    assert len(here) == len(found)
    assert found.keys() == wanted.keys()
    assert {key: (row, wanted[key]) for key, row in found.items() if row != wanted[key]} == {}
    for change, most in (("new", 1_000), ("changed", 1_000), ("gone", 500)):
        assert sum(row["change"] == change for row in here) > most
    statuses = {row["index_status"] for row in here}
    assert statuses == {each.value for each in IndexStatus}

    unlisted = frame_of(spark, _table(_UNLISTED, ("topic", "partition", "topic_id")))
    kept = {row["segment_id"] for row in without_unknown(by_spark, unlisted).select("segment_id").toArrow().to_pylist()}
    assert {row["segment_id"] for row in without_unknown_here(here, _UNLISTED)} == kept
    assert 0 < len(kept) < len(here)


_CHOSEN = 1_200
_STATUS_OF_BUILDS = [each.value for each in (IndexStatus.PENDING, IndexStatus.QUARANTINED, IndexStatus.INDEXED)]
_OFFSET_RULE, _OTHER_RULE = "last offset -7 at byte 30", "last offset 7"


def _built(random: Random, number: int) -> dict[str, object]:
    """A row of `segments` after some builds."""
    key = {
        "topic": random.choice("ab"),
        "partition": random.randint(0, 30),
        "topic_id": random.choice(("id-1", "id-2")),
        "segment_id": f"segment-{number}",
    }
    start_offset = random.randint(0, 40)
    listed, announced = _listed(random, key, start_offset), _announced(random, key, start_offset)
    folder = random.choice(("x/", "x/y/", ""))
    return {
        **_stored(random, key, start_offset, listed, announced),
        "end_offset": random.choice((19, 20, 21)),
        "max_timestamp_ms": random.choice((-1, 5)),
        "metadata_max_timestamp_ms": random.choice((5, 6)),
        "segment_leader_epochs": random.choice(_EPOCHS),
        "is_within_lineage": random.choice((None, False, True)),
        "abort_marker_count": random.choice((None, 0, 1)),
        "objects": [{"kind": "log", "name": f"{folder}{number}.log", "size_bytes": 10}],
        "log_modified_ms": 1,
        "index_status": random.choice(_STATUS_OF_BUILDS),
        "damaged_files": random.choice((None, [], ["damage"])),
        "holes": random.choice((None, [])),
        "superseded_build_numbers": random.choice((None, [1, 2])),
    }


def _quarantined(random: Random, segment: dict[str, object]) -> dict[str, object]:
    reason, expected = random.choice(
        (
            (Reason.DECRYPTION_KEY_MISSING, "key-1"),
            (Reason.DECRYPTION_KEY_MISSING, "key-2"),
            (Reason.OFFSET_INDEX_INVALID, _OFFSET_RULE),
            (Reason.OFFSET_INDEX_INVALID, _OTHER_RULE),
            (Reason.CRC_MISMATCH, _OFFSET_RULE),
        )
    )
    seen = {"position": -1, "first_seen_ms": 1, "last_seen_ms": 1, "attempt_count": 1}
    told = {"reason": reason.value, "message": "", "object_name": "", "expected": expected, "found": ""}
    return {name: segment[name] for name in (*QUARANTINE.key, "topic_id")} | seen | told


def test_the_driver_chooses_and_reconciles_as_spark_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, warehouse = Random(30), Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    segments = [_built(random, number) for number in range(_CHOSEN)]
    warehouse.append(SEGMENTS, [{name: row.get(name) for name in SEGMENTS.column_names} for row in segments])
    bad = [row for row in segments if row["index_status"] == IndexStatus.QUARANTINED.value]
    warehouse.append(QUARANTINE, [_quarantined(random, row) for row in bad])
    log_starts = [{"topic": "a", "partition": number, "log_start_offset": number} for number in range(25)]
    warehouse.append(LOG_START_OFFSETS, log_starts)

    found = {}
    for is_mirror, is_retrying in ((False, False), (True, True)):

        def choose(is_mirror: bool = is_mirror, is_retrying: bool = is_retrying) -> list[SegmentWork]:
            parts = iter_pending_work(
                warehouse,
                survey_builds(warehouse),
                retry_quarantined=is_retrying,
                decryption_key_ids=frozenset({"key-1"}),
                is_mirror=is_mirror,
            )
            return [each for part in parts for each in part]

        found[is_retrying] = choose()
        with as_large_tables(), monkeypatch.context() as patch:
            if is_retrying:
                patch.setattr(build_work, "MOST_AT_ONCE", len(found[is_retrying]) // 4)
            assert choose() == found[is_retrying], "in one part or in some"
    assert _CHOSEN // 3 < len(found[False]) < len(found[True])
    for name in ("is_last", "is_log_damaged"):
        assert {getattr(each, name) for each in found[True]} == {False, True}
    assert any(each.count_from_offset != each.segment.start_offset for each in found[True])

    reconcile(warehouse)
    discrepancies = _without_times(warehouse)
    warehouse.delete_matching(DISCREPANCIES, [{"kind": kind} for kind in {row["kind"] for row in discrepancies}])
    assert not _without_times(warehouse)
    with as_large_tables():
        reconcile(warehouse)
    assert _without_times(warehouse) == discrepancies
    assert len({row["kind"] for row in discrepancies}) > 10


def _without_times(warehouse: Warehouse) -> list[Row]:
    """The discrepancies in order."""
    names = [name for name in DISCREPANCIES.column_names if name != "first_seen_ms"]
    return sorted(warehouse.small_rows(DISCREPANCIES, names), key=lambda row: [row["segment_id"], row["kind"]])
