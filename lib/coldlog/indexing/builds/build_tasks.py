"""Read the segments of one commit and write their index rows: few in this process, more in Spark tasks.

Spark's Python workers take seconds to start. A cluster's tasks may see other disks than the driver, so they get
everything. A segment with more bytes than each core would get, if all had the same, is decoded by several threads.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coldlog.archive.layouts.layout import ArchiveLayout
from coldlog.indexing.builds.build_plan import WorkTable, plan_tasks
from coldlog.indexing.builds.index_files import ANSWER_DDL, ANSWER_SCHEMA, IndexPlace, write_index_files
from coldlog.indexing.builds.segment_build import BuildOptions, build_segments
from coldlog.runtime.spark.spark_failures import error_of_a_worker
from coldlog.tiering.read_pace import take_throttled

MOST_SEGMENTS_HERE, MOST_BYTES_HERE = 300, 32 << 20
"""So much is read in this process, in one or two seconds."""
_LEAST_BYTES_PER_THREAD = 32 << 20


def run_build(
    spark: SparkSession,
    layout: ArchiveLayout,
    options: BuildOptions,
    tasks_per_core: int,
    commit: WorkTable,
    place: IndexPlace,
) -> pa.Table:
    """Return the answers of `write_index_files` for the segments of one commit."""
    is_little = len(commit) <= MOST_SEGMENTS_HERE and commit.total_bytes <= MOST_BYTES_HERE
    if is_little and str(spark.conf.get("spark.master")).startswith("local"):
        pieces = build_segments(layout, commit, options)
        answers = list(write_index_files(pieces, place, partial(take_throttled, layout)))
        return pa.Table.from_batches(answers, schema=ANSWER_SCHEMA)
    cores = spark.sparkContext.defaultParallelism
    options = replace(
        options,
        bytes_per_thread=max(_LEAST_BYTES_PER_THREAD, commit.total_bytes // cores),
        most_threads=_cores_of_a_process(spark),
    )
    return _run_tasks(spark, layout, options, plan_tasks(commit, cores * tasks_per_core), place)


def _cores_of_a_process(spark: SparkSession) -> int:
    """The cores that tasks of one executor share."""
    if str(spark.conf.get("spark.master")).startswith("local"):
        return min(spark.sparkContext.defaultParallelism, os.cpu_count() or 1)
    return int(str(spark.conf.get("spark.executor.cores", "1")))


def _run_tasks(
    spark: SparkSession,
    layout: ArchiveLayout,
    options: BuildOptions,
    tasks: list[WorkTable],
    place: IndexPlace,
) -> pa.Table:
    shipped = spark.sparkContext.broadcast((layout, [task.packed() for task in tasks], options, place))

    def build_tasks(batches):  # type: ignore[no-untyped-def]  # pyspark pickles it; its signature is Spark's
        layout, tasks, options, place = shipped.value
        for batch in batches:
            for task in batch.column(0).to_pylist():
                pieces = build_segments(layout, WorkTable.unpacked(tasks[task]), options)
                yield from write_index_files(pieces, place, partial(take_throttled, layout))

    answered = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(build_tasks, schema=ANSWER_DDL)
    try:
        return answered.toArrow()
    except PySparkException as failed:
        # An error that a task raised on purpose is raised again, so that earlier commits are still materialized.
        on_purpose = error_of_a_worker(failed)
        if on_purpose is None:
            raise
        raise on_purpose from failed
    finally:
        shipped.unpersist()
