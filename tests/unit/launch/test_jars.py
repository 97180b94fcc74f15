"""Test which jars are resolved, and which are copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldlog.errors import UsageError
from coldlog.launch import jars


def test_the_fallback_for_maven_names_what_the_pom_names() -> None:
    packages = jars.list_packages()
    assert packages[:3] == [
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "io.delta:delta-storage:4.4.0",
        "org.apache.hadoop:hadoop-aws:3.5.0",
    ]
    assert all(package.replace(":", "_", 1).startswith(jars.IVY_GROUPS) for package in packages)
    assert not any("$" in package for package in packages)


def test_jars_are_copied_without_those_of_coldlog(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    named = [package.split(":") for package in jars.list_packages()]
    wanted = {f"{group}_{artifact}-{version}.jar" for group, artifact, version in named}
    for name in {*wanted, "coldlog-log-store.jar", "stamp"}:
        (source / name).touch()
    jars.copy_jars(source, target)
    assert {each.name for each in target.iterdir()} == wanted


def test_a_folder_of_other_versions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "delta-spark_4.2_2.13-4.0.0.jar").touch()
    with pytest.raises(UsageError, match=r"has no delta-spark_4.2_2.13-4.4.0.jar"):
        jars.copy_jars(tmp_path, tmp_path)
