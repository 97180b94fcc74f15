"""Test the session and its start: options, Delta, and what a user sees."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.launch.executor_packages import list_shipped_packages
from coldlog.launch.spark_options import (
    REQUIRED_OPTIONS,
    executor_python,
    is_local,
    list_jars,
    process_environment,
    spark_options,
)
from coldlog.launch.submit import list_jobs, main, usage
from coldlog.runtime.installation import ROOT
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import load_settings

JOB = '''"""Check whether it does {name}."""
import os, sys, time
from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.errors import ArchiveError, ColdlogError, Reason, UsageError
def call(job):
{body}
if __name__ == "__main__":
    sys.exit(run_job(call, job_argument_parser(__file__, __doc__)))
'''


def run_python(script: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "a.jar").touch()
    return directory


def test_delta_tables_are_written_and_read_and_need_no_reader_feature(spark: SparkSession, warehouse: Path) -> None:
    location = str(warehouse / "numbers")
    spark.range(10).write.format("delta").save(location)
    spark.sql(f"DELETE FROM delta.`{location}` WHERE id < 3")
    assert spark.read.format("delta").load(location).count() == 7
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{location}`").first()
    assert detail is not None
    assert detail.minReaderVersion == 1
    assert "deletionVectors" not in detail.tableFeatures


def test_sql_takes_named_parameters_with_delta_loaded(spark: SparkSession) -> None:
    rows = spark.sql("SELECT id FROM range(10) WHERE id > :floor", args={"floor": 7}).collect()
    assert [row.id for row in rows] == [8, 9]


def test_every_required_option_is_set(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in REQUIRED_OPTIONS} == REQUIRED_OPTIONS


def test_nothing_is_written_into_the_users_directory(spark: SparkSession, spark_settings: Settings) -> None:
    warehouse_directory = spark.conf.get("spark.sql.warehouse.dir") or ""
    assert warehouse_directory.removeprefix("file:") == spark_settings.warehouse_uri


def test_master_comes_from_the_environment_then_from_the_settings_then_is_local(jars: Path) -> None:
    plain, clustered = Settings(), Settings(spark={"spark.master": "spark://host:7077"})
    assert spark_options(plain, {}, jar_directory=jars)["spark.master"] == "local[*]"
    assert spark_options(clustered, {}, jar_directory=jars)["spark.master"] == "spark://host:7077"
    assert spark_options(clustered, {"MASTER": "local[3]"}, jar_directory=jars)["spark.master"] == "local[3]"


def test_driver_memory_of_the_environment_wins_over_files_but_not_over_set(jars: Path) -> None:
    environment = {"SPARK_DRIVER_MEMORY": "5g"}
    from_file = load_settings("local")
    from_user = load_settings("local", ["spark.driver.memory=3g"])
    assert spark_options(from_file, {}, jar_directory=jars)["spark.driver.memory"] == "2g"
    assert spark_options(from_file, environment, jar_directory=jars)["spark.driver.memory"] == "5g"
    assert spark_options(from_user, environment, jar_directory=jars)["spark.driver.memory"] == "3g"


def test_addresses_and_shuffles_of_a_cluster_are_not_changed(jars: Path) -> None:
    settings = load_settings("cluster", ["cluster.ship_packages=false"])
    options = spark_options(settings, {"MASTER": "spark://host:7077"}, jar_directory=jars)
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"} & options.keys()
    assert "SPARK_LOCAL_IP" not in process_environment({}, "spark://host:7077", python="/v/bin/python", conf=jars)
    assert not is_local("spark://localhost:7077")


def test_workers_get_the_package_and_the_s3_endpoint_but_no_credentials(jars: Path) -> None:
    settings = load_settings("cluster", ["cluster.ship_packages=false", "cluster.python=/opt/python3.11"])
    s3 = {"AWS_ENDPOINT_URL": "https://minio:9000", "AWS_REGION": "eu-north-1", "AWS_SECRET_ACCESS_KEY": "hush"}
    options = spark_options(settings, {"MASTER": "spark://host:7077", **s3}, jar_directory=jars)
    with zipfile.ZipFile(options["spark.submit.pyFiles"]) as package:
        assert {"coldlog/__init__.py", "coldlog/lookups/sql/list_offsets.sql"} <= set(package.namelist())
    assert options["spark.executorEnv.AWS_ENDPOINT_URL"] == "https://minio:9000"
    assert options["spark.executorEnv.AWS_REGION"] == "eu-north-1"
    assert "hush" not in "".join(options.values())
    assert "spark.archives" not in options
    assert executor_python(settings, "spark://host:7077") == "/opt/python3.11"
    assert executor_python(settings, "local[2]") == sys.executable


def test_workers_get_the_endpoint_of_the_drivers_profile(
    jars: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profile = tmp_path / "config"
    profile.write_text("[profile lake]\nendpoint_url = https://ceph:7480\nregion = eu-north-1\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(profile))
    monkeypatch.setenv("AWS_PROFILE", "lake")
    on_s3 = ["cluster.ship_packages=false", "warehouse.uri=s3://lake/coldlog"]
    options = spark_options(load_settings("cluster", on_s3), {"MASTER": "spark://host:7077"}, jar_directory=jars)
    assert options["spark.hadoop.fs.s3a.endpoint"] == "https://ceph:7480"
    assert options["spark.executorEnv.AWS_ENDPOINT_URL_S3"] == "https://ceph:7480"
    assert options["spark.executorEnv.AWS_REGION"] == "eu-north-1"


def test_spark_gets_s3_options_for_a_bucket_that_is_only_written(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://minio:9000")
    settings = load_settings("local", ["warehouse.uri=/data/coldlog"])
    for places in ((), ("replayed", "orders,payments")):
        assert not [
            each for each in spark_options(settings, {}, places=places, jar_directory=jars) if "fs.s3a." in each
        ]
    options = spark_options(settings, {}, places=("nightly", "s3://lake/replayed"), jar_directory=jars)
    assert options["spark.hadoop.fs.s3a.endpoint"] == "https://minio:9000"
    assert options["spark.sql.warehouse.dir"].endswith("/data/coldlog")


def test_the_archive_for_workers_has_what_tasks_import_without_spark() -> None:
    names = {each.name.lower().replace("_", "-") for each in list_shipped_packages()}
    assert {"pyarrow", "numba", "numpy", "delta-spark", "deltalake", "s3fs", "cryptography", "zstandard"} <= names
    assert not {"pyspark", "great-expectations", "pytest", "coldlog"} & names


def test_spark_defaults_equal_the_options_that_sessions_set() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    told = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    assert told == REQUIRED_OPTIONS


def test_a_secret_in_settings_is_refused_and_not_shown(jars: Path) -> None:
    with pytest.raises(UsageError, match="fs.s3a.secret.key must not be a setting") as refused:
        spark_options(Settings(spark={"spark.hadoop.fs.s3a.secret.key": "hush"}), {}, jar_directory=jars)
    assert "hush" not in str(refused.value)


def test_the_users_jars_replace_the_default_ones_and_missing_jars_are_refused(tmp_path: Path, jars: Path) -> None:
    mine = Settings(spark={"spark.jars.packages": "a:b:1"})
    assert "spark.jars" not in spark_options(mine, {}, jar_directory=tmp_path)
    assert spark_options(Settings(), {}, jar_directory=jars)["spark.jars"] == str(jars / "a.jar")
    with pytest.raises(UsageError, match="make setup"):
        list_jars(tmp_path / "nothing")


def test_jobs_are_listed_with_the_first_line_of_their_docstring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "count_sheep.py").write_text('"""Count the sheep: all of them.\n\nMany.\n"""\n')
    assert list_jobs(tmp_path) == {"count_sheep": "Count the sheep: all of them."}
    assert "  count_sheep  Count the sheep: all of them." in usage(tmp_path)
    assert main(["count_goats"], tmp_path) == 2
    assert "unknown job count_goats: did you mean count_sheep? give one of count_sheep" in capsys.readouterr().err


def test_help_is_printed_without_a_session(tmp_path: Path) -> None:
    command = [str(ROOT / "spark-submit.sh"), "run_pipeline", "--help"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("usage: spark-submit.sh run_pipeline ")


def test_a_job_prints_only_progress_on_stderr_and_results_on_stdout(tmp_path: Path) -> None:
    script = tmp_path / "speak.py"
    script.write_text(
        JOB.format(name="speak", body='    job.console.note("progress")\n    job.console.result("result")')
    )
    answer = run_python(script, "--set", "warehouse.uri=w", cwd=tmp_path)
    assert answer.stdout == "result\n"
    # The first job on a machine also keeps Java's classes.
    first, *rest = (line for line in answer.stderr.splitlines() if not line.startswith("classes "))
    assert first.startswith("spark       Spark 4.")
    assert (rest, answer.returncode) == (["progress"], 0)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["speak.py"]


SEVERAL_JOBS = """
import os, sys
from coldlog.launch.entry_point import job_argument_parser, run_job
from coldlog.errors import ColdlogError, UsageError
{functions}
for call in ({names}):
    code = run_job(call, job_argument_parser("fail", ""), [])
    print("== the end:", code, file=sys.stderr, flush=True)
