"""Test which versions of Spark are supported, and who says so."""

from __future__ import annotations

import argparse
import runpy
import sys

import pytest

from coldlog.errors import UsageError
from coldlog.launch import spark_options, submit
from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.runtime.console import Console
from coldlog.runtime.installation import JOBS
from coldlog.runtime.job import PlainJob
from coldlog.runtime.settings_sources import load_settings
from coldlog.runtime.spark import spark_versions
from coldlog.runtime.spark.spark_versions import NEWEST, SERIES, find_series, installed_series, installed_version


@pytest.mark.parametrize(
    ("version", "series"), [("4.0.5", "4.0"), ("4.1.4", "4.1"), ("4.2.0", "4.2"), ("4.2.1", "4.2")]
)
def test_every_patch_of_a_series_is_of_it(version: str, series: str) -> None:
    assert find_series(version) is SERIES[series]


@pytest.mark.parametrize("version", ["3.5.9", "4.3.0", "4.10.0"])
def test_another_version_is_refused_with_those_that_are_supported(version: str) -> None:
    with pytest.raises(UsageError, match=f"^Spark {version} is not supported: install pyspark 4.0, 4.1 or 4.2$"):
        find_series(version)


def test_the_installed_version_is_known_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_version() is not None
    assert "pyspark" not in sys.modules
    monkeypatch.setattr(spark_versions, "installed_version", lambda: None)
    assert installed_series() is NEWEST


def test_a_job_refuses_a_spark_that_is_not_supported_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_versions, "installed_version", lambda: "4.3.0")
    assert run_job(lambda _: 0, job_argument_parser("scan.py", ""), []) == 2
    told = "Spark 4.3.0 is not supported: install pyspark 4.0, 4.1 or 4.2"
    assert capsys.readouterr().err == f"spark-submit.sh scan: {told}\n"
    monkeypatch.setattr(submit, "_execute", lambda _: pytest.fail("the job was started"))
    with pytest.raises(UsageError, match=told):
        submit.become("run_pipeline", [])


def test_tables_in_a_bucket_are_refused_where_spark_cannot_keep_two_drivers_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_options, "installed_series", lambda: SERIES["4.0"])
    settings = load_settings("local", ["warehouse.uri=s3://bucket/coldlog"])
    with pytest.raises(
        UsageError, match="Spark 4.0 has no conditional puts.* s3://bucket/coldlog: install pyspark 4.1"
    ):
        spark_options.spark_options(settings, {})


def test_a_damaged_warehouse_in_a_bucket_is_refused_before_its_tables_are_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_options, "installed_series", lambda: SERIES["4.0"])
    set_aside = runpy.run_path(str(JOBS / "rebuild_tables.py"))["set_aside"]
    settings = load_settings("local", ["warehouse.uri=s3://bucket/coldlog"])
    with pytest.raises(UsageError, match="no conditional puts"):
        set_aside(PlainJob(settings=settings, arguments=argparse.Namespace(give_up=[]), console=Console()))


def test_what_a_spark_cannot_do_is_said() -> None:
    assert {name: series.limits for name, series in SERIES.items()} == {
        "4.0": ["pushes no filters to the records", "no maxOffsetsPerTrigger", "no tables in a bucket"],
        "4.1": ["no maxOffsetsPerTrigger"],
        "4.2": [],
    }
