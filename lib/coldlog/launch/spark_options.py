"""Make the options with which Spark must start.

They have three origins, and the later one wins: options that correct answers need (`REQUIRED_OPTIONS`), `spark.*` of
the settings, and the environment (`MASTER`, `SPARK_DRIVER_MEMORY`). Refused with `UsageError`: a start without Delta's
jars, and tables in a bucket with a Spark that cannot keep two drivers apart there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from coldlog.errors import UsageError
from coldlog.launch.driver_jvm import DEFAULT_OPTIONS, driver_jvm_options
from coldlog.launch.executor_packages import UNPACKED_NAME, package_zip, packages_archive
from coldlog.launch.s3a_options import LOG_STORE, executor_s3_place, refuse_secrets, s3a_options
from coldlog.runtime.installation import SETUP, default_jar_directory, kernel_directory, own_jar
from coldlog.runtime.settings import Settings
from coldlog.runtime.spark.spark_versions import installed_series
from coldlog.tables.delta.locations import bucket_and_prefix, spark_uri

PAGE_CHECKSUMS = {"parquet.page.write-checksum.enabled": "true", "parquet.page.verify-checksum.enabled": "true"}
"""With these options of Hadoop, a damaged page of a table is an error; without, it may give other rows."""

REQUIRED_OPTIONS: dict[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Named and positional parameters of SQL fail once Delta's extension is loaded, unless they are constants.
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
    # Timestamps are epoch milliseconds; they are shown in UTC.
    "spark.sql.session.timeZone": "UTC",
    # Index tables have small logs: one partition reads a snapshot faster than Delta's default of 50.
    "spark.databricks.delta.snapshotPartitions": "1",
    # Tables stay readable by delta-rs and DuckDB.
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    "spark.databricks.delta.properties.defaults.columnMapping.mode": "none",
    "spark.databricks.delta.properties.defaults.checkpointPolicy": "classic",
    # With these properties only Spark could commit to a table, and a run with nothing new would have to start Spark.
    "spark.databricks.delta.properties.defaults.enableRowTracking": "false",
    "spark.databricks.delta.properties.defaults.enableChangeDataFeed": "false",
    "spark.databricks.delta.properties.defaults.enableInCommitTimestamps": "false",
    # Delta refuses a version whose commit is older than a week, even if it was current yesterday. Vacuum keeps its
    # files.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    **{f"spark.hadoop.{key}": value for key, value in PAGE_CHECKSUMS.items()},
    "spark.ui.showConsoleProgress": "false",
    **LOG_STORE,
}

_S3_PLACE = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")

LAUNCH_OPTIONS: frozenset[str] = frozenset(
    {
        "spark.master",
        "spark.jars",
        "spark.driver.memory",
        "spark.driver.extraJavaOptions",
        DEFAULT_OPTIONS,
        "spark.driver.extraClassPath",
        "spark.archives",
    }
)
"""Options that have an effect only before the driver's JVM runs."""


def spark_options(
    settings: Settings,
    environment: Mapping[str, str],
    *,
    places: Iterable[str] = (),
    jar_directory: Path | None = None,
    has_rows_in_spark: bool = True,
) -> dict[str, str]:
    """Return every option of the session, `spark.master` and `spark.jars` included.

    `places` are the paths and URIs that the session reads or writes beside the warehouse.
    `has_rows_in_spark`: see `driver_jvm_options`. `jar_directory`: the folder of the jars, if it is not the default.
    """
    options = dict(REQUIRED_OPTIONS)
    if settings.warehouse.uri is not None:
        require_conditional_puts(settings.warehouse.uri)
        options["spark.sql.warehouse.dir"] = spark_uri(settings.warehouse.uri)
    is_on_s3 = any(bucket_and_prefix(each) for each in (settings.warehouse.uri, *places) if each is not None)
    if is_on_s3:
        options.update(s3a_options())
    refuse_secrets(settings.spark)
    options.update(settings.spark)
    options["spark.master"] = master_of(settings, environment)
    memory = environment.get("SPARK_DRIVER_MEMORY")
    if memory and settings.origin("spark.driver.memory") != "--set":
        options["spark.driver.memory"] = memory
    is_on_this_machine = is_local(options["spark.master"])
    options.update(
        driver_jvm_options(settings, environment, is_local=is_on_this_machine, has_rows_in_spark=has_rows_in_spark)
    )
    if is_on_this_machine:
        options.setdefault("spark.driver.host", "127.0.0.1")
        options.setdefault("spark.driver.bindAddress", "127.0.0.1")
    else:
        s3_place = executor_s3_place() if is_on_s3 else {}
        options = {**s3_place, **_executor_options(settings, environment), **options}
    if "spark.jars" not in options:
        resolved = [] if "spark.jars.packages" in options else list_jars(jar_directory or default_jar_directory())
        if found := [*([str(own)] if (own := own_jar()) else []), *resolved]:
            options["spark.jars"] = ",".join(found)
    return options


def master_of(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return the master of a session with these settings."""
    return environment.get("MASTER") or settings.spark.get("spark.master", "local[*]")


def require_conditional_puts(warehouse_uri: str) -> None:
    """Refuse, with `UsageError`, a warehouse in a bucket if the installed Spark cannot write to it safely."""
    series = installed_series()
    if bucket_and_prefix(warehouse_uri) and not series.puts_conditionally:
        raise UsageError(
            f"the Hadoop of Spark {series.name} has no conditional puts, without which two drivers overwrite each "
            f"other's commits in {warehouse_uri}: install pyspark 4.1 or 4.2, or set warehouse.uri to a directory"
        )


def _executor_options(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """What the workers of a cluster need to run coldlog's tasks."""
    options = {
        "spark.submit.pyFiles": str(package_zip()),
        # In the executor's working directory: its Python workers share what one of them compiled.
        "spark.executorEnv.NUMBA_CACHE_DIR": "numba-cache",
    }
    if settings.cluster.ship_packages:
        options["spark.archives"] = f"{packages_archive()}#{UNPACKED_NAME}"
        options["spark.executorEnv.PYTHONPATH"] = UNPACKED_NAME
    # The S3 endpoint is no secret. Credentials are: workers have their own.
    for name in _S3_PLACE:
        if name in environment:
            options[f"spark.executorEnv.{name}"] = environment[name]
    return options


def executor_python(settings: Settings, master: str) -> str:
    """The interpreter of the workers; for a local master it is the current one."""
    return sys.executable if is_local(master) else settings.cluster.python


def is_local(master: str) -> bool:
    """Whether the driver and the executors run on this machine."""
    return master.split("[")[0] in ("local", "local-cluster")


def list_jars(directory: Path) -> list[str]:
    """List the jars that `make setup` or `coldlog setup` resolved."""
    jars = sorted(str(each) for each in directory.glob("*.jar"))
    if not jars:
        raise UsageError(f"no jars in {directory}: run `{SETUP}`, or set spark.jars")
    return jars


def process_environment(
    environment: Mapping[str, str], master: str, *, python: str, conf: Path, worker_python: str = ""
) -> dict[str, str]:
    """The environment variables of a driver: Python, configuration, address, numba's cache; those of the user win."""
    needed = {
        "PYSPARK_PYTHON": worker_python or python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_CONF_DIR": str(conf),
        "NUMBA_CACHE_DIR": str(kernel_directory(Path(python).parent.parent)),
        # Spark needs the same hash of a text in every Python worker.
        "PYTHONHASHSEED": "0",
    }
    if is_local(master):
        needed["SPARK_LOCAL_IP"] = "127.0.0.1"
    return {**needed, **environment}
