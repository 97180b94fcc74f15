"""Test what a job refuses before it starts Spark, and that it says so in one line."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from coldlog.runtime.installation import ROOT


def _refused(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a job of the checkout here; return the line of its error. An import of Spark fails a test of this tier."""
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "jobs" / f"{command[0]}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
    return printed.err.rstrip("\n")


@pytest.mark.parametrize("job", ["run_pipeline", "scan_segments", "build_indexes", "deepen_indexes"])
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
            "no archive is near it; correct archive.uri",
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
    command = [job, "--set", f"archive.uri={place}", "--set", f"warehouse.uri={warehouse}"]
    told = _refused(command, monkeypatch, capsys)
    assert told.startswith(f"spark-submit.sh {job}: {complaint.format(place=place)}")
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
