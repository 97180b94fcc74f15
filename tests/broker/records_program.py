"""records_program: what does one program see, whatever its records are read from?

    records_program.py CASES.json

A case is a format, options, columns to select with a condition, and the file that the rows go to. The program knows
nothing of either source; it runs in a process of its own, because the Kafka source's jars must be there when Spark
starts. A case without a file is only counted, `turns` times, and its seconds are printed as JSON: those of the clock,
and those of processors that the program, its JVM and its Python workers took. A case may be a stream: its rows
go to a directory.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from coldlog.launch.session import spark_session
from coldlog.runtime.settings_sources import load_settings


def main(path: str) -> None:
    """Runs the cases."""
    asked = json.loads(Path(path).read_text(encoding="utf-8"))
    spark = spark_session(load_settings("local", [f"{key}={value}" for key, value in asked["settings"].items()]))
    told = [_run(spark, case) for case in asked["cases"]]
    spark.stop()
    print(json.dumps(told))


def _run(spark: SparkSession, case: dict[str, Any]) -> dict[str, Any]:
    reading = spark.readStream if case.get("is_stream") else spark.read
    records = reading.format(case["format"]).options(**case["options"]).load()
    found: DataFrame = records.where(case["where"]).selectExpr(*case["select"])
    if found.isStreaming:
        writing = found.writeStream.format("parquet").option("checkpointLocation", f"{case['file']}.checkpoint")
        writing.trigger(availableNow=True).start(case["file"]).awaitTermination()
        return {}
    if "file" in case:
        rows = found.toArrow()
        pq.write_table(rows, case["file"])
        return {"rows": rows.num_rows}
    seconds, cpu_seconds = [], []
    for _ in range(case["turns"]):
        started, cpu_started = time.perf_counter(), _cpu_seconds()
        answer = found.collect()
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(_cpu_seconds() - cpu_started)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "answer": [str(value) for value in answer[0]]}


def _cpu_seconds() -> float:
    """Of this process and all below it that live."""
    me = psutil.Process()
    times = [each.cpu_times() for each in (me, *me.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


if __name__ == "__main__":
    main(sys.argv[1])
