"""Test that expectations are met by good tables, fail on broken ones, and are checked only for changed rows."""

from __future__ import annotations

import argparse
import io
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from builders.archive_writer import TopicPartition, write_archive
from builders.segment_builder import Batch, Record, Segment
from coldlog.errors import ColdlogError
from coldlog.indexing.pipeline import validate
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.definitions.catalog import ALL_TABLES, INDEX_TABLES
from coldlog.tables.definitions.index.offset_index import OFFSET_INDEX
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.validation_results import VALIDATION_RESULTS
from coldlog.tables.delta.warehouse import Warehouse
from coldlog.upkeep.checkpoint import Checkpoints, Verdict
from coldlog.upkeep.data_docs import data_docs_folder, data_docs_place
from coldlog.upkeep.expectation_suites import ExpectationSeverity, Suite, View, load_suites
from coldlog.upkeep.validate import ALL_BUILDS, ValidationSummary, validate_tables, view_rows
from contents.table_contents import rows_in, table_in
from damage.broken_tables import BREAKAGES, WHOLE, World, place_worlds, world_of
from planning import as_large_tables
from servers.s3_server import Bucket
from worlds.golden_warehouse import run_pipeline

pytestmark = pytest.mark.timeout(1800)  # the sample is built three times

SUITES = {suite.table: suite for suite in load_suites()}
SHALLOW, WITH_EVENTS = "<golden at batch depth>", "<golden with events>"
SIDECAR = "<golden at sidecar depth>"
AIVEN, AIVEN_SHALLOW, AIVEN_SIDECAR = "<aiven>", "<aiven at batch depth>", "<aiven at sidecar depth>"
SAMPLE_ROWS = 2_000
EVERY_ID = [f"{suite.table}.{each.id}" for suite in SUITES.values() for each in suite.expectations]


@pytest.fixture(scope="module")
def rows_of_views(
    golden_shallow: Warehouse,
    golden_with_events: Warehouse,
    golden_sidecar: Warehouse,
    aiven: Warehouse,
    aiven_shallow: Warehouse,
    aiven_sidecar: Warehouse,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[View, pa.Table]:
    """What is checked: all broken worlds, the good one, and six whole warehouses."""
    folder = tmp_path_factory.mktemp("broken")
    worlds: World = place_worlds(world_of(golden_with_events), BREAKAGES)
    good = {SHALLOW: golden_shallow, WITH_EVENTS: golden_with_events, SIDECAR: golden_sidecar}
    good |= {AIVEN: aiven, AIVEN_SHALLOW: aiven_shallow, AIVEN_SIDECAR: aiven_sidecar}
    views = {}
    for table in ALL_TABLES:
        schema = pa.schema([field.with_nullable(True) for field in table.arrow_schema])
        rows = [pa.Table.from_pylist(worlds[table.name], schema=schema)]
        for number, (world, warehouse) in enumerate(good.items(), start=1):
            rows.append(_as_world(world, number, table_in(warehouse, table)).select(schema.names).cast(schema))
        views[table.name] = f"checked_{table.name}"
        # One file: each view is planned over the tables that it reads.
        pq.write_table(pa.concat_tables(rows), folder / f"{table.name}.parquet")
        checked = golden_with_events.spark.read.parquet(str(folder / f"{table.name}.parquet"))
        checked.createOrReplaceTempView(views[table.name])
    return {
        view: view_rows(golden_with_events, view, views, ALL_BUILDS).toArrow()
        for suite in SUITES.values()
        for view in suite.views
    }


def _check(view: View, rows: pa.Table | DataFrame) -> dict[str, Verdict]:
    """The verdict on every expectation of a view."""
    (suite,) = (suite for suite in SUITES.values() if view in suite.views)
    checked = Checkpoints(suites=(), sample_rows=SAMPLE_ROWS).check(view, suite.of_view(view), rows)
    return {f"{suite.table}.{each.expectation.id}": each for each in checked}


@pytest.fixture(scope="module")
def verdicts(rows_of_views: dict[View, pa.Table]) -> dict[str, Verdict]:
    """The verdict on every expectation."""
    return {name: verdict for view, rows in rows_of_views.items() for name, verdict in _check(view, rows).items()}


def _as_world(world: str, number: int, rows: pa.Table) -> pa.Table:
    """The rows of a table, with topic names of this world, which has this number."""
    for name in {"topic", "run_id", "name"} & {*rows.column_names}:
        at = rows.column_names.index(name)
        rows = rows.set_column(at, name, pc.binary_join_element_wise(world, rows[name], ""))
    if "metadata_partition" in rows.column_names:
        # Those of broken worlds are their numbers.
        at = rows.column_names.index("metadata_partition")
        moved = pc.add(rows["metadata_partition"], pa.scalar(1_000_000 * number, rows["metadata_partition"].type))
        rows = rows.set_column(at, "metadata_partition", moved)
    return rows


def _worlds_named(verdict: Verdict) -> set[str]:
    """The worlds of the rows that do not meet the expectation."""
    texts = [str(value) for row in verdict.sample for value in row.values()]
    return {text[: text.index(">") + 1] for text in texts if text.startswith("<")}


@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (SHALLOW, set()),
        # A deletion that was finished was started once more; brokers dropped that event, and so does coldlog.
        (WITH_EVENTS, {"segments.no_event_was_dropped", "segment_events.transition_is_valid"}),
        (SIDECAR, {"segments.no_event_was_dropped", "segment_events.transition_is_valid"}),
        (AIVEN, set()),
        (AIVEN_SHALLOW, set()),
        (AIVEN_SIDECAR, set()),
    ],
)
def test_good_tables_meet_every_expectation_except_those_that_the_broker_itself_breaks(
    verdicts: dict[str, Verdict], world: str, expected: set[str]
) -> None:
    assert set(verdicts) == set(EVERY_ID)
    assert {name for name, each in verdicts.items() if world in _worlds_named(each)} == expected
    assert {verdicts[name].expectation.severity for name in expected} <= {ExpectationSeverity.WARNING}


