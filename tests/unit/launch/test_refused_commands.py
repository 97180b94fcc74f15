"""Test what a job refuses before it starts Spark, and that it says so in one line."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from coldlog.runtime.installation import COMMAND, ROOT
from tables.small_warehouse import write_readable_warehouse, write_small_warehouse


def _refused(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a job of the checkout here; return the line of its error. An import of Spark fails a test of this tier."""
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "jobs" / f"{command[0]}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    return printed.err.rstrip("\n")


@pytest.mark.parametrize(
    "job", ["run_pipeline", "scan_segments", "build_indexes", "deepen_indexes --topics a", "rebuild_tables"]
)
@pytest.mark.parametrize(
    ("name", "complaint", "advice"),
    [
        (
            "nowhere",
            "no archive at {place}: {place} is not a directory that can be reached",
            "has no 'nowhere': correct archive.uri, or mount the disk that has it",
        ),
        (
            "",
            "no local_tiered_storage archive at {place}: it has neither kafka-tiered-storage nor a directory",
            "no archive is near it",
        ),
    ],
)
def test_a_wrong_archive_is_refused_before_spark_starts(
    job: str,
    name: str,
    complaint: str,
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place, warehouse = tmp_path / "archive" / name, tmp_path / "warehouse"
    (tmp_path / "archive").mkdir()
    command = [*job.split(), "--set", f"archive.uri={place}", "--set", f"warehouse.uri={warehouse}"]
    told = _refused(command, monkeypatch, capsys)
    assert told.startswith(f"spark-submit.sh {command[0]}: {complaint.format(place=place)}")
    assert told.endswith(advice)
    assert not warehouse.exists(), "no lock was taken"


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["run_pipeline", "--sett", "a=b"], "unrecognized arguments: --sett a=b"),
        (["replay_topics", "--topics", "a"], "one of the arguments --output-table --output --output-topic is required"),
    ],
)
def test_wrong_arguments_of_a_job_are_one_line(
    command: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prog = f"spark-submit.sh {command[0]}"
    assert _refused(command, monkeypatch, capsys) == f"{prog}: error: {complaint}; see {prog} --help"


@pytest.mark.parametrize(
    ("place", "where"), [("file", ""), ("file/tables", "{0}/file: "), ("link/tables", "{0}/link: ")]
)
def test_a_warehouse_that_cannot_be_written_is_refused_before_spark_starts(
    place: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    archive, warehouse = ROOT / "tests" / "golden" / "kafka-sample" / "archive", tmp_path / place
    command = ["run_pipeline", "--set", f"archive.uri={archive}", "--set", f"warehouse.uri={warehouse}"]
    told = _refused(command, monkeypatch, capsys)
    why = f"{where.format(tmp_path)}Not a directory; correct warehouse.uri"
    assert told == f"spark-submit.sh run_pipeline: the warehouse {warehouse} cannot be written: {why}"


SAMPLE = ROOT / "tests" / "golden" / "kafka-sample" / "archive"
OF_TABLES = [
    "materialize_metadata",
    "reconcile_archive",
    "validate_tables",
    "maintain_tables",
    "maintain_tables --verify --quiet",
]
OF_TABLES += ["build_indexes", "deepen_indexes --topics orders"]
OF_TABLES += [
    "replay_topics --topics orders --output {place}/out",
    "fetch_records --topic orders --partition 0 --offset 0",
]


@pytest.mark.parametrize("job", OF_TABLES)
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere", "there are no tables in {0}: no such folder"),
        ("empty", "{0}/segments is not coldlog's table segments (there is no folder {0}/segments)"),
    ],
)
def test_a_warehouse_without_tables_is_refused_before_spark_starts(
    job: str,
    name: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    warehouse = tmp_path / name
    command = [each.format(place=tmp_path) for each in job.split()]
    printed = _refused([*command, "--set", f"archive.uri={SAMPLE}", "-w", str(warehouse)], monkeypatch, capsys)
    assert printed == (
        f"spark-submit.sh {command[0]}: {told.format(warehouse)}; "
        "run the pipeline into this warehouse first, or correct warehouse.uri"
    )
    assert [each.name for each in tmp_path.rglob("*")] == ["empty"], "nothing was made"


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ("orders,orderz", f"the topic 'orderz': did you mean orders? `{COMMAND} topics` lists all"),
        ("nowhere*", f"the topic 'nowhere*'; `{COMMAND} topics` lists all"),
    ],
)
def test_topics_to_deepen_that_are_not_there_are_refused_before_spark_starts(
    topics: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["deepen_indexes", "--topics", topics, "--set", f"archive.uri={SAMPLE}"]
    warehouse = write_small_warehouse(tmp_path)
    printed = _refused([*command, "-w", warehouse], monkeypatch, capsys)
    assert printed == f"spark-submit.sh deepen_indexes: the warehouse {warehouse} does not know {told}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--topics", "orders,orderz"],
            f"the topic 'orderz': did you mean orders? `{COMMAND} topics` lists all; "
            "failOnDataLoss=false reads the others",
        ),
        (["--topics", "orderz"], f"the topic 'orderz': did you mean orders? `{COMMAND} topics` lists all"),
        (["--assign", '{"orders": [7]}'], f"partition 7 of topic 'orders'; `{COMMAND} partitions orders` lists all"),
    ],
)
def test_a_replay_of_what_is_not_there_is_refused_before_spark_starts(
    options: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["replay_topics", *options, "--output", str(tmp_path / "out"), "--set", f"archive.uri={SAMPLE}"]
    printed = _refused([*command, "-w", write_readable_warehouse(tmp_path / "tables")], monkeypatch, capsys)
    assert printed == f"spark-submit.sh replay_topics: the warehouse does not know {told}"


@pytest.mark.parametrize(
    ("option", "place", "told"),
    [
        ("--output", "file", "--output {0}/file cannot be written: Not a directory; correct the path"),
        ("--output", "file/x", "--output {0}/file/x cannot be written: {0}/file: Not a directory; correct the path"),
        (
            "--output-table",
            "file/x",
            "--output-table {0}/file/x cannot be written: {0}/file: Not a directory; correct the path",
        ),
        ("--output", "full", "{0}/full is not empty, and this replay did not write it; choose another output"),
        (
            "--output-table",
            "tables/segments",
            "{0}/tables/segments is a table already, and this replay did not write it; choose another output",
        ),
    ],
)
def test_a_replay_whose_output_cannot_be_written_is_refused_before_spark_starts(
    option: str,
    place: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "full" / "run=000001").mkdir(parents=True)
    (tmp_path / "full" / "run=000001" / "part-0").touch()
    (tmp_path / "file").touch()
    warehouse = write_readable_warehouse(tmp_path / "tables")
    command = ["replay_topics", "--topics", "orders", option, str(tmp_path / place), "--set", f"archive.uri={SAMPLE}"]
    printed = _refused([*command, "-w", warehouse], monkeypatch, capsys)
    assert printed == f"spark-submit.sh replay_topics: {told.format(tmp_path)}"


@pytest.mark.parametrize("job", ["lookup_offsets", "list_offsets"])
def test_tables_of_requests_and_answers_are_refused_before_spark_starts(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    asked = ["--topic", "orders", "--timestamp", "5", "--output-table", str(tmp_path / "file")]
    told = _refused([job, *asked], monkeypatch, capsys)
    assert told == f"spark-submit.sh {job}: cannot write the answers to '{tmp_path}/file': Not a directory"
    told = _refused([job, "--requests", str(tmp_path / "nowhere")], monkeypatch, capsys)
    assert told == (
        f"spark-submit.sh {job}: no requests at {tmp_path}/nowhere: expected a .csv or .jsonl file or a Delta table"
    )
