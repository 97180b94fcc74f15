"""Test that a run ends without Spark if nothing has changed since the last one, and only then."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import coldlog
from coldlog.archive.layouts.aiven_keys import ENVIRONMENT_VARIABLE
from coldlog.errors import RetriableError
from coldlog.indexing import pipeline
from coldlog.indexing.events.event_sources import TableSource
from coldlog.indexing.preflight import end_unchanged_run
from coldlog.indexing.scan import listing
from coldlog.indexing.scan.listing import digest_archive
from coldlog.indexing.witness import witness_of_run
from coldlog.model.ids import TopicIdPartition
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, PlainJob
from coldlog.runtime.open_layout import layout_opener
from coldlog.runtime.settings_sources import load_settings
from coldlog.tables.damage_reports import add_damage_reports, clear_damage_reports
from coldlog.tables.definitions.catalog import ALL_TABLES
from coldlog.tables.definitions.damage_reports import DAMAGE_REPORTS
from coldlog.tables.definitions.definition import TableDefinition
from coldlog.tables.definitions.job_runs import JOB_RUNS
from coldlog.tables.definitions.quarantine import QUARANTINE
from coldlog.tables.definitions.segment_events import SEGMENT_EVENTS
from coldlog.tables.definitions.segments import SEGMENTS
from coldlog.tables.delta.files.table_files import open_table
from coldlog.tables.delta.plain_commit import commit_rows
from coldlog.tables.delta.row_edits import RowChange
from coldlog.tables.leases.warehouse_lock import writing
from coldlog.tiering.system_clock import SystemClock
from coldlog.tiering.tier_partitions import RemoteOffsets, TierPartitions
from contents.job_runs_table import log_path, rows_of, run_row
from counts.spark_work import counting_work
from read_quotas import shared_quota, taken_bytes
from worlds.kafka_sample import KAFKA_SAMPLE

PARTITIONS = ("payments-1", "crashy-upload-0")
SOME_PARTITION = TopicIdPartition(topic="payments", partition=1, topic_id="A" * 22)
LATE_MS = 2**62
READ_QUOTA = 1 << 30
RECORD_COLUMNS = {
    "metadata_partition": "partition", "metadata_offset": "offset", "record_timestamp_ms": "timestamp",
    "record_key": "key", "value": "value",
}  # fmt: skip
"""Of a table of the topic's records, by the columns of `segment_events`."""
FROM_TABLE = ("metadata.source=table", "scan.full_listing_hours=24")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An archive, a copy of the metadata topic, log start offsets, and the warehouse of a run over these."""

    folder: Path
    pristine: Path
    spark: SparkSession
    first_jobs: int = 0
    """So many jobs of Spark its first run started."""

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def log(self) -> Path:
        """A log of the archive."""
        return min((self.folder / "archive").rglob("*.log"))

    def location(self, table: TableDefinition) -> str:
        return str(self.warehouse / table.name)

    def settings(self, *changed: str) -> list[str]:
        return [
            f"archive.uri={self.folder / 'archive'}",
            f"warehouse.uri={self.warehouse}",
            f"metadata.uri={self.folder / 'metadata'}",
            f"log_start_offsets.uri={self.folder / 'log_starts.csv'}",
            "scan.full_listing_hours=0",
            *shared_quota(READ_QUOTA),
            *changed,
        ]

    def versions(self) -> dict[str, int]:
        return {table.name: open_table(self.location(table), table).version() for table in ALL_TABLES}

    def runs(self) -> list[dict[str, object]]:
        """The rows of `job_runs`, in the order of their starts."""
        return sorted(rows_of(self.location(JOB_RUNS)).values(), key=lambda row: int(str(row["started_ms"])))

    def end_unchanged(self, *changed: str) -> int | None:
        job = PlainJob(
            settings=load_settings("local", self.settings(*changed)), arguments=argparse.Namespace(), console=_console()
        )
        return end_unchanged_run(job).exit_code

    def run(self, call: Callable[[Job], object], *changed: str) -> None:
        """Do every step of a job with Spark."""
        settings = load_settings("local", self.settings(*changed))
        call(Job(spark=self.spark, settings=settings, arguments=argparse.Namespace(), console=_console()))

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.pristine, self.folder)


def _console() -> Console:
    return Console(progress=io.StringIO(), results=io.StringIO())


@pytest.fixture(scope="module")
def built(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A place after one run. Two partitions of the sample; events name more segments."""
    folder = tmp_path_factory.mktemp("preflight")
    place = Place(folder=folder / "live", pristine=folder / "pristine", spark=spark)
    source = KAFKA_SAMPLE / "archive" / "kafka-tiered-storage"
    for partition in PARTITIONS:
        (found,) = source.glob(f"{partition}-*")
        shutil.copytree(found, place.folder / "archive" / source.name / found.name)
    shutil.copytree(KAFKA_SAMPLE / "rlmm", place.folder / "metadata")
    (place.folder / "log_starts.csv").write_text("topic,partition,log_start_offset\npayments,1,1\n")
    with counting_work(spark) as work:
        place.run(pipeline.run_pipeline)
    shutil.copytree(place.folder, place.pristine)
    return replace(place, first_jobs=work.jobs)


