"""Start Spark for a job, make the job's call, and explain Spark's failures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from coldlog.errors import ColdlogError
from coldlog.launch.session import spark_session
from coldlog.launch.stop_signals import StopSignals
from coldlog.runtime.console import Console
from coldlog.runtime.job import Job, job_console
from coldlog.runtime.settings import Settings
from coldlog.runtime.spark_failures import error_of_a_worker, explain_failure, quiet_accumulators, quiet_gateway
from coldlog.runtime.spark_gateway import end_jvm, jvm_exit_code, unwritten_archive
from coldlog.tables.delta.table_storage import require_reachable


def call_with_spark(
    call: Callable[[Job], int | None],
    settings: Settings,
    arguments: argparse.Namespace,
    stop: StopSignals,
    app_name: str,
    *,
    has_rows_in_spark: bool,
) -> int:
    """Start Spark, make the call, stop Spark; return the exit code."""
    quiet_gateway()
    require_reachable(settings.warehouse_uri)
    console = job_console(arguments)
    # An argument may name a table or folder in a bucket although the warehouse is in a folder.
    places = [each for each in vars(arguments).values() if isinstance(each, str)]
    with _ending_when_stopped(stop):
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
        try:
            with stop.calling_before(partial(_cancel_jobs, spark.sparkContext)):
                exit_code = call(Job(spark=spark, settings=settings, arguments=arguments, console=console)) or 0
                _keep_classes(spark, console)
                return exit_code
        finally:
            if jvm_exit_code() is None:
                spark.stop()


def _keep_classes(spark: SparkSession, console: Console) -> None:
    """Let the JVM write its classes for the next jobs, if none did so before."""
    archive, gateway = unwritten_archive(), spark.sparkContext._gateway
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


def _cancel_jobs(context: SparkContext) -> None:
    """Cancel Spark's jobs, so that none writes on after the lock is released."""
    # A JVM that got the same signal has no jobs any more.
    with suppress(Py4JError):
        context.cancelAllJobs()


def explain(error: Exception) -> ColdlogError | str | None:
    """Return the error that a task raised on purpose, or what explains a failure of Spark; None for all others."""
    return error_of_a_worker(error) or explain_failure(error)
