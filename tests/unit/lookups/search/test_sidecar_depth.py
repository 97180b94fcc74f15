"""Test that segments are indexed without a byte of their logs, and that lookups in them are exact with few reads."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.brute_force import find_first_offset, find_first_offset_as_broker
from builders.segment_builder import Batch, Segment, build_batch
from builders.strategies import partitions, timestamps_to_ask
from coldlog.model.list_offsets import ErrorCode, SpecialTimestamp
from coldlog.model.states import IndexDepth
from coldlog.tables.definitions.index.interval_index import INTERVAL_INDEX
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.index.time_index import TIME_INDEX
from drawn_examples import examples
from stores.noting_store import count_requests, take_notes
from worlds.sidecar_world import EPOCH_MS, SidecarWorld, batch, rising, sidecar_world

NOT_FOUND = (int(ErrorCode.LOCAL_REQUIRED), -1)


def found(world: SidecarWorld, timestamp_ms: int, *, broker_compatible: bool = False) -> tuple[int, int]:
    """The error and the offset."""
    answers = world.ask([timestamp_ms], broker_compatible=broker_compatible)
    return int(answers.errors[0]), int(answers.offsets[0])


def log_bytes_read(world: SidecarWorld) -> dict[str, set[int]]:
    """Which bytes of logs were read since the last call."""
    return {name: read for name, read in take_notes(world.notes).items() if name.endswith(".log")}


def test_a_build_reads_the_small_files_and_no_byte_of_a_log(tmp_path: Path) -> None:
    world = sidecar_world(tmp_path, [rising(200), rising(200, 400)], stride_bytes=4096)
    read = take_notes(world.notes)
    assert {Path(name).suffix for name in read} == {".index", ".timeindex", ".snapshot", ".leader_epoch_checkpoint"}
    assert [row["index_depth"] for row in world.outcomes] == ["sidecar", "sidecar"]
    assert world.rows[OFFSET_INDEX.name] == world.rows[TIME_INDEX.name] == []
    intervals = world.rows[INTERVAL_INDEX.name]
    log_bytes = sum(one.log.stat().st_size for one in world.written)
    assert len(intervals) == pytest.approx(log_bytes / 4096, rel=0.3)


def test_what_only_the_log_knows_is_unknown(tmp_path: Path) -> None:
    (row,) = sidecar_world(tmp_path, [rising(20)]).outcomes
    unknown = {name for name, value in row.items() if value is None}
    assert unknown >= {
        "min_timestamp_ms", "max_timestamp_offset", "batch_count", "record_count", "control_batch_count",
        "commit_marker_count", "abort_marker_count", "codecs",
    }  # fmt: skip
    known = {name: row[name] for name in ("end_offset", "max_timestamp_ms", "open_transaction_count", "log_bytes")}
    assert known == {
        "end_offset": 39,
        "max_timestamp_ms": EPOCH_MS + 1900,
        "open_transaction_count": 0,
        "log_bytes": 0,
    }


def test_a_lookup_reads_one_interval_with_one_request(tmp_path: Path) -> None:
    world = sidecar_world(tmp_path, [rising(400)], stride_bytes=4096)
    take_notes(world.notes)
    for at in (0, 1, 57, 200, 398, 399):
        assert found(world, EPOCH_MS + 100 * at - 10) == (0, 2 * at)
        assert count_requests(world.notes) == (1, 0)
        ((_, read),) = log_bytes_read(world).items()
        assert len(read) < 4096 + 3 * 1000
        assert max(read) - min(read) + 1 == len(read)


def test_requests_for_the_same_interval_share_one_read(tmp_path: Path) -> None:
    world = sidecar_world(tmp_path, [rising(400)], stride_bytes=1 << 20)
    take_notes(world.notes)
    answers = world.ask([EPOCH_MS + 100 * at for at in range(400)])
    assert answers.offsets.tolist() == [2 * at for at in range(400)]
    assert count_requests(world.notes) == (1, 0)


@examples(25)
@given(segments=partitions(max_segments=3, max_batches=8), data=st.data())
def test_every_answer_equals_that_of_a_scan(segments: Sequence[Segment], data: st.DataObject) -> None:
    """Also if the maximum of a header is one that no record has: compaction emptied batches of these archives."""
    stride_bytes = data.draw(st.sampled_from((0, 500, 1 << 16)))
    with tempfile.TemporaryDirectory() as folder:
        world = sidecar_world(Path(folder), segments, stride_bytes=stride_bytes)
        asked = sorted({max(0, data.draw(timestamps_to_ask(segments))) for _ in range(12)})
        for is_broker, scan in ((False, find_first_offset), (True, find_first_offset_as_broker)):
            answers = world.ask(asked, broker_compatible=is_broker)
            for at, timestamp_ms in enumerate(asked):
                expected = scan(segments, timestamp_ms, log_start_offset=segments[0].start_offset)
                answer = (answers.offsets[at], answers.leader_epochs[at])
                wanted = (-1, -1) if expected is None else (expected.offset, expected.leader_epoch)
                assert answer == wanted, (timestamp_ms, is_broker)
                assert answers.errors[at] in (ErrorCode.NONE, ErrorCode.LOCAL_REQUIRED)


EMPTIED = Batch(base_offset=4, last_offset_delta=3, stored_max_timestamp_ms=EPOCH_MS + 9000)
"""Compaction removed its records; the header keeps their maximum."""


def test_a_search_without_a_match_goes_on_in_the_log_and_in_the_next_segments(tmp_path: Path) -> None:
    first = Segment(batches=(batch(0, EPOCH_MS), batch(2, EPOCH_MS + 10), EMPTIED, batch(8, EPOCH_MS + 50)))
    second = Segment(batches=(batch(20, EPOCH_MS + 40), batch(21, EPOCH_MS + 60)))
    third = Segment(batches=(batch(30, EPOCH_MS + 100),))
    for folder, depth in enumerate(IndexDepth):
        depths = (IndexDepth.SIDECAR, depth, depth)
        world = sidecar_world(tmp_path / str(folder), [first, second, third], depths=depths)
        assert found(world, EPOCH_MS + 30) == (0, 8)
        assert found(world, EPOCH_MS + 55) == (0, 21)
        assert found(world, EPOCH_MS + 61) == (0, 30)
        assert found(world, EPOCH_MS + 101) == NOT_FOUND
        assert found(world, EPOCH_MS + 55, broker_compatible=True) == NOT_FOUND, "a broker searches one segment"


def test_a_search_that_goes_on_decodes_the_rest_of_a_large_log(tmp_path: Path) -> None:
    """The emptied batch is in the first interval, and the match two windows later."""
    large = tuple(batch(8 + at, EPOCH_MS + at, value=b"x" * 100_000) for at in range(60))
    segment = Segment(batches=(batch(0, EPOCH_MS), batch(2, EPOCH_MS + 10), EMPTIED, *large))
    world = sidecar_world(tmp_path, [segment], stride_bytes=0)
    assert found(world, EPOCH_MS + 59) == (0, 67)


def test_a_segment_answers_for_no_offset_that_another_one_serves(tmp_path: Path) -> None:
    """Another leader wrote the offsets from 40 on anew; the older segment still has its own."""
    other = Segment(batches=(batch(40, EPOCH_MS + 1950), batch(41, EPOCH_MS + 2600), batch(42, EPOCH_MS + 9000)))
    for folder, stride_bytes in enumerate((0, 1 << 20)):
        world = sidecar_world(
            tmp_path / str(folder), [rising(40), other], served_to=[39, 42], stride_bytes=stride_bytes
        )
        assert found(world, EPOCH_MS + 1900) == (0, 38)
        assert found(world, EPOCH_MS + 1901) == (0, 40)
        assert found(world, EPOCH_MS + 2500) == (0, 41)
        assert found(world, EPOCH_MS + 3900) == (0, 42)
    first = Segment(batches=(batch(0, EPOCH_MS), batch(2, EPOCH_MS + 10, EPOCH_MS + 20)))
    world = sidecar_world(tmp_path / "inside", [first, Segment(batches=(batch(3, EPOCH_MS + 15),))], served_to=[2, 3])
    assert world.ask([EPOCH_MS + 11]).timestamps_ms.tolist() == [EPOCH_MS + 15], "the cut is inside a batch"


def test_the_largest_timestamp_is_not_known_if_no_record_has_it(tmp_path: Path) -> None:
    whole = sidecar_world(tmp_path / "whole", [rising(40)])
    assert found(whole, SpecialTimestamp.MAX_TIMESTAMP) == (0, 78)
    emptied = sidecar_world(tmp_path / "emptied", [Segment(batches=(batch(0, EPOCH_MS), EMPTIED))])
    assert found(emptied, SpecialTimestamp.MAX_TIMESTAMP) == (int(ErrorCode.NOT_DECODED), -1)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"count_from": [40]}, id="the log starts inside"),
        pytest.param({"announced": [{"announced_end_offset": None}]}, id="no announced end"),
        pytest.param({"announced": [{"announced_leader_epochs": ()}]}, id="no announced leader epochs"),
        pytest.param({"announced": [{"announced_max_timestamp_ms": EPOCH_MS}]}, id="another announced maximum"),
        pytest.param({"time_index": b""}, id="empty time index"),
        pytest.param({"time_index": b"damage"}, id="damaged time index"),
        pytest.param({"announced": [{"is_log_damaged": True}]}, id="damaged log, restored since"),
    ],
)
def test_a_segment_that_is_not_fit_is_indexed_at_batch_depth(tmp_path: Path, changes: dict[str, Any]) -> None:
    world = sidecar_world(tmp_path, [rising(40)], **changes)
    (outcome,) = world.outcomes
    assert (outcome["outcome"], outcome["index_depth"]) == ("indexed", "batch")
    assert world.rows[INTERVAL_INDEX.name] == []
    assert found(world, EPOCH_MS + 2950) == (0, 60)


def test_a_log_of_another_size_than_announced_is_refused_as_at_batch_depth(tmp_path: Path) -> None:
    (outcome,) = sidecar_world(tmp_path, [rising(40)], announced=[{"announced_size_bytes": 17}]).outcomes
    assert (outcome["outcome"], outcome["reason"]) == ("quarantined", "log_size_differs")


def test_a_large_interval_is_read_in_windows(tmp_path: Path) -> None:
    """The offset index has no entry: a follower may have fetched all at once."""
    batches = tuple(batch(at, EPOCH_MS + at, value=b"x" * 400_000) for at in range(30))
    world = sidecar_world(tmp_path, [Segment(batches=batches, index_interval_bytes=1 << 30)])
    take_notes(world.notes)
    assert found(world, EPOCH_MS + 29) == (0, 29)
    assert count_requests(world.notes) == (4, 0)
    ((_, read),) = log_bytes_read(world).items()
    assert len(read) == world.written[0].log.stat().st_size
    assert found(world, EPOCH_MS + 1) == (0, 1)
    assert count_requests(world.notes) == (1, 0)


@pytest.mark.parametrize("place", ["before the match", "in the match", "after the interval"])
def test_damage_in_what_is_read_is_an_error(tmp_path: Path, place: str) -> None:
    segment = rising(400)
    world = sidecar_world(tmp_path, [segment], stride_bytes=4096)
    (log,) = (one.log for one in world.written)
    positions = [0]
    for each in segment.batches:
        positions.append(positions[-1] + len(build_batch(each)))
    at = positions[{"before the match": 199, "in the match": 200, "after the interval": 300}[place]]
    content = bytearray(log.read_bytes())
    content[at + 100] ^= 1
    log.write_bytes(content)
    expected = (0, 400) if place == "after the interval" else (int(ErrorCode.CORRUPT_MESSAGE), -1)
    assert found(world, EPOCH_MS + 20_000) == expected


def test_another_log_at_the_same_place_is_an_error(tmp_path: Path) -> None:
    """Its batches have their checksums, but do not end where the index says."""
    world = sidecar_world(tmp_path, [rising(400)], stride_bytes=4096)
    (log,) = (one.log for one in world.written)
    batches = [build_batch(each) for each in rising(399, 1).batches]
    log.write_bytes(b"".join(batches) + build_batch(batch(800, EPOCH_MS, EPOCH_MS)))
    assert found(world, EPOCH_MS + 20_000) == (int(ErrorCode.CORRUPT_MESSAGE), -1)
    log.write_bytes(b"".join(batches[:9]))
    assert found(world, EPOCH_MS + 20_000) == (int(ErrorCode.CORRUPT_MESSAGE), -1)


def test_batch_after_the_end_of_its_segment_is_an_error(tmp_path: Path) -> None:
    """No checksum covers a base offset, and no later batch contradicts that of the last one."""
    segment = rising(400)
    world = sidecar_world(tmp_path, [segment, rising(10, 800)], stride_bytes=4096)
    asked_ms = EPOCH_MS + 100 * 399
    assert found(world, asked_ms) == (0, 798)
    log = world.written[0].log
    content = bytearray(log.read_bytes())
    content[len(content) - len(build_batch(segment.batches[-1])) + 5] ^= 1
    log.write_bytes(content)
    assert found(world, asked_ms) == (int(ErrorCode.CORRUPT_MESSAGE), -1)


def test_a_match_before_the_interval_shows_that_the_time_index_is_wrong(tmp_path: Path) -> None:
    """Without its first entries, the index seems to say that no batch before the last interval has a timestamp."""
    whole = sidecar_world(tmp_path / "whole", [rising(400)])
    time_index = whole.written[0].log.with_suffix(".timeindex").read_bytes()
    world = sidecar_world(tmp_path / "cut", [rising(400)], stride_bytes=4096, time_index=time_index[-12:])
    assert [row["index_depth"] for row in world.outcomes] == ["sidecar"]
    answers = world.ask([EPOCH_MS + 20_000])
    assert answers.errors.tolist() == [int(ErrorCode.CORRUPT_MESSAGE)]
    (damage,) = answers.damages
    assert damage.reason == "time_index_invalid"
    assert damage.object_name.endswith(".timeindex")
    assert found(world, EPOCH_MS + 100 * 399) == (0, 798)


@pytest.mark.parametrize("depth", [IndexDepth.SIDECAR, IndexDepth.BATCH])
def test_a_log_that_another_copy_has_replaced_is_an_error_and_no_damage(tmp_path: Path, depth: IndexDepth) -> None:
    """The copy has another segment id, and so another name."""
    world = sidecar_world(tmp_path, [rising(30), rising(30, 60)], depths=[depth] * 2)
    log = world.written[0].log
    log.rename(log.with_name(f"{log.name[:20]}-{'A' * 22}.log"))
    answers = world.ask([EPOCH_MS + 500])
    assert (answers.errors.tolist(), answers.offsets.tolist()) == ([int(ErrorCode.CORRUPT_MESSAGE)], [-1])
    assert not answers.damages
    assert "or replaced in the archive since the last run: run the pipeline" in ErrorCode.CORRUPT_MESSAGE.meaning


def test_the_error_names_both_causes_if_the_offset_index_names_no_end_of_a_batch(tmp_path: Path) -> None:
    """An older log cleaner names the last record that is left of a batch. Nobody replaced the log."""
    batches = [batch(10 * at, *(EPOCH_MS + at for _ in range(10)), value=b"v" * 500) for at in range(4)]
    kept = tuple(
        replace(record, offset=offset) for record, offset in zip(batches[1].records, (10, 12, 15), strict=False)
    )
    batches[1] = replace(batches[1], records=kept, last_offset_delta=9)
    first = len(build_batch(batches[0]))
    index = struct.pack(">iiii", 15, first, 29, first + len(build_batch(batches[1])))
    world = sidecar_world(tmp_path, [Segment(batches=tuple(batches))], stride_bytes=0, offset_index=index)
    assert [row["index_depth"] for row in world.outcomes] == ["sidecar"]
    (damage,) = world.ask([EPOCH_MS + 1]).damages
    assert damage.message == (
        "log does not have the batches that its index files name: it was replaced, or an older log cleaner wrote its "
        "offset index; run the pipeline again, which reads the log"
    )


@pytest.mark.parametrize("depth", [IndexDepth.SIDECAR, IndexDepth.BATCH])
def test_another_leader_epoch_in_the_header_of_the_match_is_an_error(tmp_path: Path, depth: IndexDepth) -> None:
    """No checksum covers it, and consumers compare it with that of the leader."""
    batches = tuple(replace(each, leader_epoch=each.base_offset // 20) for each in rising(30).batches)
    world = sidecar_world(tmp_path, [Segment(batches=batches, index_interval_bytes=1000)], depths=[depth])
    log, asked_ms = world.written[0].log, EPOCH_MS + 100 * 15
    assert (found(world, asked_ms), world.ask([asked_ms]).leader_epochs.tolist()) == ((0, 30), [1])
    content = log.read_bytes()
    position = sum(len(build_batch(each)) for each in batches[:15])
    for leader_epoch in (0, 2, 1 << 24, -2):
        changed = bytearray(content)
        changed[position + 12 : position + 16] = struct.pack(">i", leader_epoch)
        log.write_bytes(changed)
        assert found(world, asked_ms) == (int(ErrorCode.CORRUPT_MESSAGE), -1), leader_epoch


@pytest.mark.parametrize("depth", [IndexDepth.SIDECAR, IndexDepth.BATCH])
def test_a_segment_that_was_deepened_keeps_its_depth_when_it_is_counted_again(
    tmp_path: Path, depth: IndexDepth
) -> None:
    """The log starts inside it now."""
    announced: list[dict[str, object]] = [{"is_decoded": True}]
    world = sidecar_world(tmp_path, [rising(40)], depths=[depth], count_from=[41], announced=announced)
    assert [row["index_depth"] for row in world.outcomes] == ["record"]
    take_notes(world.notes)
    assert found(world, EPOCH_MS + 100 * 20 - 30) == (0, 41)
    assert count_requests(world.notes) == (0, 0), "the tables answer"


def test_damage_behind_an_answer_fails_only_the_requests_that_need_it(tmp_path: Path) -> None:
    """The interval is read in windows, and a request alone reads no window after its answer."""
    batches = tuple(batch(at, EPOCH_MS + at, value=b"x" * 400_000) for at in range(30))
    world = sidecar_world(tmp_path, [Segment(batches=batches, index_interval_bytes=1 << 30)])
    log = world.written[0].log
    content = bytearray(log.read_bytes())
    content[-100] ^= 1
    log.write_bytes(content)
    together = world.ask([EPOCH_MS + 1, EPOCH_MS + 29])
    assert together.errors.tolist() == [0, int(ErrorCode.CORRUPT_MESSAGE)]
    assert together.offsets.tolist() == [1, -1]
    assert found(world, EPOCH_MS + 1) == (0, 1)
