"""Start Spark for a job, make the job's call, and explain Spark's failures."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from coldlog.errors import ColdlogError
from coldlog.launch.session import late_options, spark_session
from coldlog.launch.stop_signals import StopSignals
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, job_console
from coldlog.runtime.settings import Settings
from coldlog.runtime.spark.late_session import LateSession
from coldlog.runtime.spark.spark_failures import error_of_a_worker, explain_failure, quiet_accumulators, quiet_gateway
from coldlog.runtime.spark.spark_gateway import end_jvm, jvm_exit_code, unwritten_archive
from coldlog.tables.delta.table_storage import require_reachable


def call_with_spark(
    call: Callable[[Job], int | None],
    settings: Settings,
    arguments: argparse.Namespace,
    stop: StopSignals,
    app_name: str,
    *,
    has_rows_in_spark: bool,
    starts_late: bool,
) -> int:
    """Start Spark, make the call, stop Spark; return the exit code. With `starts_late`, a job whose work is little
    starts no Spark (`late_options` says where)."""
    quiet_gateway()
    require_reachable(settings.warehouse_uri)
    console = job_console(arguments)
    # An argument may name a table or folder in a bucket although the warehouse is in a folder.
    places = [each for each in vars(arguments).values() if isinstance(each, str)]

    def start() -> SparkSession:
        with console.stage("spark") as stage:
            spark = spark_session(
                settings, app_name, places=places, has_rows_in_spark=has_rows_in_spark, may_write_classes=True
            )
            quiet_accumulators(spark.sparkContext)
            stage.add(
                f"Spark {spark.version}",
                spark.conf.get("spark.master") or "",
                f"{spark.sparkContext.defaultParallelism} cores",
            )
            return spark

    with _ending_when_stopped(stop):
        options = late_options(settings, os.environ, places=places, has_rows_in_spark=has_rows_in_spark)
        late = LateSession(options or {}, start)
        if options is None or not starts_late:
            late.started()
        try:
            with stop.calling_before(partial(_cancel_jobs, late)):
                exit_code = call(Job(spark=late.as_session(), settings=settings, arguments=arguments, console=console))
                _keep_classes(late, console)
                return exit_code or 0
        finally:
            spark = late.started_before()
            if spark is not None and jvm_exit_code() is None:
                spark.stop()


def _keep_classes(late: LateSession, console: Console) -> None:
    """Let the JVM write its classes for the next jobs, if none did so before."""
    spark = late.started_before()
    archive, gateway = unwritten_archive(), None if spark is None else spark.sparkContext._gateway
    if archive is None or gateway is None:
        return
    with console.stage("classes") as stage:
        is_written = archive.write(gateway)
        stage.add("Java's classes kept for the next starts" if is_written else "not kept: Java wrote no archive")


@contextmanager
def _ending_when_stopped(stop: StopSignals) -> Iterator[None]:
    """If a signal stops the job in the block, end the JVM, and raise nothing but the stop for a lost JVM."""
    try:
        yield
    except (Py4JError, ConnectionError) as lost:
        if stop.stopped is None:
            raise
        # A JVM that got the same signal ends during the job's last calls.
        raise stop.stopped from lost
    except KeyboardInterrupt as interrupt:
        raise stop.interrupted() from interrupt
    finally:
        if stop.stopped is not None:
            end_jvm()


def _cancel_jobs(late: LateSession) -> None:
    """Cancel Spark's jobs, so that none writes on after the lock is released."""
    spark = late.started_before()
    if spark is None:
        return
    # A JVM that got the same signal has no jobs any more.
    with suppress(Py4JError):
        spark.sparkContext.cancelAllJobs()


def explain(error: Exception) -> ColdlogError | str | None:
    """Return the error that a task raised on purpose, or what explains a failure of Spark; None for all others."""
    return error_of_a_worker(error) or explain_failure(error)
