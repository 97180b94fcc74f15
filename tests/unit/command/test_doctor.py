"""Test what `coldlog doctor` says where Spark is not installed, and of a metadata topic that is not there."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from coldlog.command.main import main
from coldlog.runtime import spark_versions

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
