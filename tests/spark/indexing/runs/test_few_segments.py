"""Test that few segments are chosen and reconciled in the driver as many are by Spark, over rows at random."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from builders.segment_builder import Batch, Record, Segment, build_segment
from coldlog.errors import ArchiveError, Reason
from coldlog.formats.kafka.offset_index import read_offset_index
from coldlog.index.index_checks import OffsetIndexCheck
from coldlog.indexing.builds import build_work
from coldlog.indexing.builds.build_plan import SegmentWork
from coldlog.indexing.builds.build_work import iter_pending_work, survey_builds
from coldlog.model.states import IndexDepth, IndexStatus
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.log_start_offsets import LOG_START_OFFSETS
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.row_edits import Row
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.reconcile import reconcile
from contents.walked_logs import walk_log
from planning import as_large_tables
from tables.drawn_rows import EPOCHS, draw_announced, draw_listed, draw_stored

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
    listed, announced = draw_listed(random, key, start_offset), draw_announced(random, key, start_offset)
    folder = random.choice(("x/", "x/y/", ""))
    return {
        **draw_stored(random, key, start_offset, listed, announced),
        "end_offset": random.choice((19, 20, 21)),
        "max_timestamp_ms": random.choice((-1, 5)),
        "metadata_max_timestamp_ms": random.choice((5, 6)),
        "segment_leader_epochs": random.choice(EPOCHS),
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


def test_what_only_an_older_rule_refused_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    former = (
        "last offset 9 at byte 152",
        "the last offset of a batch between this entry's position and the next one's; "
        "the batch at byte 1024 ends with offset 139",
    )
    present = _present_text()
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    random = Random(7)
    refused = [
        {**_built(random, at), "index_status": IndexStatus.QUARANTINED.value, "is_listed": True}
        for at in range(len(former) + 1)
    ]
    warehouse.append(SEGMENTS, [{name: row.get(name) for name in SEGMENTS.column_names} for row in refused])
    told = {"reason": Reason.OFFSET_INDEX_INVALID.value}
    rows = [
        _quarantined(random, row) | told | {"expected": text}
        for row, text in zip(refused, (*former, present), strict=True)
    ]
    warehouse.append(QUARANTINE, rows)
    work = iter_pending_work(
        warehouse,
        survey_builds(warehouse),
        retry_quarantined=False,
        decryption_key_ids=frozenset(),
        is_mirror=False,
    )
    assert sorted(each.segment.segment_id for part in work for each in part) == ["segment-0", "segment-1"], present


def _present_text() -> str:
    """What the present rule says that it expects, for an entry inside a batch with ten records."""
    segment = Segment(
        batches=(Batch(base_offset=0, records=tuple(Record(timestamp_ms=1, value=b"") for _ in range(10))),)
    )
    index = read_offset_index(memoryview(struct.pack(">ii", 5, 0)), base_offset=0)
    check = OffsetIndexCheck(index=index, object_name="00000000000000000000.index")
    with pytest.raises(ArchiveError) as refused:
        walk_log(build_segment(segment.batches), start_offset=0, depth=IndexDepth.BATCH, add=check.add)
    return refused.value.expected


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
