"""Test the installed package: what it answers without a checkout, what it takes, what it says is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from environment import JARS

from dag_jobs import load_dag_jobs
from installed_package import SAMPLE, Demo, Installed, list_ranges

HOT = "2023-11-15T10:00Z"


def _rows(ran: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in ran.splitlines()]


def test_a_lookup_is_answered_without_spark_numba_and_codecs(bare: Installed, warehouse: Path) -> None:
    (answer,) = _rows(bare.run("lookup", "orders", HOT, "-p", "0", "--json", "-w", str(warehouse)).stdout)
    assert (answer["offset"], answer["offset_timestamp_ms"]) == (2592, 1700043201130)
    present = bare.run_python(
        "from importlib.util import find_spec\n"
        "print([name for name in ('pyspark', 'numba', 'pandas', 'cramjam', 's3fs', 'kafka') if find_spec(name)])"
    )
    assert present == "[]\n"


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (["topics"], 3),
        (["partitions", "orders"], 1),
        (["segments", "orders"], 16),
        (["offsets", "orders", "latest-tiered"], 1),
    ],
)
def test_the_tables_are_listed(bare: Installed, warehouse: Path, command: list[str], count: int) -> None:
    assert len(_rows(bare.run(*command, "--json", "-w", str(warehouse)).stdout)) == count


def test_settings_come_from_the_package_a_file_and_a_variable(bare: Installed, warehouse: Path) -> None:
    (bare.home / "mine.toml").write_text(f'warehouse.uri = "{warehouse}"\n')
    shown = _rows(bare.run("config", "show", "--json", "--config", "mine.toml").stdout)
    origins = {row["setting"]: (row["value"], row["from"]) for row in shown}
    assert origins["warehouse.uri"] == (str(warehouse), "mine.toml")
    assert origins["archive.layout"] == ("local_tiered_storage", "conf/base.toml")
    assert origins["archive.uri"] == (None, "default")
    assert bare.run("topics", "--config", "mine.toml").stdout


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["cat", "orders", "--set", f"archive.uri={SAMPLE}"], "records"),
        (["serve"], "serve"),
        (["run"], "spark"),
        (["copy"], "records"),
        (["lookup", "orders", HOT, "-w", "s3://bucket/tables"], "s3"),
    ],
)
def test_a_missing_extra_is_named_on_one_line(bare: Installed, warehouse: Path, command: list[str], extra: str) -> None:
    where = [] if command[0] in ("run", "copy", "serve", "lookup") else ["-w", str(warehouse)]
    refused = bare.run(*command, *where, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.endswith(f"pip install 'coldlog[{extra}]'\n")
    assert refused.stderr.count("\n") == 1


def test_help_is_printed_without_extras(bare: Installed) -> None:
    for command, name in (
        ("run", "run_pipeline"),
        ("replay", "replay_topics"),
        ("copy", "copy_segments"),
        ("serve", "serve"),
    ):
        assert bare.run(command, "--help").stdout.startswith(f"usage: coldlog {name} ")


def test_the_oldest_versions_are_those_that_are_declared(with_records: Installed) -> None:
    """So that an environment of the oldest is not another of the newest."""
    versions = {each.name: with_records.version(each.name) for each in list_ranges() if each.name in ("numpy", "numba")}
    assert all(each.specifier.contains(versions[each.name]) for each in list_ranges() if each.name in versions)
    assert (versions["numpy"].startswith("2.1.")) == with_records.is_oldest


def test_the_bare_package_takes_less_than_400_mb(bare: Installed) -> None:
    assert bare.installed_bytes() < 400_000_000


def test_records_are_printed_with_the_extra_records(with_records: Installed, warehouse: Path) -> None:
    """The same records as in the tutorial."""
    printed = with_records.run(
        *("cat", "orders", "-o", "2592", "-c", "3", "-f", "%o %T %k\\n", "-w", str(warehouse)),
        *("--set", f"archive.uri={SAMPLE}"),
    )
    assert printed.stdout == "2592 1700043201130 k222\n2593 1700043202122 k162\n2594 1700043203550 k152\n"


def test_the_package_with_records_takes_less_than_650_mb(with_records: Installed) -> None:
    assert with_records.installed_bytes() < 650_000_000


def test_importing_the_package_has_no_side_effects(bare: Installed) -> None:
    told = bare.run_python(
        "import sys, os, threading\n"
        "before = (dict(os.environ), threading.active_count(), set(os.listdir('.')))\n"
        "import coldlog, coldlog.reader, coldlog.errors\n"
        "assert (dict(os.environ), threading.active_count(), set(os.listdir('.'))) == before\n"
        "print(sorted({'pandas', 'numba', 'pyspark', 'asyncio'} & sys.modules.keys()))"
    )
    assert told == "[]\n"


def test_the_demo_indexes_and_asks_what_the_package_carries(demo: Demo) -> None:
    asked, answers = zip(*(part.split("\n", 1) for part in demo.printed.split("\n$ coldlog ")[1:]), strict=True)
    assert [each.split()[0] for each in asked] == ["run", "topics", "lookup", "offsets", "cat", "problems"]
    _run, topics, lookup, _offsets, records, problems = answers
    assert [line.split()[0] for line in topics.splitlines()[2:5]] == ["crashy-upload", "orders", "payments"]
    assert " 2592 " in lookup
    assert records.splitlines()[0] == "2592 1700043201130 k222"
    assert "crashy-upload" in problems


def test_launch_options_are_words_for_spark_submit_that_name_files_of_the_package(with_everything: Installed) -> None:
    with_everything.run("setup", "--from", str(JARS))
    words = with_everything.run("launch-options", "run_pipeline").stdout.split()
    script, options = Path(words[-1]), Path(words[words.index("--properties-file") + 1])
    assert (script.name, script.is_file()) == ("run_pipeline.py", True)
    told = dict(line.split(" ", 1) for line in options.read_text().splitlines())
    jars = [Path(jar) for jar in told["spark.jars"].split(",")]
    assert all(jar.is_file() for jar in jars)
    assert {"coldlog.jar", "delta-storage-4.4.0.jar"} <= {jar.name for jar in jars}
    assert told["spark.pyspark.python"] == str(with_everything.python)


def test_a_job_starts_with_sparks_own_spark_submit(with_everything: Installed, warehouse: Path) -> None:
    with_everything.run("setup", "--from", str(JARS))
    tables = ("--set", f"warehouse.uri={warehouse}")
    words = with_everything.run("launch-options", "lookup_offsets", *tables).stdout.split()
    asked = ("--topic", "orders", "--partition", "0", "--timestamp", HOT)
    assert "2592" in with_everything.run_spark_submit(*words, *tables, *asked).split()


def test_the_dags_of_the_package_submit_its_jobs(
    with_everything: Installed, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What spark-submit gets of a task, without Airflow."""
    jars = with_everything.run("setup", "--from", str(JARS)).stdout.strip()
    environment = with_everything.python.parents[1]
    (package,) = environment.glob("lib/python3.*/site-packages/coldlog")
    assert {each.name for each in (package / "dags").iterdir()} >= {"coldlog_pipeline.py", ".airflowignore"}
    assert (package / "conf" / "systemd" / "coldlog-serve.service").is_file()
    variables = {"coldlog_home": str(environment), "coldlog_settings": json.dumps({"warehouse.uri": str(warehouse)})}
    with load_dag_jobs(package / "dags", variables) as dag_jobs:
        monkeypatch.setenv("COLDLOG_JARS", jars)
        task = dag_jobs.ColdlogJob(task_id="scan_segments", job="scan_segments")
        task.execute({"params": {}})
    assert Path(task.application) == package / "jobs" / "scan_segments.py"
    assert Path(task.application).is_file()
    assert task.application_args == ["--env", "local", f"--set=warehouse.uri={warehouse}"]
    assert str(package / "jars" / "coldlog.jar") in task.conf["spark.jars"].split(",")
    assert task.env_vars["PYSPARK_DRIVER_PYTHON"] == str(with_everything.python)


