"""Test what `coldlog doctor` finds wrong, and the command that it names for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

from coldlog.command.main import main
from coldlog.runtime.installation import default_jar_directory
from coldlog.runtime.spark import spark_versions
from coldlog.runtime.spark.spark_versions import installed_series
from worlds.kafka_sample import KAFKA_SAMPLE

ARCHIVE = f"archive.uri={KAFKA_SAMPLE / 'archive'}"
CHECKS = ["spark", "java", "jars", "archive", "tables", "last run", "metadata topic"]


def _check(capsys: pytest.CaptureFixture[str], warehouse: str, *settings: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit code, and each check's row."""
    words = [word for setting in settings for word in ("--set", setting)]
    code = main(["doctor", "--json", "-w", warehouse, *words])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["check"] for row in rows] == CHECKS
    return code, {row["check"]: row for row in rows}


def _is_wrong(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [name for name, row in found.items() if row["state"] == "wrong"]


def test_nothing_is_wrong_with_an_indexed_archive(golden_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _check(capsys, golden_uri, ARCHIVE)
    assert (code, _is_wrong(found)) == (0, [])
    assert "30 partitions" in found["tables"]["finding"]
    assert found["spark"]["finding"] == "; ".join([pyspark.__version__, *installed_series().limits])


def test_a_spark_that_is_not_supported_is_named(
    golden_uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDLOG_JARS", str(default_jar_directory()))
    monkeypatch.setattr(spark_versions, "installed_version", lambda: "4.3.0")
    code, found = _check(capsys, golden_uri, ARCHIVE)
    assert (code, _is_wrong(found)) == (1, ["spark"])
    assert found["spark"]["finding"] == "Spark 4.3.0 is not supported: install pyspark 4.0, 4.1 or 4.2"


@pytest.mark.parametrize(
    ("variable", "check", "finding", "mend"),
    [
        ("JAVA_HOME", "java", "not found; only the jobs need it", "install Java 17 or newer; set JAVA_HOME or PATH"),
        ("COLDLOG_JARS", "jars", "none in", "make setup"),
    ],
)
def test_what_the_jobs_lack_is_named(
    variable: str,
    check: str,
    finding: str,
    mend: str,
    golden_uri: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    code, found = _check(capsys, golden_uri, ARCHIVE)
    assert (code, _is_wrong(found)) == (1, [check])
    assert found[check]["finding"].startswith(finding)
    assert found[check]["mend"] == mend


def test_java_that_is_too_old_is_named(
    golden_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, found = _check(capsys, golden_uri, ARCHIVE)
    assert (code, _is_wrong(found)) == (1, ["java"])
    assert (found["java"]["finding"], found["java"]["mend"]) == (f"{java} is 8", "set JAVA_HOME to Java 17 or newer")


def test_folders_that_are_missing_are_named(
    golden_uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nowhere"
    code, found = _check(capsys, golden_uri, f"archive.uri={nowhere}", f"metadata.uri={nowhere}")
    assert (code, _is_wrong(found)) == (1, ["archive", "metadata topic"])
    assert all(str(nowhere) in found[check]["finding"] for check in _is_wrong(found))
    assert not nowhere.exists()


def test_a_folder_without_tables_is_named_with_the_job_that_makes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = _check(capsys, str(tmp_path), ARCHIVE)
    assert (code, _is_wrong(found)) == (1, ["tables", "last run"])
    told = found["tables"]["finding"] + str(found["tables"]["mend"])
    assert "run" in told
    assert list(tmp_path.iterdir()) == []