@pytest.fixture
def place(built: Place) -> Place:
    built.restore()
    return built


def test_unchanged_run_ends_with_one_row(place: Place) -> None:
    before, (first,) = place.versions(), place.runs()
    assert [place.end_unchanged(), place.end_unchanged()] == [0, 0]
    assert place.versions() == before | {JOB_RUNS.name: before[JOB_RUNS.name] + 2}
    runs = place.runs()
    assert runs[0] == first
    for row in runs[1:]:
        assert (row["job"], row["outcome"], row["error"]) == ("run_pipeline", "succeeded", None)
        assert int(str(row["started_ms"])) <= int(str(row["finished_ms"]))
        assert json.loads(str(row["summary"]))["unchanged_since_run"] == first["run_id"]


def test_listing_in_several_processes_has_the_same_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "archive"
    shutil.copytree(KAFKA_SAMPLE / "archive", archive)
    first, second, *_ = sorted((archive / "kafka-tiered-storage").iterdir())
    (first / "stray").write_bytes(b"stray")
    shutil.rmtree(second)
    second.symlink_to(tmp_path / "nowhere")
    layout = layout_opener(load_settings("local", [f"archive.uri={archive}"]))()
    alone = digest_archive(layout)
    assert alone.totals.segments > 100
    assert alone.totals.unlisted == 1
    monkeypatch.setattr(listing, "_MOST_SEGMENTS_ALONE", 10)
    assert digest_archive(layout) == alone


def test_first_run_starts_no_job_of_spark(built: Place) -> None:
    assert built.first_jobs == 0


def test_build_takes_what_it_reads_from_the_read_quota_that_processes_share(place: Place) -> None:
    logs = (place.folder / "archive").rglob("*.log")
    assert taken_bytes(place.warehouse) >= sum(log.stat().st_size for log in logs) > 0


def test_run_with_every_step_changes_nothing_when_one_without_spark_would_end(place: Place) -> None:
    before = place.versions()
    place.run(pipeline.run_pipeline, "pipeline.skip_unchanged=false")
    assert place.versions() == before | {JOB_RUNS.name: before[JOB_RUNS.name] + 2}


def _touch(place: Place) -> None:
    os.utime(place.log, (1, 1))


def _replace(place: Place) -> None:
    status = place.log.stat()
    place.log.write_bytes(place.log.read_bytes() + b"\0")
    os.utime(place.log, ns=(status.st_atime_ns, status.st_mtime_ns))


def _remove(place: Place) -> None:
    min((place.folder / "archive").rglob("*.timeindex")).unlink()


