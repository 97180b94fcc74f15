"""Count the Spark jobs and the SQL executions of a part of a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

_TABLE_SCAN = re.compile("Location: (PreparedDeltaFileIndex|AllFilesIndex)")


@dataclass(slots=True)
class SparkWork:
    """What was started within the block, in all threads."""

    jobs: int = 0
    executions: int = 0
    table_scans: int = 0
    """Scans of tables in the plans, also those behind a cached frame. Right if Spark retains that many executions."""


@contextmanager
def counting_work(spark: SparkSession) -> Iterator[SparkWork]:
    """Count within the block."""
    work, (jobs, executions) = SparkWork(), _numbers(spark)
    yield work
    jobs_after, executions_after = _numbers(spark)
    work.jobs, work.executions = jobs_after - jobs, executions_after - executions
    plans = [each.physicalPlanDescription() for each in _executions(spark) if each.executionId() > executions]
    work.table_scans = sum(len(_TABLE_SCAN.findall(plan)) for plan in plans)


def _numbers(spark: SparkSession) -> tuple[int, int]:
    """The number of the next job, and of the newest SQL execution."""
    context: Any = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    numbers = [each.executionId() for each in _executions(spark)]
    return int(context.dagScheduler().nextJobId()), max(numbers, default=-1)


def _executions(spark: SparkSession) -> list[Any]:
    """Those that Spark still knows."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    return [executions.apply(at) for at in range(executions.size())]
