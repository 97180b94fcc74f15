"""Test which jars are resolved, and which are copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.command.main import main
from coldlog.errors import UsageError
from coldlog.launch import jars
from coldlog.runtime import installation
from coldlog.runtime.spark.spark_versions import NEWEST, SERIES


@pytest.mark.parametrize(("series", "hadoop"), [("4.0", "3.4.1"), ("4.1", "3.4.2"), ("4.2", "3.5.0")])
def test_the_fallback_for_maven_names_what_the_pom_names_for_this_spark(series: str, hadoop: str) -> None:
    packages = jars.list_packages(SERIES[series])
    assert packages[:3] == [
        f"io.delta:delta-spark_{series}_2.13:4.4.0",
        "io.delta:delta-storage:4.4.0",
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
    ]
    assert all(package.replace(":", "_", 1).startswith(jars.IVY_GROUPS) for package in packages)
    assert not any("$" in package for package in packages)


def test_the_pom_names_the_jars_of_the_newest_spark() -> None:
    """Maven is given the versions of the others."""
    assert NEWEST.jar_properties.items() <= jars.read_properties().items()
    assert all(series.jar_properties.keys() == NEWEST.jar_properties.keys() for series in SERIES.values())


def test_jars_are_copied_without_those_of_coldlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "cache" / "target"
    source.mkdir()
    monkeypatch.setattr(installation, "CHECKOUT", None)  # as an installed package
    monkeypatch.setenv("COLDLOG_JARS", str(target))
    named = [package.split(":") for package in jars.list_packages(NEWEST)]
    wanted = {f"{group}_{artifact}-{version}.jar" for group, artifact, version in named}
    for name in {*wanted, "coldlog-log-store.jar", "stamp"}:
        (source / name).touch()
    assert main(["setup", "--from", str(source)]) == 0
    assert {each.name for each in target.iterdir()} == wanted
    assert capsys.readouterr() == (f"{target}\n", "")
    assert main(["setup", "--from", str(source)]) == 0
    assert capsys.readouterr() == (f"{target}\n", "coldlog setup: the jars are there already\n")
    assert main(["setup", "--from", str(tmp_path / "nowhere")]) == 2, "although nothing is to do"


def test_a_folder_of_other_versions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "delta-spark_4.2_2.13-4.0.0.jar").touch()
    expected = (
        "expected a folder with the 9 jars for Spark 4.2, such as the one that `coldlog setup` prints on a machine "
        "with a network, or .jars of a checkout"
    )
    with pytest.raises(UsageError) as wrong:
        jars.find_jars(tmp_path)
    assert str(wrong.value) == f"{tmp_path} has no delta-spark_4.2_2.13-4.4.0.jar and 8 others: {expected}"
    with pytest.raises(UsageError) as wrong:
        jars.find_jars(tmp_path / "nowhere")
    assert str(wrong.value) == f"{tmp_path / 'nowhere'} is not a folder: {expected}"
