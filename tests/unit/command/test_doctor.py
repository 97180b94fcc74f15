"""Test what `coldlog doctor` says where Spark is not installed, and of a metadata topic that is not there."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from coldlog.command.main import main
from coldlog.runtime.spark import spark_versions

GOLDEN = Path(__file__).parents[2] / "golden"
EARLIER = GOLDEN / "warehouses" / "2026-11-24.tar.gz"
ARCHIVE = ("--set", f"archive.uri={GOLDEN / 'kafka-sample' / 'archive'}")


@pytest.fixture(autouse=True)
def _without_spark_and_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spark_versions, "installed_version", lambda: None)
    for variable in ("JAVA_HOME", "COLDLOG_JARS"):
        monkeypatch.setenv(variable, str(tmp_path / "nothing"))


def _check(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, tuple[str, str, str | None]]]:
    """Return the exit code, and what each check says."""
    code = main(["doctor", "--json", *ARCHIVE, *options])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {row["check"]: (row["state"], row["finding"], row["mend"]) for row in rows}


def test_what_only_jobs_need_is_optional_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(EARLIER) as files:
        files.extractall(tmp_path / "tables", filter="data")
    code, found = _check(capsys, "-w", str(tmp_path / "tables"))
    assert code == 0, found
    assert [name for name, (state, _, _) in found.items() if state == "optional"] == ["spark", "java", "jars"]
    assert found["spark"][1:] == ("not found; only the jobs need it", "make setup")
    assert {state for state, _, _ in found.values()} == {"ok", "optional"}


def test_the_advised_job_has_the_settings_that_were_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "my settings.toml"
    mine.touch()
    code, found = _check(capsys, "--config", str(mine), "-w", str(tmp_path), "--set", "spark.executor.memory=1g")
    assert (code, found["tables"][0]) == (1, "wrong")
    given = f"--config '{mine}' --set {ARCHIVE[1]} --set warehouse.uri={tmp_path}"
    assert found["tables"][2] == f".venv/bin/coldlog run {given}"


def test_a_folder_without_the_metadata_topic_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setting = ("--set", f"metadata.uri={tmp_path}")
    (tmp_path / "__remote_log_metadata-x").mkdir()
    _, found = _check(capsys, *setting)
    assert found["metadata topic"] == (
        "wrong",
        f"{tmp_path} has no directory __remote_log_metadata-<partition>",
        "correct metadata.uri: the folder that holds them; or metadata.topic",
    )
    (tmp_path / "__remote_log_metadata-7").mkdir()
    _, found = _check(capsys, *setting)
    assert found["metadata topic"] == ("ok", str(tmp_path), None)


def _segment_of_a_log(folder: Path) -> None:
    """A log directory of a broker, with the log of one segment of the sample."""
    log = next((GOLDEN / "kafka-sample" / "archive").glob("*/orders-0-*/00000000000000000000-*.log"))
    (folder / "orders-0").mkdir(parents=True)
    (folder / "orders-0" / "00000000000000000000.log").write_bytes(log.read_bytes())


@pytest.mark.parametrize(
    ("uri", "advice"),
    [
        ("backup/tier", "{0}/backup has no 'tier': correct archive.uri, or mount the disk that has it"),
        ("bakup/archive", "{0}/backup/archive has segments: set archive.uri={0}/backup/archive"),
        ("backup", "{0}/backup/archive has segments: set archive.uri={0}/backup/archive"),
        ("backup/archive/kafka-tierd-storage", "{0}/backup/archive has segments: set archive.uri={0}/backup/archive"),
        ("backup/archive/kafka-tiered-storage/payments-1-{1}", "{0}/backup/archive/kafka-tiered-storage has segments: "
         "set archive.uri={0}/backup/archive/kafka-tiered-storage"),
        ("broker", "this place has segments: set archive.layout=log_directories"),
        ("broker/orders-0/x", "{0}/broker has segments: set archive.uri={0}/broker and archive.layout=log_directories"),
        ("empty", "no archive is near it"),
        ("file", "{0}/file is a file: set archive.uri to a folder"),
        ("file/archive", "{0}/file is a file: correct archive.uri"),
    ],
)  # fmt: skip
def test_a_wrong_archive_is_told_with_what_was_meant(
    uri: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, topic_id = tmp_path / "far" / "away", "AAAAAAAAAAAAAAAAAAAAAA"
    if uri.startswith(("backup", "bakup")):
        (root / "backup").mkdir(parents=True)
        if not advice.startswith("{0}/backup has no"):
            (root / "backup" / "archive").symlink_to(GOLDEN / "kafka-sample" / "archive")
            partition = next((GOLDEN / "kafka-sample" / "archive").glob("*/payments-1-*"))
            topic_id = partition.name.removeprefix("payments-1-")
    elif uri.startswith("broker"):
        _segment_of_a_log(root / "broker")
    else:
        (root / "empty").mkdir(parents=True)
        (root / "file").touch()
    place = str(root / uri).format(root, topic_id)
    code, found = _check(capsys, "--set", f"archive.uri={place}", "-w", str(tmp_path))
    assert (code, found["archive"][0]) == (1, "wrong")
    assert found["archive"][2] == advice.format(root)


def test_advice_that_takes_no_settings_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coldlog.command.doctor.COMMAND", "coldlog")
    monkeypatch.setattr("coldlog.command.doctor.SETUP", "coldlog setup")
    _, found = _check(capsys, "-w", str(tmp_path))
    assert found["jars"][2] == "coldlog setup"
    assert found["tables"][2] == f"coldlog run --set {ARCHIVE[1]} --set warehouse.uri={tmp_path}"
