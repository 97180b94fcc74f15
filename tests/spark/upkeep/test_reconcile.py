"""Test every kind of discrepancy, segments without one, the archive of a real broker, and repaired segments."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from builders import discordant_archive
from builders.discordant_archive import COPIED, Cluster, remove_objects, write_discordant
from builders.segment_builder import uuid_text_of
from coldlog.archive.metadata_log import METADATA_TOPIC
from coldlog.archive.open_archive import open_archive
from coldlog.command.main import main
from coldlog.formats.kafka.remote_log.remote_log_metadata import encode_event
from coldlog.indexing.builds.build import build_indexes
from coldlog.indexing.events.event_rows import event_row, lost_row
from coldlog.indexing.pipeline import reconcile_archive
from coldlog.indexing.publish.materialize import materialize_metadata
from coldlog.indexing.scan.scan import scan_segments
from coldlog.indexing.show import show_errors
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.discrepancies import DISCREPANCIES, DiscrepancyKind, Severity
from coldlog.tables.definitions.partition_metadata import PARTITION_METADATA
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.reconcile import ReconcileSummary, reconcile
from contents.table_contents import rows_in
from worlds.golden_warehouse import build_settings
from worlds.kafka_sample import true_segments

LAYOUT = "local_tiered_storage"
EXPECTED = discordant_archive.DISCREPANCIES
Row = dict[str, object]


def _rows(warehouse: Warehouse) -> list[Row]:
    """In the order of their key, in which NULL is the least."""
    rows = rows_in(warehouse, DISCREPANCIES)
    return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in DISCREPANCIES.key])


def _told(rows: Iterable[Row]) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in ("topic", "start_offset", "kind", "expected", "found")) for row in rows]


def _publish(cluster: Cluster, warehouse: Warehouse) -> None:
    """Append the new announcements to `segment_events`, and list the archive."""
    known = sum(row["metadata_partition"] == 0 for row in rows_in(warehouse, SEGMENT_EVENTS))
    rows = [
        {"metadata_partition": 0, "metadata_offset": offset, **event_row(encode_event(event))}
        for offset, event in enumerate(cluster.events)
    ][known:]
    if not known:
        rows += [{"metadata_partition": 1, "metadata_offset": 9, **lost_row()}]
        rows += [
            {"metadata_partition": 1, "metadata_offset": offset, **event_row(encode_event(event))}
            for offset, event in enumerate(cluster.events_after_lost_ones, start=10)
        ]
        rows.append({"metadata_partition": 2, "metadata_offset": 0, **event_row(b"?")})
    warehouse.append(SEGMENT_EVENTS, warehouse.local(SEGMENT_EVENTS, rows))
    scan_segments(warehouse, open_archive(str(cluster.archive), LAYOUT))


def _commits(warehouse: Warehouse) -> int:
    return len(list((Path(warehouse.uri) / DISCREPANCIES.name / "_delta_log").glob("*.json")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """A cluster with every kind of problem, and what its first reconciliation printed and wrote."""

    cluster: Cluster
    warehouse: Warehouse
    summary: ReconcileSummary
    rows: list[Row]


@pytest.fixture(scope="module")
def reconciled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reconciled:
    folder = tmp_path_factory.mktemp("reconcile")
    cluster = write_discordant(folder / "archive")
    warehouse = Warehouse(spark=spark, uri=str(folder / "warehouse"))
    warehouse.create_missing()
    _publish(cluster, warehouse)
    build_indexes(warehouse, open_archive(str(cluster.archive), LAYOUT), build_settings())
    cluster.events += cluster.late_events
    _publish(cluster, warehouse)
    materialize_metadata(warehouse)
    summary = reconcile(warehouse)
    return Reconciled(cluster=cluster, warehouse=warehouse, summary=summary, rows=_rows(warehouse))


def test_each_kind_of_discrepancy_is_found_and_nothing_else(reconciled: Reconciled) -> None:
    assert _told(reconciled.rows) == EXPECTED
    assert {kind for _, _, kind, _, _ in EXPECTED} == set(DiscrepancyKind), "every kind occurs"
    for row in reconciled.rows:
        kind = next(each for each in DiscrepancyKind if each.value == row["kind"])
        assert (row["severity"], row["advice"]) == (kind.severity, kind.advice)
        assert row["topic_id"] == uuid_text_of(str(row["topic"]))
    summary = reconciled.summary
    assert (summary.new_count, summary.mended_count) == (26, 0)
    assert [summary.count_of(severity) for severity in Severity] == [9, 13, 4]
    assert (summary.counts["copy_unfinished"], summary.counts["orphan"]) == (2, 2)


def test_resolved_rows_are_removed_others_keep_their_time_and_no_change_makes_no_commit(reconciled: Reconciled) -> None:
    cluster, warehouse = reconciled.cluster, reconciled.warehouse
    commits = _commits(warehouse)
    assert reconcile(warehouse).new_count == 0
    assert _commits(warehouse) == commits, "a run that finds what is known writes nothing"

    shutil.copytree(cluster.archive / "parked", cluster.written["missing"][0].stem.parent, dirs_exist_ok=True)
    remove_objects(cluster.written["orphan"][1])
    cluster.update(cluster.written["copying"][0], COPIED)
    cluster.written["unfinished"][0].log.unlink()
    _publish(cluster, warehouse)
    summary = reconcile(warehouse)
    assert (summary.new_count, summary.mended_count) == (0, 3)
    assert _commits(warehouse) == commits + 1, "what goes and what changes is one commit"

    mended = {"missing", "orphan", "copying"}
    expected = [
        (*row[:4], "COPY_SEGMENT_STARTED, 3 objects") if row[0] == "unfinished" else row
        for row in EXPECTED
        if row[0] not in mended
    ]
    rows = _rows(warehouse)
    assert _told(rows) == expected
    first_seen = {row["topic"]: row["first_seen_ms"] for row in reconciled.rows}
    assert all(row["first_seen_ms"] == first_seen[row["topic"]] for row in rows)


def test_the_job_shows_every_problem_and_fails_with_fail_on(
    reconciled: Reconciled,
) -> None:
    cluster, warehouse, results = reconciled.cluster, reconciled.warehouse, io.StringIO()

    progress = io.StringIO()

    def job(fail_on: str | None) -> Job:
        console = Console(progress=progress, results=results)
        settings = load_settings("local", [f"warehouse.uri={warehouse.uri}"])
        arguments = argparse.Namespace(fail_on=fail_on)
        return Job(spark=warehouse.spark, settings=settings, arguments=arguments, console=console)

    assert (reconcile_archive(job("error")), reconcile_archive(job(None))) == (1, 0)
    errors = sum(row["severity"] == "error" for row in _rows(warehouse))
    assert f"reconcile   {errors + 2} errors, " in progress.getvalue(), "gaps are errors, too"
    problems = warehouse.spark.table("coldlog.archive_problems").toArrow().to_pylist()
    places = [(row["topic"], -1 if row["start_offset"] is None else row["start_offset"]) for row in problems]
    assert _problems_of_command(warehouse.uri) == sorted(map(_facts, problems))
    order = [(list(Severity).index(row["severity"]), *place) for row, place in zip(problems, places, strict=True)]
    assert order == sorted(order), "the worst come first"
    by_topic = {row["topic"]: row for row in problems}
    lost = {row["kind"]: row for row in problems if row["kind"] in ("events_lost", "segment_not_found")}
    discrepancies = [
        row
        for row in problems
        if row["topic"] not in ("broken", "gap") and row["kind"] not in (*lost, "offset_gap", "event_unreadable")
    ]
    assert sorted(_told(discrepancies)) == sorted(_told(_rows(warehouse)))
    gap, broken = by_topic["gap"], by_topic["broken"]
    assert (gap["start_offset"], gap["kind"], gap["expected"]) == (8, "offset_gap", "offsets 8 to 15")
    assert sum((row["gap_count"] or 0) > 0 for row in rows_in(warehouse, PARTITION_METADATA)) == 2
    unfound = cluster.written["forgotten"][2].segment_id
    assert (lost["segment_not_found"]["topic"], lost["segment_not_found"]["segment_id"]) == ("forgotten", unfound)
    assert [lost[kind]["severity"] for kind in ("segment_not_found", "events_lost")] == ["error", "warning"]
    assert {(row["topic"], row["partition"]) for row in problems if row["kind"] == "event_unreadable"} == {
        (METADATA_TOPIC, 2)
    }
    assert (lost["events_lost"]["topic"], lost["events_lost"]["start_offset"]) == (METADATA_TOPIC, 9)
    assert (broken["severity"], broken["kind"]) == ("error", "log_truncated")
    assert "00000000000000000000" in broken["found"]
    assert "restore the missing files" in results.getvalue()

    results.truncate(0)
    show_errors(job(None), warehouse)
    shown = results.getvalue()
    assert "size_differs" in shown
    assert "stuck" not in shown, "no error, and not shown behind a run of the pipeline"


def test_severities_are_compared_by_how_grave_they_are() -> None:
    assert [each.is_as_grave_as(Severity.WARNING) for each in Severity] == [True, True, False]
    assert [each.is_as_grave_as(Severity.ERROR) for each in Severity] == [True, False, False]


def test_archive_of_a_real_broker_has_only_the_copy_that_a_kill_interrupted(golden_with_events: Warehouse) -> None:
    [dangling] = true_segments("COPY_SEGMENT_STARTED")
    [row] = rows_in(golden_with_events, DISCREPANCIES)
    assert (row["topic"], row["kind"], row["severity"]) == ("crashy-upload", "copy_unfinished", "warning")
    assert (row["segment_id"], row["start_offset"]) == (dangling["segment_id"], dangling["start_offset"])


def _facts(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        str(row[name])
        for name in (
            "severity",
            "kind",
            "topic",
            "partition",
            "start_offset",
            "segment_id",
            "expected",
            "found",
            "advice",
        )
    )


def _problems_of_command(uri: str) -> list[tuple[str, ...]]:
    """Return the problems that `coldlog problems` lists, without Spark."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert main(["problems", "--json", "-w", uri]) == 1
    return sorted(_facts(json.loads(line)) for line in output.getvalue().splitlines())