def _add(place: Place) -> None:
    shutil.copy2(place.log, place.log.with_name(f"{'9' * 19}8{place.log.name[20:]}"))


def _add_unrecognized(place: Place) -> None:
    (place.log.parent / "note.txt").touch()


def _add_beside_partitions(place: Place) -> None:
    (place.log.parent.parent / "note.txt").touch()


def _add_empty_partition(place: Place) -> None:
    name = place.log.parent.name.replace("crashy-upload-0", "crashy-upload-1").replace("payments-1", "payments-2")
    (place.log.parent.parent / name).mkdir()


def _remove_partition(place: Place) -> None:
    shutil.rmtree(place.log.parent)


def _append_event(place: Place) -> None:
    with min((place.folder / "metadata").rglob("*.log")).open("ab") as log:
        log.write(b"\0")


def _supply_log_start(place: Place) -> None:
    with (place.folder / "log_starts.csv").open("a") as file:
        file.write("crashy-upload,0,1\n")


def _expire(place: Place) -> None:
    TierPartitions.below(str(place.warehouse), SystemClock()).retrieve(
        {SOME_PARTITION: RemoteOffsets(earliest=0, latest=1)}
    )


def _empty_row(table: TableDefinition) -> dict[str, object]:
    empty = {"STRING": "", "INT": 0, "BIGINT": 0}
    return {column.name: empty[column.type] for column in table.columns}


def _commit(place: Place) -> None:
    change = RowChange(added=[_empty_row(QUARANTINE)])
    assert commit_rows(place.location(QUARANTINE), QUARANTINE, change) == 0


def _report_damage(place: Place) -> None:
    add_damage_reports(str(place.warehouse), [_empty_row(DAMAGE_REPORTS)])


def _start_run(place: Place, **end: object) -> None:
    row = run_row("later", **{"job": "run_pipeline", "started_ms": LATE_MS} | end)
    assert commit_rows(place.location(JOB_RUNS), JOB_RUNS, RowChange(added=[row])) == 0


def _kill_run(place: Place) -> None:
    _start_run(place)


def _fail_run(place: Place) -> None:
    _start_run(place, outcome="failed", error="no answer")


def _run_of_earlier_release(place: Place) -> None:
    _start_run(place, outcome="succeeded")


def _maintain_after_a_change(place: Place) -> None:
    _start_run(place, outcome="succeeded", job="maintain_tables")


def _deepen(place: Place) -> None:
    _start_run(place, outcome="succeeded", job="deepen_indexes", summary=place.runs()[-1]["summary"])


def _damage_log(place: Place) -> None:
    newest = open_table(place.location(SEGMENTS), SEGMENTS).version()
    log_path(place.location(SEGMENTS), newest).write_bytes(b"")


def _lose_table(place: Place) -> None:
    shutil.rmtree(place.location(QUARANTINE))


def _append_record(place: Place) -> None:
    row = {"partition": [0], "offset": [10**6], "timestamp": [0], "key": [b""], "value": [b"x"]}
    types = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64())])
    schema = types.append(pa.field("key", pa.binary())).append(pa.field("value", pa.binary()))
    write_deltalake(str(place.folder / "metadata"), pa.table(row, schema=schema), mode="append")


def _set_property(place: Place) -> None:
    DeltaTable(place.folder / "metadata").alter.set_table_properties({"delta.appendOnly": "true"})


def _make_anew(place: Place) -> None:
    """Another table with the same rows, version and time."""
    table = place.folder / "metadata"
    rows, modified_ns = DeltaTable(table).to_pyarrow_table(), log_path(str(table), 0).stat().st_mtime_ns
    shutil.rmtree(table)
    write_deltalake(str(table), rows)
    os.utime(log_path(str(table), 0), ns=(modified_ns, modified_ns))


def _put_back_and_go_on(place: Place) -> None:
    """Another commit of the same table with the same version."""
    commit = log_path(str(place.folder / "metadata"), 0)
    commit.write_bytes(commit.read_bytes() + b"\n")


