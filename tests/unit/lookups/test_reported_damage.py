"""Test what a lookup says about damage that it finds, and how reports of damage are kept for the next build."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.errors import ArchiveError, Reason
from coldlog.lookups.damage.damaged_segments import DamagedSegment, find_damage
from coldlog.model.list_offsets import ErrorCode
from coldlog.model.states import IndexDepth
from coldlog.tables.damage_reports import add_damage_reports, clear_damage_reports, read_damage_reports
from worlds.sidecar_world import EPOCH_MS, SidecarWorld, rising, sidecar_world

ROTTEN_AT = 300
"""A byte of a record in the first batch."""


def damaged_world(folder: Path, depth: IndexDepth) -> SidecarWorld:
    """Two segments; the log of the first one has a changed byte since they were indexed."""
    world = sidecar_world(folder, [rising(50), rising(50, 100)], depths=[depth] * 2, stride_bytes=4096)
    log = world.written[0].log
    content = bytearray(log.read_bytes())
    content[ROTTEN_AT] ^= 1
    log.write_bytes(content)
    return world


@pytest.mark.parametrize("depth", [IndexDepth.SIDECAR, IndexDepth.BATCH])
def test_lookup_names_the_segment_and_the_build_in_which_it_finds_damage(tmp_path: Path, depth: IndexDepth) -> None:
    world = damaged_world(tmp_path, depth)
    answers = world.ask([EPOCH_MS, EPOCH_MS + 5_000])
    assert answers.errors.tolist() == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]
    (damage,) = answers.damages
    first = world.outcomes[0]
    assert damage.row(reported_ms=7) == {
        **{name: first[name] for name in ("topic", "partition", "start_offset", "segment_id")},
        "build_number": 1,
        "reason": Reason.CRC_MISMATCH.value,
        "message": damage.message,
        "object_name": str(world.written[0].log.relative_to(tmp_path / "archive" / "kafka-tiered-storage")),
        "position": 0,
        "expected": damage.expected,
        "found": damage.found,
        "reported_ms": 7,
    }
    assert world.ask([EPOCH_MS + 5_000]).damages == []


def test_what_only_the_reader_cannot_read_is_not_damage(tmp_path: Path) -> None:
    world = sidecar_world(tmp_path, [rising(50)])
    world.written[0].log.unlink()
    answers = world.ask([EPOCH_MS])
    assert (answers.errors.tolist(), answers.damages) == ([ErrorCode.CORRUPT_MESSAGE], [])
    row = {**world.outcomes[0], "served_build_number": 1}
    reported = {each for each in Reason if find_damage(row, ArchiveError(each, "")) is not None}
    assert set(Reason) - reported == {Reason.OBJECT_MISSING, Reason.OBJECT_UNREADABLE, Reason.DECRYPTION_KEY_MISSING}


def test_segment_is_reported_once_a_build_and_reports_that_come_meanwhile_stay(tmp_path: Path) -> None:
    uri = str(tmp_path)
    assert read_damage_reports(uri) == []
    assert list(tmp_path.iterdir()) == [], "a warehouse without reports has no table of them"
    add_damage_reports(uri, [report(build_number=3).row(1)])
    add_damage_reports(uri, [report(build_number=3).row(2), report(build_number=4).row(2)])
    found = read_damage_reports(uri)
    assert [(row["build_number"], row["reported_ms"]) for row in found] == [(3, 1), (4, 2)]
    add_damage_reports(uri, [report(build_number=5).row(3)])
    clear_damage_reports(uri, found)
    assert [row["build_number"] for row in read_damage_reports(uri)] == [5]


def report(build_number: int) -> DamagedSegment:
    texts = dict.fromkeys(("segment_id", "reason", "message", "object_name", "expected", "found"), "x")
    return DamagedSegment(topic="orders", partition=0, start_offset=0, position=0, build_number=build_number, **texts)
