"""session: how does a process get a Spark session that reads and writes coldlog's tables?

A job, a test or a notebook starts Spark's JVM here, with the options of `coldlog.spark_options`. In a process that
spark-submit started, the session takes the options it was submitted with and adds what is missing: what a cluster or a
scheduler has set is left alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from coldlog.settings import Settings
from coldlog.settings_sources import REPOSITORY
from coldlog.source.datasource import register_source, source_defaults
from coldlog.spark_gateway import start_gateway
from coldlog.spark_options import LAUNCH_OPTIONS, executor_python, process_environment, spark_options


def spark_session(settings: Settings, app_name: str = "coldlog", *, places: Collection[str] = ()) -> SparkSession:
    """The session of this process; the first call starts Spark. `places`: as those of `spark_options`."""
    if _has_jvm():
        submitted = SparkConf()
        options = {
            key: value
            for key, value in spark_options(settings, os.environ, places=places).items()
            if key not in LAUNCH_OPTIONS and not submitted.contains(key)
        }
    else:
        options = spark_options(settings, os.environ, places=places)
        _start_jvm(options, executor_python(settings, options["spark.master"]))
    builder = SparkSession.builder.appName(app_name)
    for key, value in options.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register_source(session, source_defaults(settings))
    return session


def _has_jvm() -> bool:
    # The variable is spark-submit's word to the driver it starts.
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _start_jvm(options: dict[str, str], worker_python: str) -> None:
    needed = process_environment(
        os.environ,
        options["spark.master"],
        python=sys.executable,
        conf=REPOSITORY / "conf",
        worker_python=worker_python,
    )
    os.environ.update(needed)
    # The Spark beside pyspark, whatever SPARK_HOME says: another version would not understand it.
    gateway = start_gateway(Path(pyspark.__file__).parent, options, os.environ)
    os.environ.update(gateway.environment)
    SparkContext._ensure_initialized()
    # A job that this process starts would take them for its own JVM.
    for variable in gateway.environment:
        del os.environ[variable]