def _damage_table(place: Place) -> None:
    log_path(str(place.folder / "metadata"), 0).write_bytes(b"")


def _lose_topic(place: Place) -> None:
    shutil.rmtree(place.folder / "metadata")


def _remove_announced(place: Place) -> None:
    """Of a partition whose segments are all announced."""
    min((place.folder / "archive").rglob("payments-1-*/*.timeindex")).unlink()


CHANGES = (
    _touch, _replace, _remove, _add, _add_unrecognized, _add_beside_partitions, _add_empty_partition, _remove_partition,
    _append_event, _supply_log_start, _expire, _commit, _kill_run, _fail_run, _run_of_earlier_release,
    _maintain_after_a_change, _deepen, _damage_log, _lose_table, _report_damage,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_run_does_every_step_after_a_change(place: Place, change: Callable[[Place], None]) -> None:
    change(place)
    runs = place.runs()
    assert place.end_unchanged() is None
    assert place.runs() == runs


def test_reports_of_damage_that_a_build_has_removed_are_no_change(place: Place) -> None:
    _report_damage(place)
    clear_damage_reports(str(place.warehouse), [_empty_row(DAMAGE_REPORTS)])
    assert place.end_unchanged() == 0


@pytest.mark.parametrize(
    "setting",
    [
        "index.depth=batch",
        "build.max_quarantined_share=0.4",
        "spark.sql.shuffle.partitions=3",
        "pipeline.skip_unchanged=false",
    ],
)
def test_run_does_every_step_with_another_setting(place: Place, setting: str) -> None:
    assert place.end_unchanged(setting) is None


@pytest.mark.parametrize(
    "setting",
    [
        "build.retry_quarantined=true",
        "validation.after_build=true",
    ],
)
def test_run_that_depends_on_more_than_its_witness_leaves_none(place: Place, setting: str) -> None:
    settings = load_settings("local", place.settings(setting))
    assert witness_of_run(settings, {}, json.loads(str(place.runs()[0]["summary"]))) is None
    assert place.end_unchanged(setting) is None


def test_run_does_every_step_with_another_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "new=/keys/new.pem")
    assert place.end_unchanged() is None


def test_run_does_every_step_with_other_code(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = shutil.copytree(Path(coldlog.__file__).parent, tmp_path / "coldlog")
    monkeypatch.setattr(coldlog, "__file__", str(copied / "__init__.py"))
    assert place.end_unchanged() == 0, "the same code elsewhere"
    with (copied / "lookups" / "sql" / "offset_for_timestamp.sql").open("a") as query:
        query.write("-- changed\n")
    assert place.end_unchanged() is None


def test_run_does_every_step_after_a_vacuum_by_others(place: Place) -> None:
    place.spark.sql(f"VACUUM delta.`{place.location(SEGMENTS)}`")
    assert place.end_unchanged() is None


def test_run_with_every_step_changes_nothing_after_a_rebuild_either(place: Place) -> None:
    _touch(place)
    place.run(pipeline.run_pipeline)
    before = place.versions()
    assert place.end_unchanged() == 0
    place.run(pipeline.run_pipeline)
    assert place.versions() == before | {JOB_RUNS.name: before[JOB_RUNS.name] + 3}


@pytest.mark.parametrize("work", ["index_status = 'pending'", "superseded_build_numbers = array(7)"])
def test_run_that_leaves_work_to_the_next_one_leaves_no_witness(place: Place, work: str) -> None:
    settings, (run,) = load_settings("local", place.settings()), place.runs()
    summary = json.loads(str(run["summary"]))
    assert witness_of_run(settings, {}, summary) is not None
    place.spark.sql(f"UPDATE delta.`{place.location(SEGMENTS)}` SET {work} WHERE start_offset = 0")
    assert witness_of_run(settings, {}, summary) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"scan": {"unlisted_count": 1}},
        {"metadata": {"damaged_partition_count": 1}},
        {"metadata": {"lost_partitions": [3]}},
        {"metadata": {"source_digest": None}},
    ],
    ids=str,
)
def test_run_that_could_not_read_everything_leaves_no_witness(
    place: Place, changed: dict[str, dict[str, object]]
) -> None:
    summary = json.loads(str(place.runs()[0]["summary"]))
    for step, facts in changed.items():
        summary[step] |= facts
    assert witness_of_run(load_settings("local", place.settings()), {}, summary) is None


