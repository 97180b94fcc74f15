"""spark_plans: what has a query read, and which side of its joins did it send to every task?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan:
    """One read of a table, once the query has run.

    `is_broadcast`: all that it read was sent to every task, not only what a join left of it.
    """

    table: str
    file_count: int
    row_count: int
    is_broadcast: bool
    join: str = ""
    """The first line of the join above it, with its keys."""


def scans_of(answer: DataFrame) -> list[TableScan]:
    """Every scan of a Delta table in the plan of a query that has run."""
    return list(_scans(answer._jdf.queryExecution().executedPlan(), is_broadcast=False, join=""))


def _scans(node, *, is_broadcast: bool, join: str) -> Iterator[TableScan]:  # type: ignore[no-untyped-def]  # of the JVM
    kind = node.getClass().getSimpleName()
    if kind == "AdaptiveSparkPlanExec":
        yield from _scans(node.executedPlan(), is_broadcast=is_broadcast, join=join)
    elif kind.endswith("QueryStageExec"):
        yield from _scans(node.plan(), is_broadcast=is_broadcast, join=join)
    elif kind.startswith("ReusedExchange"):
        yield from _scans(node.child(), is_broadcast=is_broadcast, join=join)
    elif kind == "FileSourceScanExec":
        metrics = node.metrics()
        yield TableScan(
            table=PurePath(node.relation().location().rootPaths().head().toString()).name,
            file_count=metrics.apply("numFiles").value(),
            row_count=metrics.apply("numOutputRows").value(),
            is_broadcast=is_broadcast,
            join=join,
        )
    else:
        if "Join" in kind:
            is_broadcast, join = False, node.simpleString(1000)
        is_broadcast = is_broadcast or kind == "BroadcastExchangeExec"
        children = node.children()
        for at in range(children.size()):
            yield from _scans(children.apply(at), is_broadcast=is_broadcast, join=join)
