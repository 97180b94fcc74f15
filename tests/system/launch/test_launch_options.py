"""Test the launch options that a scheduler gets for a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coldlog.launch.executor_packages import package_zip
from coldlog.launch.spark_options import LAUNCH_OPTIONS, REQUIRED_OPTIONS, list_jars
from coldlog.launch_options import launch_environment, launch_options, main
from coldlog.runtime.installation import COMMAND, ROOT


def test_launch_options_have_jars_and_memory_but_no_options_that_a_job_sets_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(["--master", "local[1]", "--set", "spark.driver.memory=3g", "--set=spark.sql.shuffle.partitions=9"]) == 0
    )
    options = json.loads(capsys.readouterr().out)["options"]
    assert options == {"spark.driver.memory": "3g", "spark.jars": ",".join(list_jars(ROOT / ".jars"))}


def test_launch_options_have_every_option_that_counts_before_the_jvm_except_the_master() -> None:
    given = {**dict.fromkeys(LAUNCH_OPTIONS, "x"), **REQUIRED_OPTIONS, "spark.jars.packages": "a:b:1"}
    assert launch_options(given).keys() == (LAUNCH_OPTIONS | {"spark.jars.packages"}) - {"spark.master"}


def test_driver_memory_of_the_environment_counts_unless_it_was_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "5g")
    assert main([]) == 0
    assert json.loads(capsys.readouterr().out)["options"]["spark.driver.memory"] == "5g"


def test_the_schedulers_python_is_replaced_and_its_spark_configuration_kept(tmp_path: Path) -> None:
    scheduler = {
        "PYSPARK_PYTHON": "/scheduler/python",
        "SPARK_HOME": "/scheduler/spark",
        "SPARK_CONF_DIR": "/etc/spark",
        "PATH": "/scheduler/bin",
        "AWS_SECRET_ACCESS_KEY": "hush",
    }
    variables = launch_environment({"spark.master": "spark://host:7077"}, scheduler)
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == str(ROOT / ".venv/bin/python")
    assert (Path(variables["SPARK_HOME"]) / "bin" / "spark-submit").is_file()
    assert variables["SPARK_CONF_DIR"] == "/etc/spark"
    assert variables["PATH"].split(os.pathsep) == [str(ROOT / ".venv/bin"), "/scheduler/bin"]
    assert "AWS_SECRET_ACCESS_KEY" not in variables


def test_only_a_local_master_is_bound_to_the_loopback_address() -> None:
    assert launch_environment({"spark.master": "local[2]"}, {})["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in launch_environment({"spark.master": "spark://host:7077"}, {})


def test_wrong_settings_are_refused_on_one_line_before_any_jvm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", "warehose.uri=x"]) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    assert answer.err == (
        "coldlog: unknown setting warehose.uri (--set): did you mean warehouse.uri? "
        f"`{COMMAND} config show` lists all\n"
    )


def test_a_driver_that_imports_the_executors_package_finds_the_checkout(tmp_path: Path) -> None:
    """Spark's own spark-submit puts this package before all others."""
    package = package_zip()
    program = (
        "import coldlog, coldlog.formats.kafka.record_batch; "
        "from coldlog.launch.executor_packages import package_zip; "
        "from coldlog.runtime.installation import ROOT, COMMAND; "
        "print(coldlog.__file__, ROOT, package_zip(), sep='\\n')"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": str(package)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert told == [f"{package}/coldlog/__init__.pyc", str(ROOT), str(package)]