def test_run_does_every_step_if_the_last_run_cannot_be_read(place: Place) -> None:
    for file in Path(place.location(JOB_RUNS)).glob("*.parquet"):
        file.write_bytes(b"")
    assert place.end_unchanged() is None


def test_lock_of_another_job_is_reported_before_spark_starts(place: Place) -> None:
    with writing(str(place.warehouse)), pytest.raises(RetriableError, match="another job"):
        place.end_unchanged()


def test_place_without_a_warehouse_gets_no_lock(place: Place, tmp_path: Path) -> None:
    assert place.end_unchanged(f"warehouse.uri={tmp_path / 'new'}") is None
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def tabled(built: Place) -> Place:
    """A place after a run that read the table."""
    built.restore()
    table = Place(
        folder=built.folder.with_name("tabled"), pristine=built.pristine.with_name("of-table"), spark=built.spark
    )
    shutil.copytree(built.folder, table.folder)
    events = DeltaTable(table.location(SEGMENT_EVENTS)).to_pyarrow_table(columns=list(RECORD_COLUMNS))
    shutil.rmtree(table.folder / "metadata")
    write_deltalake(str(table.folder / "metadata"), events.rename_columns(list(RECORD_COLUMNS.values())))
    table.run(pipeline.run_pipeline, *FROM_TABLE)
    shutil.copytree(table.folder, table.pristine)
    return table


@pytest.fixture
def of_table(tabled: Place) -> Place:
    tabled.restore()
    return tabled


def test_unchanged_run_that_reads_a_table_of_events_ends_before_spark(of_table: Place) -> None:
    """Between the two runs is one that does every step."""
    before = of_table.versions()
    assert of_table.end_unchanged(*FROM_TABLE) == 0
    of_table.run(pipeline.run_pipeline, *FROM_TABLE)
    assert of_table.end_unchanged(*FROM_TABLE) == 0
    assert of_table.versions() == before | {JOB_RUNS.name: before[JOB_RUNS.name] + 4}


@pytest.mark.parametrize(
    "change",
    [_append_record, _set_property, _make_anew, _put_back_and_go_on, _damage_table, _lose_topic, _remove_announced],
    ids=lambda change: change.__name__.strip("_"),
)
def test_run_that_reads_a_table_of_events_does_every_step_after_a_change(
    of_table: Place, change: Callable[[Place], None]
) -> None:
    """Every directory is listed, too: a table may lack events."""
    change(of_table)
    assert of_table.end_unchanged(*FROM_TABLE) is None


@pytest.mark.parametrize(
    ("feature", "is_of_readers"), [("coordinatedCommits-preview", False), ("catalogManaged", True)]
)
def test_version_of_a_table_whose_commits_a_catalog_keeps_is_not_known(
    of_table: Place, feature: str, is_of_readers: bool
) -> None:
    table = of_table.folder / "metadata"
    assert TableSource(uri=str(table)).digest() is not None
    features = {"readerFeatures": [feature] if is_of_readers else [], "writerFeatures": [feature]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}
    log_path(str(table), 1).write_text(f"{json.dumps(protocol)}\n")
    assert TableSource(uri=str(table)).digest() is None


def test_version_of_a_table_on_another_file_system_is_not_known() -> None:
    assert TableSource(uri="hdfs://nowhere/rlmm").digest() is None