@pytest.mark.parametrize("name", ["segment_events_rows", "unrecognized_objects_rows"])
def test_rows_that_stay_in_spark_get_the_same_verdicts(
    spark: SparkSession, rows_of_views: dict[View, pa.Table], name: str
) -> None:
    """These two views have every type of expectation that there is."""
    ((view, rows),) = ((view, rows) for view, rows in rows_of_views.items() if view.name == name)

    def facts(verdict: Verdict) -> object:
        return verdict.is_met, verdict.unexpected_count, verdict.problem, sorted(map(repr, verdict.sample))

    found, in_spark = _check(view, rows), _check(view, spark.createDataFrame(rows))
    assert {name: facts(each) for name, each in found.items()} == {name: facts(each) for name, each in in_spark.items()}
    assert any(not each.is_met for each in found.values())


def test_there_is_a_breakage_for_every_expectation() -> None:
    assert sorted(BREAKAGES) == sorted(EVERY_ID)


@pytest.mark.parametrize("name", EVERY_ID)
def test_expectation_fails_on_tables_broken_for_it(verdicts: dict[str, Verdict], name: str) -> None:
    verdict = verdicts[name]
    assert verdict.problem is None
    assert not verdict.is_met
    assert verdict.unexpected_count is not None
    assert verdict.unexpected_count < SAMPLE_ROWS, "the sample is all that is not as expected"
    assert f"<{name}>" in _worlds_named(verdict), verdict.sample[:5]
    assert WHOLE not in _worlds_named(verdict)


def _segment(start: int) -> Segment:
    batches = []
    for base in range(start, start + 8, 2):
        records = (Record(timestamp_ms=1_000 + base, value=b"v"), Record(timestamp_ms=1_001 + base))
        batches.append(Batch(base_offset=base, records=records))
    return Segment(batches=tuple(batches), index_interval_bytes=0)


ORDERS = TopicPartition(topic="orders", partition=0)
_FEW = [SUITES[table.name] for table in INDEX_TABLES]


def _looked_at(summary: ValidationSummary) -> dict[str, object]:
    return {t.table: None if t.scope is None else (t.row_count, t.scope.after_build) for t in summary.tables}


def _failed(summary: ValidationSummary) -> set[str]:
    return {f"{t.table}.{v.expectation.id}" for t in summary.tables for v in t.verdicts if not v.is_met}


def _update(warehouse: Warehouse, change: str) -> None:
    warehouse.spark.sql(f"UPDATE {warehouse.identifier(OFFSET_INDEX)} SET {change} WHERE base_offset = 10")


