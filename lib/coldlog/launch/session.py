"""Start a Spark session that reads and writes coldlog's tables.

A job, a test or a notebook starts Spark's JVM here, with the options of `coldlog.launch.spark_options`. In a process
that spark-submit started, the session keeps the options it was submitted with and adds only missing ones, so that it
does not override a cluster or a scheduler.

If no master of a standalone cluster (`spark://`) answers, `RetriableError` is raised. Spark needs two minutes to notice
and reports it only in its log, so the masters' ports are tried first.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from coldlog.errors import RetriableError, UsageError
from coldlog.launch.java_names import keep_names
from coldlog.launch.spark_options import LAUNCH_OPTIONS, executor_python, master_of, process_environment, spark_options
from coldlog.records.source.datasource import register_source
from coldlog.records.source.options import source_defaults
from coldlog.runtime.installation import CONF, class_directory
from coldlog.runtime.settings import Settings
from coldlog.runtime.spark.class_archive import ClassSharing
from coldlog.runtime.spark.spark_gateway import start_gateway
from coldlog.tables.delta.locations import is_same_for_spark

_STANDALONE = "spark://"
_HOST_AND_PORT = re.compile(r"(?P<host>[^\s:/\[\]]+|\[[0-9a-fA-F:.]+\]):(?P<port>[0-9]{1,5})")
_CONNECT_S = 5.0
_WAS_STOPPED = ("stopped SparkContext", "All masters are unresponsive")


def late_options(
    settings: Settings, environment: Mapping[str, str], *, places: Collection[str] = (), has_rows_in_spark: bool = True
) -> dict[str, str] | None:
    """Return the options of a session that a job may start later, or not at all.

    None: the session must be started first. Either this process has a JVM, or a cluster has the executors, or Hadoop
    may take the tables for others than this process does (`is_same_for_spark`), or options that are not in the settings
    could say how Spark takes tables.
    """
    if _has_jvm() or environment.get("SPARK_CONF_DIR", str(CONF)) != str(CONF):
        return None
    if settings.warehouse.uri is None or not is_same_for_spark(settings.warehouse.uri, settings):
        return None
    if master_of(settings, environment).split("[")[0] != "local":
        return None
    return spark_options(settings, environment, places=places, has_rows_in_spark=has_rows_in_spark)


def spark_session(
    settings: Settings,
    app_name: str = "coldlog",
    *,
    places: Collection[str] = (),
    has_rows_in_spark: bool = True,
    may_write_classes: bool = False,
) -> SparkSession:
    """Return the session of this process; the first call starts Spark.

    `places` and `has_rows_in_spark`: see `spark_options`. `may_write_classes`: the caller writes the
    `unwritten_archive` of the JVM, if there is one.
    """
    if _has_jvm():
        submitted = SparkConf()
        master = submitted.get("spark.master", "")
        options = {
            key: value
            for key, value in spark_options(settings, os.environ, places=places).items()
            if key not in LAUNCH_OPTIONS and not submitted.contains(key)
        }
    else:
        # Before the options, because these may have to pack the packages first.
        require_master(master_of(settings, os.environ))
        options = spark_options(settings, os.environ, places=places, has_rows_in_spark=has_rows_in_spark)
        master = options["spark.master"]
        if master.split("[")[0] == "local" and "spark.jars" not in settings.spark:
            options = _with_jars_on_class_path(options)
        _start_jvm(options, executor_python(settings, master), may_write_classes=may_write_classes)
    builder = SparkSession.builder.appName(app_name)
    for key, value in options.items():
        builder = builder.config(key, value)
    session = _get_or_create(builder, master)
    keep_names(session._jvm)
    register_source(session, source_defaults(settings))
    return session


def require_master(master: str) -> None:
    """Raise `RetriableError` unless a master of a standalone cluster accepts a connection; ignore other masters."""
    if not master.startswith(_STANDALONE):
        return
    refusals = []
    for address in master.removeprefix(_STANDALONE).split(","):
        matched = _HOST_AND_PORT.fullmatch(address)
        if matched is None or int(matched["port"]) > 65_535:
            raise UsageError(f"not a master: {master}; give spark://host:port or spark://host:port,host:port")
        try:
            with socket.create_connection((matched["host"].strip("[]"), int(matched["port"])), timeout=_CONNECT_S):
                return
        except OSError as failure:
            refusals.append(f"{address}: {_why(failure)}")
    raise _no_master(master, "; ".join(refusals))


def _why(failure: OSError) -> str:
    if isinstance(failure, socket.gaierror):
        return "the name does not resolve"
    return "no answer" if isinstance(failure, TimeoutError) else failure.strerror or str(failure)


def _no_master(master: str, why: str) -> RetriableError:
    return RetriableError(f"no Spark master answers at {master} ({why}): start it, or correct MASTER or spark.master")


def _get_or_create(builder: SparkSession.Builder, master: str) -> SparkSession:
    try:
        return builder.getOrCreate()
    except Exception as failure:
        # If no master accepts the application, the context ends by itself during this call.
        if master.startswith(_STANDALONE) and any(each in str(failure) for each in _WAS_STOPPED):
            raise _no_master(master, "none took the application") from failure
        raise


def _has_jvm() -> bool:
    # spark-submit sets this variable for the driver that it starts.
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _with_jars_on_class_path(options: dict[str, str]) -> dict[str, str]:
    """The options with the jars on the driver's class path, where Java can share their classes.

    Spark would give `spark.jars` to a class loader of its own, and copy them for an executor in the same JVM.
    """
    jars = options.get("spark.jars", "")
    if not jars or os.pathsep in jars or "spark.driver.extraClassPath" in options:
        return options
    rest = {key: value for key, value in options.items() if key != "spark.jars"}
    return {**rest, "spark.driver.extraClassPath": jars.replace(",", os.pathsep)}


def _start_jvm(options: dict[str, str], worker_python: str, *, may_write_classes: bool) -> None:
    needed = process_environment(
        os.environ,
        options["spark.master"],
        python=sys.executable,
        conf=CONF,
        worker_python=worker_python,
    )
    os.environ.update(needed)
    # Use the Spark that ships with pyspark and ignore SPARK_HOME: another version would not understand pyspark.
    sharing = ClassSharing(folder=class_directory(), conf=CONF, may_write=may_write_classes)
    gateway = start_gateway(Path(pyspark.__file__).parent, options, os.environ, sharing)
    os.environ.update(gateway.environment)
    SparkContext._ensure_initialized()
    # Otherwise a job that this process starts would use this JVM.
    for variable in gateway.environment:
        del os.environ[variable]
