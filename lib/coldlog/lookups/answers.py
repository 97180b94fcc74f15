"""answers: in which form are the answers handed over?

JSON lines (one object a request, in the order asked), a Delta table, or the JSON that Spark's Kafka source takes as
`startingOffsets`. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from coldlog.errors import UsageError
from coldlog.model.list_offsets import ErrorCode

LATEST, EARLIEST = -1, -2
"""What Spark's Kafka source takes for "from the end" and "from the beginning"."""


def write_json_lines(answers: pa.Table, path: str) -> None:
    """One JSON object a line, with the columns of the answers; NULL is null."""
    _write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in answers.to_pylist()))


def starting_offsets(answers: pa.Table) -> str:
    """`{"topic": {"0": 23}}` for `startingOffsets`, from answers of `LIST_OFFSETS_SCHEMA`.

    A partition in which nothing is late enough starts at the end (-1). Where only the archive was searched, and what
    was asked for is later, it starts where that ends: what is not archived may be late enough.

    A partition asked for twice, or unknown to the archive, is a `UsageError`: the JSON could not say what was meant.
    """
    by_topic: dict[str, dict[str, int]] = {}
    for row in answers.to_pylist():
        where = f"{row['topic']}-{row['partition']}"
        is_local = row["error"] == ErrorCode.LOCAL_REQUIRED.name and row["timestamp_ms"] >= LATEST
        if row["error"] != ErrorCode.NONE.name and not is_local:
            raise UsageError(f"no starting offset for {where}: {row['error']}")
        offsets = by_topic.setdefault(row["topic"], {})
        if str(row["partition"]) in offsets:
            raise UsageError(f"{where} was asked for twice; starting offsets need one timestamp a partition")
        offsets[str(row["partition"])] = _starting_offset(row, is_local=is_local)
    return json.dumps(by_topic, ensure_ascii=False)


def _starting_offset(row: dict[str, Any], *, is_local: bool) -> int:
    if row["offset"] is not None:
        return int(row["offset"])
    if not is_local or row["timestamp_ms"] == LATEST:
        return LATEST
    return EARLIEST if row["local_start_offset"] is None else int(row["local_start_offset"])


def write_starting_offsets(answers: pa.Table, path: str) -> None:
    _write_whole(path, starting_offsets(answers) + "\n")


def write_table(answers: pa.Table, location: str, spark: SparkSession) -> None:
    """Replaces the Delta table at `location`, its columns too: the other job's answers have more."""
    rows = spark.createDataFrame(answers).write.format("delta").mode("overwrite")
    rows.option("overwriteSchema", "true").save(location)


def _write_whole(path: str, text: str) -> None:
    target = Path(path)
    unfinished = target.with_name(target.name + f".{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(target)
    except OSError as refused:
        raise UsageError(f"the answers cannot be written to {path}: {refused.strerror}") from refused
