"""Test that every reader without Spark reports damage of the archive once, and answers as well if it may not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coldlog.command.main import main
from coldlog.errors import ColdlogError, RetriableError
from coldlog.fetcher import open_fetcher, open_pool
from coldlog.lookups.damage import reported_damage
from coldlog.lookups.damage.damaged_segments import DamagedSegment
from coldlog.lookups.damage.reported_damage import MOST_REPORTS, DamageReports, reports_to, wait_for_reports
from coldlog.lookups.list_offsets import LookupOptions
from coldlog.lookups.search.batch_lookup import BatchReader
from coldlog.model.fetch import FetchErrorCode, FetchFailure, FetchRequest
from coldlog.model.list_offsets import NEWEST_VERSION, ErrorCode
from coldlog.model.states import IndexDepth
from coldlog.reader import OffsetReader
from coldlog.records.fetch.slices import LogSlice
from coldlog.runtime.settings_sources import load_settings
from coldlog.serve.archive_view import OffsetQuestion
from coldlog.serve.program import open_view
from coldlog.serve.read_quota import ReadQuota
from coldlog.tables.damage_reports import add_damage_reports, read_damage_reports
from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from coldlog.tables.definitions.discrepancies import DISCREPANCIES
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.unrecognized_objects import UNRECOGNIZED_OBJECTS
from coldlog.tiering.rules.quota_config import QuotaConfig
from coldlog.tiering.system_clock import SystemClock
from tables.scattered_tables import write
from unit.lookups.test_reported_damage import damaged_world, report
from worlds.sidecar_world import EPOCH_MS, LIMITS, SidecarWorld

_READ_BY_LOOKUPS = (IndexDepth.SIDECAR, IndexDepth.BATCH)
Ask = Callable[[SidecarWorld, list[str]], None]


def settings_of(world: SidecarWorld, *more: str) -> list[str]:
    return [f"warehouse.uri={world.warehouse}", f"archive.uri={world.warehouse.parent / 'archive'}", *more]


def ask_reader(world: SidecarWorld, assignments: list[str]) -> None:
    report_damage = load_settings("local", assignments).warehouse.report_damage
    batches = BatchReader(open_layout=lambda: world.layout, limits=LIMITS)
    with OffsetReader(world.warehouse, LookupOptions(batches=batches, report_damage=report_damage)) as reader:
        wrong = r"segment \S+ of orders-0 is damaged: .*checksum in \S+\.log at byte 0: expected .* next run of run_"
        with pytest.raises(ColdlogError, match=f"CORRUPT_MESSAGE: {wrong}"):
            reader.offset_for_timestamp("orders", 0, EPOCH_MS)
        for timeout_ms in (None, 60_000):
            asked = [("orders", 0, EPOCH_MS), ("orders", 0, EPOCH_MS + 5_000)]
            rows = reader.list_offsets(asked, timeout_ms=timeout_ms)
            assert [row["error"] for row in rows] == ["CORRUPT_MESSAGE", "NONE"]


def ask_in_time(world: SidecarWorld, _: list[str]) -> None:
    batches = BatchReader(open_layout=lambda: world.layout, limits=LIMITS)
    with OffsetReader(world.warehouse, LookupOptions(batches=batches)) as reader:
        (row,) = reader.list_offsets([("orders", 0, EPOCH_MS)], timeout_ms=60_000)
        assert row["error"] == "CORRUPT_MESSAGE"


def ask_command(world: SidecarWorld, assignments: list[str]) -> None:
    given = [text for assignment in assignments for text in ("--set", assignment)]
    assert main(["lookup", "orders", str(EPOCH_MS), *given]) == 1


def ask_view(world: SidecarWorld, assignments: list[str]) -> None:
    settings = load_settings("local", assignments)
    view = open_view(settings, ReadQuota(QuotaConfig(), SystemClock()))
    question = OffsetQuestion(
        topic="orders", partition=0, timestamp_ms=EPOCH_MS, leader_epoch=-1, is_committed=False, version=NEWEST_VERSION
    )
    for _ in range(2):
        assert [int(each.errors[0]) for each in view.list_offsets([question], view.looks)] == [
            ErrorCode.CORRUPT_MESSAGE
        ]


def fetch(world: SidecarWorld, assignments: list[str]) -> None:
    with open_fetcher(assignments) as fetcher:
        for _ in range(2):
            found = fetcher.fetch_records("orders", 0, 0)
            assert isinstance(found, FetchFailure)
            assert found.error is FetchErrorCode.CORRUPT_MESSAGE


def fetch_of_pool(world: SidecarWorld, assignments: list[str]) -> None:
    with open_pool(assignments) as pool:
        found = pool.fetch_records(FetchRequest(topic="orders", partition=0, offset=0))
        assert isinstance(found, FetchFailure)


def cat(world: SidecarWorld, assignments: list[str]) -> None:
    given = [text for assignment in assignments for text in ("--set", assignment)]
    assert main(["cat", "orders", *given]) == 1


def fetch_of_view(world: SidecarWorld, assignments: list[str]) -> None:
    """An endpoint that passes over damage reports it as well: nobody else would notice it."""
    settings = load_settings("local", [*assignments, "serve.on_gap=skip"])
    view = open_view(settings, ReadQuota(QuotaConfig(), SystemClock()))
    planned = view.plan(FetchRequest(topic="orders", partition=0, offset=0))
    assert isinstance(planned, LogSlice)
    assert not isinstance(view.read(planned), FetchFailure)


LOOKUPS: list[Ask] = [ask_reader, ask_in_time, ask_command, ask_view]
FETCHES: list[Ask] = [fetch, fetch_of_pool, cat, fetch_of_view]


def world_of(folder: Path, depth: IndexDepth) -> SidecarWorld:
    world = damaged_world(folder, depth)
    write(world.warehouse, QUARANTINE, [])
    return world


@pytest.mark.parametrize(
    ("ask", "depth"),
    [(ask, depth) for ask in LOOKUPS for depth in _READ_BY_LOOKUPS]
    + [(ask, depth) for ask in FETCHES for depth in IndexDepth],
)
def test_reader_that_meets_damage_reports_its_segment(tmp_path: Path, ask: Ask, depth: IndexDepth) -> None:
    world = world_of(tmp_path, depth)
    ask(world, settings_of(world))
    assert wait_for_reports(60)
    (row,) = read_damage_reports(str(world.warehouse))
    assert (row["segment_id"], row["build_number"]) == (world.outcomes[0]["segment_id"], 1)
    assert (row["reason"], row["position"]) == ("crc_mismatch", 0)
    assert row["object_name"] == str(world.written[0].log.relative_to(tmp_path / "archive" / "kafka-tiered-storage"))


def test_damage_that_a_reader_has_reported_is_listed_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = world_of(tmp_path, IndexDepth.SIDECAR)
    segment = world.outcomes[0]["segment_id"]
    for table in (DISCREPANCIES, PARTITION_METADATA, SEGMENT_EVENTS, UNRECOGNIZED_OBJECTS):
        write(world.warehouse, table, [])
    given = [text for each in settings_of(world) for text in ("--set", each)]
    assert main(["problems", *given]) == 0
    cat(world, settings_of(world))
    assert wait_for_reports(60)
    # A report of another build of the segment is void.
    add_damage_reports(str(world.warehouse), [{**report(2).row(1), "segment_id": segment, "build_number": 9}])
    for asked, count in ([], 1), (["orders"], 1), (["-p", "1"], 0):
        capsys.readouterr()
        assert main(["problems", "--json", *asked, *given]) == (1 if count else 2)
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["segment_id"], row["kind"], row["severity"]) for row in listed] == (
            [(segment, "crc_mismatch", "error")] * count
        )
    assert main(["problems", *given, "--set", "warehouse.as_of=2100-01-01T00:00Z"]) == 0


@pytest.mark.parametrize("ask", [ask_reader, ask_command, ask_view, fetch])
def test_reader_that_is_told_to_write_nothing_does_not_report(tmp_path: Path, ask: Ask) -> None:
    world = world_of(tmp_path, IndexDepth.SIDECAR)
    ask(world, settings_of(world, "warehouse.report_damage=false"))
    assert wait_for_reports(60)
    assert not (world.warehouse / DAMAGE_REPORTS.name).exists()


@pytest.mark.parametrize("ask", [ask_reader, ask_view, cat, fetch_of_view])
def test_reader_that_may_not_write_answers_as_well_and_says_so_once(
    tmp_path: Path, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_of(tmp_path, IndexDepth.SIDECAR)
    (world.warehouse / DAMAGE_REPORTS.name).write_text("in the way of the table")
    for _ in range(2):
        ask(world, settings_of(world))
        assert wait_for_reports(60)
    damaged, refused = [each.message for each in caplog.records if each.name == reported_damage.__name__]
    assert damaged.startswith(f"segment {world.outcomes[0]['segment_id']} of orders-0 is damaged: batch does not match")
    assert refused.startswith("damage is not reported to the next run of run_pipeline: ")
    assert "warehouse.report_damage=false" in refused


def test_reader_of_a_past_moment_does_not_report(tmp_path: Path) -> None:
    """Its builds may be replaced since."""
    world = world_of(tmp_path, IndexDepth.SIDECAR)
    batches = BatchReader(open_layout=lambda: world.layout, limits=LIMITS)
    with OffsetReader(world.warehouse, LookupOptions(batches=batches), as_of_ms=9 * 10**14) as reader:
        (row,) = reader.list_offsets([("orders", 0, EPOCH_MS)])
        assert row["error"] == "CORRUPT_MESSAGE"
    fetch(world, settings_of(world, "warehouse.as_of=2100-01-01T00:00Z"))
    assert wait_for_reports(60)
    assert not (world.warehouse / DAMAGE_REPORTS.name).exists()


class _Written:
    """What was to be written, with a failure or a wait instead of it."""

    def __init__(self) -> None:
        self.segments: list[list[str]] = []
        self.failure: BaseException | None = None
        self.may_write = threading.Event()
        self.may_write.set()

    def __call__(self, _: str, damages: list[DamagedSegment]) -> None:
        assert self.may_write.wait(60)
        self.segments.append([damage.segment_id for damage in damages])
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Written]:
    found = _Written()
    monkeypatch.setattr(reported_damage, "_write", found)
    yield found
    found.may_write.set()


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def damage_of(*numbers: int, build_number: int = 1) -> list[DamagedSegment]:
    return [
        replace(report(build_number), segment_id=f"{number}", reason="crc_mismatch", start_offset=number)
        for number in numbers
    ]


def test_segment_is_reported_once_a_process_and_again_from_a_later_build(written: _Written) -> None:
    reports = DamageReports("nowhere", _Clock())
    for damages in (damage_of(1), damage_of(1, 2, 1), damage_of(2), damage_of(1, build_number=2)):
        reports.add(damages)
        assert reports.wait(60)
    assert written.segments == [["1"], ["2"], ["1"]]
    assert reports_to("here") is reports_to("here/"), "readers of a process share its reports"


def test_no_reader_waits_for_a_store_that_hangs(written: _Written) -> None:
    reports = DamageReports("nowhere", _Clock())
    written.may_write.clear()
    for number in range(5):
        reports.add(damage_of(number))
    assert not reports.wait(0)
    written.may_write.set()
    assert reports.wait(60)
    assert [each for segments in written.segments for each in segments] == ["0", "1", "2", "3", "4"]
    assert len(written.segments) <= 3, "what waits is written at once"


def test_at_most_a_hundred_segments_are_reported_in_an_hour(written: _Written) -> None:
    clock, said = _Clock(), list[str]()
    reports = DamageReports("nowhere", clock)
    reports.tell = said.append
    reports.add(damage_of(*range(MOST_REPORTS + 50)))
    assert reports.wait(60)
    assert sum(map(len, written.segments)) == MOST_REPORTS
    assert len([text for text in said if "is damaged" in text]) == MOST_REPORTS
    clock.now = 3600
    reports.add(damage_of(*range(MOST_REPORTS + 50)))
    assert reports.wait(60)
    assert sum(map(len, written.segments)) == MOST_REPORTS + 50, "those that were left out"


@pytest.mark.parametrize("failure", [RetriableError("the store is down"), OSError("full"), KeyboardInterrupt()])
def test_report_that_failed_is_tried_again_after_a_pause(written: _Written, failure: BaseException) -> None:
    clock, said = _Clock(), list[str]()
    reports = DamageReports("nowhere", clock)
    reports.tell = said.append
    written.failure = failure
    reports.add(damage_of(1))
    assert reports.wait(60)
    reports.add(damage_of(1, 2))
    assert reports.wait(60)
    assert written.segments == [["1"]], "not at every question"
    assert [text.partition(" is ")[0] for text in said] == ["segment 1 of orders-0", "damage", "segment 2 of orders-0"]
    clock.now = 600
    reports.add(damage_of(1))
    assert reports.wait(60)
    assert len(said) == 3, "the same failure is said once"
    clock.now, written.failure = 1200, None
    reports.add(damage_of(1, 2))
    reports.add(damage_of(1, 2))
    assert reports.wait(60)
    assert written.segments == [["1"], ["1"], ["1", "2"]]
    assert said[3:] == ["2 damaged segments reported to the next run of run_pipeline (table damage_reports)"]


def test_question_is_answered_if_no_thread_can_start_or_nobody_reads_what_is_said(
    written: _Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def is_closed(_: str) -> None:
        raise BrokenPipeError

    reports = DamageReports("nowhere", _Clock())
    reports.tell = is_closed
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        reports.add(damage_of(1))
    assert reports.wait(0)
    reports = DamageReports("nowhere", _Clock())
    reports.tell = is_closed
    reports.add(damage_of(1))
    assert reports.wait(60)
    assert written.segments == [["1"]]