"""
IN_A_WORKER = """
    def rows(batches):
        for batch in batches:
            {statement}
            yield batch
    job.spark.range(9).mapInArrow(rows, "id BIGINT").{end}
"""
ENDS = {
    "code": "    return 7",
    "usage": '    raise UsageError("no such topic")',
    "error": '    raise ColdlogError("the store is down")',
    "crash": "    return 1 // 0",
    "worker_usage": IN_A_WORKER.format(
        statement='raise UsageError("no bucket there; correct archive.uri")', end="collect()"
    ),
    "worker_crash": IN_A_WORKER.format(statement="1 // 0", end="collect()"),
}


@pytest.fixture(scope="module")
def ended_jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit code and stderr of each case of `ENDS`; one process and its JVM run them one after another."""
    folder = tmp_path_factory.mktemp("ends")
    functions = "\n".join(f"def {name}(job):\n{body}" for name, body in ENDS.items())
    script = folder / "fail.py"
    script.write_text(SEVERAL_JOBS.format(functions=functions, names=", ".join(ENDS)))
    answer = run_python(script, cwd=folder)
    assert answer.returncode == 0, answer.stderr
    parts = re.split(r"== the end: (\d+)\n", answer.stderr)
    return {name: (int(code), told) for name, told, code in zip(ENDS, parts[::2], parts[1::2], strict=False)}