@pytest.fixture(scope="module")
def indexed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small archive, `archive`, and its index, `warehouse`."""
    folder = tmp_path_factory.mktemp("indexed")
    write_archive(folder / "archive", {ORDERS: [_segment(0), _segment(8)]})
    run_pipeline(spark, folder / "archive", folder / "warehouse")
    return folder


@pytest.fixture
def small(spark: SparkSession, indexed: Path, tmp_path: Path) -> Warehouse:
    """A copy of that index."""
    return Warehouse(spark=spark, uri=str(shutil.copytree(indexed / "warehouse", tmp_path / "warehouse")))


def test_validation_checks_only_changes_and_checks_failures_again(
    spark: SparkSession, small: Warehouse, tmp_path: Path
) -> None:
    archive, warehouse = tmp_path / "archive", small
    whole = {"offset_index": (8, -1), "time_index": (16, -1), "txn_index": (0, -1), "interval_index": (0, -1)}
    first = validate_tables(warehouse, _FEW)
    assert (_looked_at(first), _failed(first)) == (whole, set())
    nothing = dict.fromkeys(whole)
    assert _looked_at(validate_tables(warehouse, _FEW)) == nothing, "nothing new, no row looked at"
    assert warehouse.read(VALIDATION_RESULTS).select("run_id").distinct().count() == 1, "and nothing written"
    full = validate_tables(warehouse, [SUITES["time_index"]], is_full=True)
    assert _looked_at(full) == {"time_index": whole["time_index"]}

    write_archive(archive, {ORDERS: [_segment(0), _segment(8), _segment(16)]})
    run_pipeline(spark, archive, tmp_path / "warehouse")
    grown = validate_tables(warehouse, _FEW)
    new = {"offset_index": (4, 1), "time_index": (8, 1), "txn_index": (0, 1), "interval_index": (0, 1)}
    assert (_looked_at(grown), _failed(grown)) == (new, set()), "rows of the new build alone"

    _update(warehouse, "position = position + 1")
    spoiled = validate_tables(warehouse, [SUITES["offset_index"]])
    assert _looked_at(spoiled) == {"offset_index": (12, -1)}, "rows changed in place are looked at, all of them"
    assert _failed(spoiled) == {"offset_index.positions_touch"}
    (table,) = spoiled.tables
    (verdict,) = (each for each in table.verdicts if not each.is_met)
    assert verdict.unexpected_count == 1
    assert verdict.sample[0]["start_offset"] == 8
    assert (verdict.sample[0]["first_wrong_offset"], verdict.sample[0]["misplaced_batch_count"]) == (10, 2)
    with as_large_tables():
        again = validate_tables(warehouse, [SUITES["offset_index"]])
    assert (_looked_at(again), _failed(again)) == (_looked_at(spoiled), _failed(spoiled)), (
        "what was wrong is not forgotten, and rows that stay in Spark give the same"
    )
    assert [each.verdicts for each in again.tables] == [each.verdicts for each in spoiled.tables]
    _update(warehouse, "position = position - 1")
    assert _failed(validate_tables(warehouse, [SUITES["offset_index"]])) == set()
    assert _looked_at(validate_tables(warehouse, [SUITES["offset_index"]])) == {"offset_index": None}

    index, batch = warehouse.read(OFFSET_INDEX), "base_offset = 10"
    warehouse.append(OFFSET_INDEX, index.where(batch))
    repeated = validate_tables(warehouse, [SUITES["offset_index"]])
    assert _looked_at(repeated) == {"offset_index": (13, -1)}, (
        "rows added to an old build are looked at, and all others"
    )
    assert "offset_index.key_is_unique" in _failed(repeated)


@pytest.fixture
def job(small: Warehouse) -> Job:
    """The job validate_tables over a small warehouse that was built by a run."""
    settings = load_settings("local", [f"warehouse.uri={small.uri}"])
    console = Console(progress=io.StringIO(), results=io.StringIO())
    return Job(spark=small.spark, settings=settings, arguments=argparse.Namespace(full=False), console=console)


def _text(stream: object) -> str:
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_job_shows_each_table_writes_pages_and_fails_only_on_critical_failures(
    job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    warehouse = Warehouse(spark=job.spark, uri=job.settings.warehouse_uri)
    identifier = warehouse.identifier(OFFSET_INDEX)
    # The last batch moves on by two: a gap, which is a warning, and another end than the segment's, which is critical.
    job.spark.sql(f"UPDATE {identifier} SET base_offset = 16, last_offset = 17 WHERE base_offset = 14")
    with pytest.raises(ColdlogError, match="critical expectation.* not met: .*offset_index.end_offset_is_the_segments"):
        validate(job)
    said = "".join(capfd.readouterr()).splitlines()
    assert [line for line in said if " WARN UpdateCommand" not in line] == [], "Great Expectations is silent"
    shown = _text(job.console.results)
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert lines["txn_index"] == ["txn_index", lines["txn_index"][1], "0", "all", "11", "11", "0", "0"]
    assert lines["offset_index"][2:5] == ["8", "all", "28"]
    assert "end_offset=15 end_offset_of_batches=17" in shown.replace("  ", " ")
    (warned,) = (line for line in shown.splitlines() if line.startswith("warning"))
    assert "offsets_touch" in warned
    results = rows_in(warehouse, VALIDATION_RESULTS)
    assert {f"{row['table_name']}.{row['expectation_id']}" for row in results} == set(EVERY_ID)
    (row,) = (row for row in results if row["expectation_id"] == "offsets_touch")
    assert (row["severity"], row["success"], row["unexpected_count"], row["row_count"]) == ("warning", False, 1, 8)
    assert json.loads(row["sample"])[0]["start_offset"] == 8
    assert json.loads(row["read_versions"])["offset_index"] == row["table_version"]
    pages = Path(job.settings.warehouse_uri) / "data_docs"
    page = next((pages / "validations" / "offset_index_segments").rglob("*.html")).read_text(encoding="utf-8")
    assert "Each batch begins directly after the previous batch" in page
    assert "offset_index_segments" in (pages / "index.html").read_text(encoding="utf-8")
    assert warehouse.read(JOB_RUNS).where("outcome = 'failed' AND error LIKE '%not met%'").count() == 1

    job.spark.sql(f"UPDATE {identifier} SET base_offset = 14, last_offset = 15 WHERE base_offset = 16")
    job.spark.sql(f"UPDATE {warehouse.identifier(JOB_RUNS)} SET finished_ms = started_ms - 1")
    validate(job)  # a warning alone fails nothing
    (warned,) = (line for line in _text(job.console.results)[len(shown) :].splitlines() if line.startswith("warning"))
    assert "ends_behind_its_start" in warned
    assert warehouse.read(JOB_RUNS).where("outcome = 'succeeded' AND job = 'validate_tables'").count() == 1


def test_pages_are_written_to_a_bucket_and_pages_of_older_results_are_removed(job: Job, bucket: Bucket) -> None:
    settings = load_settings(
        "local", [f"warehouse.uri={job.settings.warehouse_uri}", f"validation.data_docs_uri={bucket.uri('pages')}"]
    )
    warehouse = Warehouse(spark=job.spark, uri=settings.warehouse_uri)
    bucket.put({"pages/notes.txt": b"of somebody else", "pages/validations/old.html": b"of long ago"})
    place = data_docs_place(settings)
    for names in (("quarantine", "log_start_offsets"), ("quarantine",)):
        with data_docs_folder(place) as folder:
            suites = [SUITES[name] for name in names]
            assert validate_tables(warehouse, suites, is_full=True, data_docs=folder).has_data_docs
        keys = bucket.keys()
        pages = {key for key in keys if key.startswith("pages/validations/")}
        assert len({key.split("/")[2] for key in pages if key.endswith(".html")}) == 2, (
            "of both tables, checked now or before"
        )
        assert len(pages) == 2
        assert {"pages/notes.txt", "pages/index.html"} <= keys
    index = bucket.client.get_object(Bucket=bucket.name, Key="pages/index.html")
    assert index["ContentType"] == "text/html"
    assert b"log_start_offsets_rows" in index["Body"].read()


def test_a_table_without_expectations_is_shown_without_verdicts(spark: SparkSession, tmp_path: Path) -> None:
    suite = Suite(table="segments", views=(), expectations=(), digest="")
    warehouse = Warehouse(spark=spark, uri=str(tmp_path / "warehouse"))
    warehouse.create_missing()
    summary = validate_tables(warehouse, [suite])
    assert [(table.table, table.scope is None, table.verdicts) for table in summary.tables] == [("segments", False, ())]


@pytest.mark.parametrize("is_in_driver", [True, False])
def test_expectation_that_cannot_be_evaluated_fails_with_the_reason(spark: SparkSession, is_in_driver: bool) -> None:
    suite: Suite = SUITES["log_start_offsets"]
    frame = spark.createDataFrame([("orders", 0)], "topic STRING, partition INT")
    rows = frame.toArrow() if is_in_driver else frame
    verdicts = {v.expectation.id: v for v in Checkpoints(suites=()).check(suite.views[0], suite.expectations, rows)}
    verdict = verdicts["log_start_is_not_negative"]
    assert (verdict.is_met, verdict.unexpected_count) == (False, None)
    assert "log_start_offset" in str(verdict.problem)
    assert verdicts["key_is_unique"].is_met