def test_jars_that_are_missing_are_named_with_the_command_that_resolves_them(with_everything: Installed) -> None:
    refused = with_everything.run("launch-options", "--set", "driver.jvm=small", check=False, COLDLOG_CACHE="none")
    assert (refused.returncode, refused.stderr.count("run `coldlog setup`")) == (2, 1)


def test_a_driver_that_imports_the_executors_package_finds_the_installed_files(bare: Installed) -> None:
    """Spark's own spark-submit puts this package before all others."""
    packed = bare.run_python("from coldlog.launch.executor_packages import package_zip; print(package_zip())").strip()
    assert Path(packed).is_relative_to(bare.home / "cache" / "coldlog")
    program = "import coldlog; from coldlog.runtime.installation import POM; print(coldlog.__file__, POM.is_file())"
    assert bare.run_python(program, PYTHONPATH=packed) == f"{packed}/coldlog/__init__.pyc True\n"


def test_workers_get_what_tasks_import_without_spark(with_everything: Installed) -> None:
    program = (
        "from coldlog.launch.executor_packages import list_shipped_packages\n"
        "print(*(each.name.lower().replace('_', '-') for each in list_shipped_packages()))"
    )
    names = set(with_everything.run_python(program).split())
    assert {"pyarrow", "numba", "numpy", "delta-spark", "deltalake", "s3fs", "cryptography", "zstandard"} <= names
    assert not {"pyspark", "great-expectations", "matplotlib", "coldlog"} & names