@pytest.mark.parametrize(
    ("name", "code", "last_line"),
    [
        ("code", 7, "spark "),
        ("usage", 2, "spark-submit.sh fail: no such topic"),
        ("error", 1, "spark-submit.sh fail: the store is down"),
        ("crash", 1, "ZeroDivisionError"),
        ("worker_usage", 2, "spark-submit.sh fail: no bucket there; correct archive.uri"),
    ],
)
def test_a_job_ends_with_an_exit_code_and_prints_its_error(
    ended_jobs: dict[str, tuple[int, str]], name: str, code: int, last_line: str
) -> None:
    found_code, told = ended_jobs[name]
    assert found_code == code
    assert told.splitlines()[-1].startswith(last_line)
    # Spark's log shows a worker's traceback; the driver's, with all of Spark and py4j, would say no more.
    assert "pyspark.errors" not in told
    assert ("Traceback" in told) == (name in ("crash", "worker_usage"))


def test_a_bug_in_a_worker_keeps_its_traceback(ended_jobs: dict[str, tuple[int, str]]) -> None:
    code, told = ended_jobs["worker_crash"]
    assert code == 1
    assert "pyspark.errors" in told
    assert "ZeroDivisionError" in told


KILL_JVM = "os.kill(int(job.spark._jvm.java.lang.ProcessHandle.current().pid()), 9)"
FULL_HEAP = '    job.spark.range(90_000_000).selectExpr("collect_list(repeat(id, 90))").collect()'


@pytest.mark.parametrize(
    ("body", "what", "advice"),
    [
        (f"    {KILL_JVM}\n    job.spark.range(9).count()", "spark's JVM has ended by SIGKILL", "start the job again"),
        (
            f"    import threading; threading.Timer(3, lambda: {KILL_JVM}).start()"
            + IN_A_WORKER.format(statement="time.sleep(9)", end="toArrow()"),
            "spark's JVM has ended by SIGKILL",
            "SPARK_DRIVER_MEMORY",
        ),
        (
            IN_A_WORKER.format(statement="pass", end="collect()")
            + f"    {KILL_JVM}\n    time.sleep(0.5)\n    job.spark.range(9).count()",
            "spark's JVM has ended by SIGKILL",
            "start the job again",
        ),
        (f"    {KILL_JVM}", "spark's JVM has ended by SIGKILL", "start the job again"),
        ("    job.spark._jvm.java.lang.System.exit(52)", "the heap of spark's JVM was full", "SPARK_DRIVER_MEMORY=4g"),
        (FULL_HEAP, "the heap of spark's JVM was full", "SPARK_DRIVER_MEMORY=4g"),
        (
            IN_A_WORKER.format(statement="os.kill(os.getpid(), 9)", end="collect()"),
            "a python worker of spark was killed or crashed in task ",
            "MASTER=local[1]",
        ),
    ],
    ids=[
        "jvm-between-calls",
        "jvm-in-a-call",
        "jvm-behind-workers",
        "jvm-at-the-end",
        "jvm-ended-itself",
        "heap",
        "worker",
    ],
)
def test_the_end_of_a_spark_process_is_explained_in_a_few_lines(
    tmp_path: Path, body: str, what: str, advice: str
) -> None:
    script = tmp_path / "fall.py"
    script.write_text(JOB.format(name="fall", body=body))
    answer = run_python(script, "--set", "spark.driver.memory=512m", cwd=tmp_path)
    told = answer.stderr.partition("spark-submit.sh fall: ")[2]
    assert answer.returncode == 1
    assert told.startswith(what)
    assert advice in told
    assert len(told.splitlines()) <= 4
    assert "Traceback" not in answer.stderr


SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"


def jvm_of(jars: Path, *assignments: str, has_rows_in_spark: bool = False, **environment: str) -> str | None:
    settings = load_settings("local", assignments)
    options = spark_options(settings, environment, jar_directory=jars, has_rows_in_spark=has_rows_in_spark)
    assert options.get("spark.driver.extraJavaOptions") == settings.spark.get("spark.driver.extraJavaOptions")
    return options.get("spark.driver.defaultJavaOptions")


def test_jvm_is_small_for_bookkeeping_on_a_local_master_unless_a_setting_says_otherwise(jars: Path) -> None:
    assert jvm_of(jars) == jvm_of(jars, MASTER="local[7]") == SMALL_JVM
    cluster = ("cluster.ship_packages=false",)
    assert jvm_of(jars, *cluster, MASTER="spark://host:7077") is None
    assert jvm_of(jars, *cluster, "driver.jvm=small", MASTER="spark://host:7077") == SMALL_JVM
    assert jvm_of(jars, has_rows_in_spark=True) is None
    assert jvm_of(jars, "driver.jvm=small", has_rows_in_spark=True) == SMALL_JVM
    assert jvm_of(jars, "driver.jvm=default") is None


def test_java_options_of_the_user_are_kept_and_replace_those_of_the_same_kind(jars: Path) -> None:
    quick, cache, serial = SMALL_JVM.split()
    assert jvm_of(jars, "spark.driver.extraJavaOptions=-Dsome=thing") == SMALL_JVM
    assert jvm_of(jars, "spark.driver.extraJavaOptions=-XX:+UseG1GC -Da=b") == f"{quick} {cache}"
    assert jvm_of(jars, SPARK_SUBMIT_OPTS="-XX:-TieredCompilation") == f"{cache} {serial}"
    assert jvm_of(jars, f"spark.driver.defaultJavaOptions={cache}") == f"{quick} {serial} {cache}"
    assert jvm_of(jars, SPARK_CONF_DIR="/etc/spark") is None
    assert jvm_of(jars, "driver.jvm=small", SPARK_CONF_DIR="/etc/spark") == SMALL_JVM
